package table

import (
	"fmt"
	"testing"
	"time"
)

func (r *rig) expire(now int64, limit int) (more bool) {
	r.tab.Update(func(tx *Tx) { more = tx.Expire(now, limit) })
	return more
}

func shortLived(o *Options) { o.TombstoneTTL = time.Second }

func TestExpire(t *testing.T) {
	r := newRig(t, shortLived)
	r.local(Accepted, 1*second, "update k v packet 0")
	r.local(Accepted, 2*second, "delete k - packet 0")
	r.remote(Accepted, 3*second, peer, 1, "l", "-") // the lifetime begins at the receipt, not at the version
	r.local(Accepted, 3*second, "update m v packet 0")
	r.expire(3*second-1, 9)
	r.wantOrder("klm")
	r.expire(3*second, 9)
	r.want("k", "unknown")
	r.wantOrder("lm")
	if st := r.tab.Stats(); st.Floor != 2 || st.Head != 4 || st.Expired != 1 || st.Tombstones != 1 {
		t.Fatalf("stats: got %+v, want Floor 2, Head 4, Expired 1, Tombstones 1", st)
	}
	r.expire(4*second, 9)
	r.wantOrder("m")
	if st := r.tab.Stats(); st.Floor != 3 {
		t.Fatalf("floor: got %d, want 3", st.Floor)
	}
}

func TestExpireInChunks(t *testing.T) {
	r := newRig(t, shortLived)
	for i := range 5 {
		r.remote(Accepted, 0, peer, 1, fmt.Sprint(i), "-")
	}
	r.remote(Accepted, 9*second, peer, 1, "k", "-")
	for i, want := range []bool{true, true, false, false} {
		if more := r.expire(9*second, 2); more != want {
			t.Fatalf("chunk %d: got more %v, want %v", i, more, want)
		}
	}
	r.wantOrder("k")
}

// TestRereadExtendsLifetime: a reread shows that a deleted key is absent. The lifetime of the tombstone then begins again. Above the
// acknowledged position it does not end before.
func TestRereadExtendsLifetime(t *testing.T) {
	r := newRig(t, shortLived, func(o *Options) { o.TombstoneGrace = time.Millisecond })
	r.local(Accepted, 1*second, "update k v packet 0")
	r.local(Accepted, 2*second, "delete k - packet 0")
	r.tab.Update(func(tx *Tx) { tx.RequestReread(pad("k", keySize)) })
	r.expire(9*second/4, 9) // the tombstone stays in its slot, because the reread is pending
	r.wantRereads("k")
	r.local(Unchanged, 5*second/2, "delete k - reread 0")
	r.expire(7*second/2-1, 9)
	r.want("k", "- v2000000000 a100")
	r.expire(7*second/2, 9)
	r.want("k", "unknown")
	if st := r.tab.Stats(); st.Expired != 1 || st.Acknowledged != 0 {
		t.Errorf("stats: got %+v, want Expired 1, Acknowledged 0", st)
	}
}

// TestAcknowledgedTombstoneWaitsForScan: an acknowledged tombstone whose lifetime a reread has extended stays until the first
// scan after a load, like all others.
func TestAcknowledgedTombstoneWaitsForScan(t *testing.T) {
	r := newRig(t, func(o *Options) { o.TombstoneTTL, o.TombstoneGrace = 4*time.Second, time.Second })
	r.tab.Update(func(tx *Tx) { tx.BeginLoad(); tx.EndLoad() })
	r.local(Accepted, 1*second, "update k v packet 0")
	r.local(Accepted, 2*second, "delete k - packet 0")
	r.tab.Update(func(tx *Tx) { tx.RequestReread(pad("k", keySize)) })
	r.expire(7*second/2, 9)
	r.wantRereads("k")
	r.local(Unchanged, 4*second, "delete k - reread 0")
	r.acknowledge(r.tab.Stats().Head)
	r.expire(6*second, 9)
	r.want("k", "- v2000000000 a100")
	r.expire(8*second, 9)
	r.want("k", "unknown")
}

func TestExpireKeepsRecreatedKeys(t *testing.T) {
	r := newRig(t, shortLived)
	r.local(Accepted, 1*second, "update k v packet 0")
	r.local(Accepted, 2*second, "delete k - packet 0")
	r.local(Accepted, 3*second, "update k w packet 0")
	r.expire(9*second, 9)
	r.wantOrder("k")
	// After a second delete the lifetime begins again.
	r.local(Accepted, 9*second, "delete k - packet 0")
	r.local(Accepted, 10*second, "update k w packet 0")
	r.local(Accepted, 11*second, "delete k - packet 0")
	r.expire(12*second-1, 9)
	r.wantOrder("k")
	r.expire(12*second, 9)
	r.wantOrder("")
}

func TestExpireKeepsUnwrittenTombstones(t *testing.T) {
	r := newRig(t, shortLived)
	r.remote(Accepted, 0, peer, 1, "k", "v")
	r.write()
	r.remote(Accepted, 0, peer, 2, "k", "-")
	for range 3 {
		r.expire(9*second, 1)
	}
	r.want("k", "- v2 b100 dirty")
	r.write()
	r.expire(20*second, 1)
	r.want("k", "unknown")
}

func TestExpireWithoutAMap(t *testing.T) {
	r := newRig(t, shortLived)
	r.load(Accepted, "u", "v")
	r.remote(Accepted, 0, peer, 1, "k", "v")
	r.write()
	r.remote(Accepted, 0, peer, 2, "k", "-")
	r.local(Ignored, 1*second, "evict k - packet 0")
	r.tab.Update(func(tx *Tx) {
		if tx.ExpireUnwritten(9*second, 9) {
			t.Error("Expire: got more true, want false")
		}
	})
	r.want("k", "unknown")
	checkInvariants(t, r.tab)
	if st := r.tab.Stats(); st.Dirty != 0 || st.Expired != 1 || st.Unversioned != 1 {
		t.Errorf("stats: got %+v, want Dirty 0, Expired 1, Unversioned 1", st)
	}
}

// TestExpireWithCursorAndPendingReread: the map may hold the key of a tombstone that waits for its reread. The table keeps the
// tombstone until then. If the result has yet to arrive, another reread takes place after the table has forgotten it.
func TestExpireWithCursorAndPendingReread(t *testing.T) {
	r := newRig(t, shortLived)
	r.local(Accepted, 1*second, "update k v packet 0")
	r.local(Accepted, 2*second, "update l v packet 0")
	r.local(Accepted, 2*second, "delete l - packet 1")
	c := r.tab.NewCursor(99)
	r.expire(9*second, 9)
	r.want("l", "- v2000000001 a100")
	r.wantRereads("l")
	r.expire(19*second, 9)
	r.want("l", "unknown")
	r.wantRereads("l")
	r.local(Accepted, 10*second, "update m v packet 0")
	r.tab.View(func(tx *Tx) {
		var rec Record
		if !tx.Next(c, &rec) || text(rec.Key) != "m" || tx.Next(c, &rec) {
			t.Errorf("Next: got %q, want no record", rec.Key)
		}
	})
	// Another key reuses the slot. The old entry in the queue does not apply to it.
	r.local(Accepted, 11*second, "update n v packet 0")
	r.local(Accepted, 11*second, "update n w packet 1")
	r.wantRereads("n")
}

func TestFullTable(t *testing.T) {
	r := newRig(t, room(3))
	r.local(Accepted, 1*second, "update a v packet 0")
	r.local(Accepted, 1*second, "update b v packet 0")
	r.load(Accepted, "c", "v")
	r.load(Refused, "d", "v")
	r.local(Refused, 2*second, "update d v packet 0")
	r.remote(Refused, 0, peer, 1, "d", "v")
	r.remote(Refused, 0, peer, 1, "d", "-")
	if st := r.tab.Stats(); st.Refused != 4 || st.Live != 3 {
		t.Fatalf("stats: got %+v, want Refused 4, Live 3", st)
	}
	// A tombstone makes room before the end of its lifetime, and the floor rises.
	r.local(Accepted, 3*second, "delete a - packet 0")
	r.local(Accepted, 4*second, "update d v packet 0")
	r.want("a", "unknown")
	if st := r.tab.Stats(); st.ExpiredEarly != 1 || st.Floor != 3 || st.Live != 3 {
		t.Fatalf("stats: got %+v, want ExpiredEarly 1, Floor 3, Live 3", st)
	}
	// A dirty tombstone does not make room.
	r.remote(Accepted, 5*second, peer, Version(5*second), "b", "-")
	r.local(Refused, 6*second, "update e v packet 0")
	r.write()
	r.local(Accepted, 6*second, "update e v packet 0")
}

// TestLateEventAfterAForgottenDelete: syncd has deleted an entry after its load balancer had written it again. The event of that
// write arrives when the tombstone is forgotten. A reread decides.
func TestLateEventAfterAForgottenDelete(t *testing.T) {
	for _, compact := range []bool{false, true} {
		r := newRig(t, shortLived)
		r.remote(Accepted, 0, peer, 1, "k", "v")
		r.write()
		r.remote(Accepted, second, peer, Version(second), "k", "-")
		r.write()
		if compact {
			r.expire(2*second, 0)
		}
		r.expire(9*second, 9)
		r.want("k", "unknown")
		r.local(Accepted, 5*second, "update k w packet 0")
		r.wantRereads("k")
	}
}
