package table

import (
	"fmt"
	"testing"
)

// TestRefusedDeletes: a delete that did not replace a live node's record is accepted when the key has been
// without a live record for the grace of tombstones, unless something above it is known by then.
func TestRefusedDeletes(t *testing.T) {
	unverified := Owner{"x", 5}
	const grace = 5 * second
	begin := func(t *testing.T) *rig {
		r := withMembers(t, lru(8, 8))
		withRecord(peer, "v")(r)
		r.remote(Defended, 1, unverified, 5000, "k", "-")
		return r
	}
	pass := func(r *rig, at int64) {
		r.write()
		r.tab.Update(func(tx *Tx) { tx.Expire(at, 9) })
	}
	for name, c := range map[string]struct {
		change func(*rig)
		want   string
	}{
		"the record stays":         {func(*rig) {}, "v v1000 b100"},
		"it is deleted":            {func(r *rig) { r.remote(Accepted, 1, peer, 2000, "k", "-") }, "- v5000 x5"},
		"by another node":          {func(r *rig) { r.remote(Accepted, 1, other, 2000, "k", "-") }, "- v5000 x5"},
		"it is deleted here":       {func(r *rig) { r.local(Accepted, 1000, "delete k - packet 0") }, "- v5999 a100"},
		"later":                    {func(r *rig) { r.remote(Accepted, 1, peer, 6000, "k", "-") }, "- v6000 b100"},
		"at the same time, higher": {func(r *rig) { r.remote(Accepted, 1, peer, 5000, "k", "-") }, "- v5000 x5"},
		"it is changed":            {func(r *rig) { r.remote(Accepted, 1, peer, 2000, "k", "w") }, "w v2000 b100"},
		"it expires":               {func(r *rig) { r.expired(Accepted, 1, peer, 1000, "k") }, "- v1000 b100"},
		"a lower one comes": {func(r *rig) {
			r.remote(Defended, 1, unverified, 4000, "k", "-")
			r.remote(Accepted, 1, peer, 2000, "k", "-")
		}, "- v5000 x5"},
		"a higher one comes": {func(r *rig) {
			r.remote(Defended, 1, Owner{"w", 1}, 5001, "k", "-")
			r.remote(Accepted, 1, peer, 2000, "k", "-")
		}, "- v5001 w1"},
		"one of equal version does": {func(r *rig) {
			r.remote(Defended, 1, Owner{"w", 1}, 5000, "k", "-")
			r.remote(Accepted, 1, peer, 2000, "k", "-")
		}, "- v5000 x5"},
	} {
		t.Run(name, func(t *testing.T) {
			r := begin(t)
			c.change(r)
			pass(r, second)
			before := r.state("k")
			if pass(r, second+grace-1); r.state("k") != before {
				t.Errorf("record before the end of the grace: got %s, want %s", r.state("k"), before)
			}
			pass(r, second+2*grace)
			r.want("k", c.want)
			pass(r, int64(DefaultTombstoneTTL)+1)
			if n := len(r.tab.refusals.of); n != 0 {
				t.Errorf("refused deletes after the lifetime of tombstones: got %d, want 0", n)
			}
		})
	}
	t.Run("it is live again meanwhile", func(t *testing.T) {
		r := begin(t)
		r.remote(Accepted, 1, peer, 2000, "k", "-")
		pass(r, second)
		r.remote(Accepted, 1, peer, 3000, "k", "w")
		pass(r, 2*second)
		r.remote(Accepted, 1, peer, 4000, "k", "-")
		pass(r, second+grace)
		pass(r, second+2*grace-1-refusalPause)
		r.want("k", "- v4000 b100")
		pass(r, second+2*grace)
		r.want("k", "- v5000 x5")
	})
	t.Run("the delete is too old", func(t *testing.T) {
		r := begin(t)
		pass(r, 1+int64(DefaultTombstoneTTL))
		r.remote(Accepted, 1+int64(DefaultTombstoneTTL), peer, 2000, "k", "-")
		pass(r, second+int64(DefaultTombstoneTTL))
		pass(r, second+grace+int64(DefaultTombstoneTTL))
		r.want("k", "- v2000 b100")
		if n := r.tab.Stats().Refused; n != 0 {
			t.Errorf("deltas that were refused: got %d, want 0", n)
		}
	})
	t.Run("an unverified owner's expiry and record are none", func(t *testing.T) {
		r := withMembers(t)
		withRecord(peer, "v")(r)
		r.expired(Defended, 1, unverified, 5000, "k")
		r.remote(Defended, 1, unverified, 5000, "k", "w")
		if n := len(r.tab.refusals.of); n != 0 {
			t.Errorf("stored deletes: got %d, want 0", n)
		}
	})
}

// TestRefusedDeletesAreBounded: above the bound one is forgotten for another.
func TestRefusedDeletesAreBounded(t *testing.T) {
	r := withMembers(t)
	for i := range maxRefusals + 2 {
		key := fmt.Sprint(i)
		r.remote(Accepted, 1, peer, 1000, key, "v")
		r.remote(Defended, 1, Owner{"x", 5}, 5000, key, "-")
	}
	if n := len(r.tab.refusals.of); n != maxRefusals {
		t.Errorf("stored deletes: got %d, want %d", n, maxRefusals)
	}
	if _, last := r.tab.refusals.of[string(pad(fmt.Sprint(maxRefusals+1), keySize))]; !last {
		t.Error("the last one is not")
	}
	r.remote(Defended, 1, Owner{"x", 6}, 6000, fmt.Sprint(maxRefusals+1), "-")
	if n := len(r.tab.refusals.of); n != maxRefusals {
		t.Errorf("stored deletes after another delete of a stored key: got %d, want %d", n, maxRefusals)
	}
}

// TestHigherRefusedDeleteStays: of two refused deletes of one key, the table stores the higher one.
func TestHigherRefusedDeleteStays(t *testing.T) {
	low, high := refusal{version: 5, owner: Owner{"w", 1}}, refusal{version: 5, owner: Owner{"x", 1}}
	for _, order := range [][]refusal{{low, high}, {high, low}, {{version: 4, owner: high.owner}, high}, {high, {version: 4, owner: high.owner}}} {
		var x refusals
		for _, r := range order {
			x.note(&Delta{Key: []byte("k"), Version: r.version, Delete: true}, r.owner, 0)
		}
		if got := x.of["k"]; got != high {
			t.Errorf("refused delete after %v: got %v, want %v", order, got, high)
		}
	}
	var x refusals
	for at := range int64(3) {
		x.note(&Delta{Key: []byte("k"), Version: high.version, Delete: true}, high.owner, at)
	}
	if got := x.of["k"].at; got != 2 {
		t.Errorf("arrival of a refused delete that was repeated: got %d, want 2", got)
	}
}

// TestRefusedDeletesAreReviewedInPauses: the table examines the keys of refused deletes after each pause, or when
// the clock was set back.
func TestRefusedDeletesAreReviewedInPauses(t *testing.T) {
	r := withMembers(t)
	withRecord(peer, "v")(r)
	review := func(at, want int64) {
		t.Helper()
		r.expire(at, 9)
		if got := r.tab.refusals.of[string(pad("k", keySize))].gone; got != want {
			t.Errorf("time at which the record was found deleted, at %d: got %d, want %d", at, got, want)
		}
	}
	r.expire(second, 9) // without refused deletes, no pause begins
	r.remote(Defended, second, Owner{"x", 5}, 5000, "k", "-")
	r.remote(Accepted, second, peer, 2000, "k", "-")
	review(second, second)
	r.remote(Accepted, second, peer, 3000, "k", "w")
	review(second, second)
	review(second+refusalPause-1, second)
	review(second+refusalPause, 0)
	r.remote(Accepted, second, peer, 4000, "k", "-")
	review(second+refusalPause+1, 0)
	review(second, second)
}

// TestRefusedDeletesOfUnknownKeys: the table has forgotten the tombstones of the defended records. It accepts the
// refused deletes in the order of their keys, and stores them no longer.
func TestRefusedDeletesOfUnknownKeys(t *testing.T) {
	r := withMembers(t)
	const keys = "abcdefgh"
	r.tab.Update(func(tx *Tx) {
		for _, key := range keys {
			tx.t.refusals.note(&Delta{Key: pad(string(key), keySize), Version: 5000, Delete: true}, Owner{"x", 5}, second)
		}
	})
	r.expire(second, 9)
	r.expire(second+int64(DefaultTombstoneGrace), 9)
	r.wantOrder(keys)
	r.want("a", "- v5000 x5")
	if n := len(r.tab.refusals.of); n != 0 {
		t.Errorf("refused deletes after their acceptance: got %d, want 0", n)
	}
}

// TestMemoryOfRefusedDeletes: the memory of a table includes that of refused deletes and their keys.
func TestMemoryOfRefusedDeletes(t *testing.T) {
	r := withMembers(t)
	before := r.tab.Stats().MemoryBytes
	r.tab.refusals.note(&Delta{Key: pad("k", keySize), Version: 5000, Delete: true}, Owner{"x", 5}, second)
	if n := r.tab.Stats().MemoryBytes - before; n != 128+keySize {
		t.Errorf("memory of a refused delete: got %d bytes, want %d", n, 128+keySize)
	}
}
