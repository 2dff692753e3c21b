package table

import (
	"slices"
	"testing"
)

// toOneKey converts a table so that all keys become k.
func (r *rig) toOneKey() *rig {
	r.Helper()
	o, how := wider("")
	how.Key = func(dst, _ []byte) error {
		if !r.tab.owners.keepIDs {
			r.Error("owner ids during the conversion: got reclaimable, want kept")
		}
		copy(dst, pad("k", keySize))
		return nil
	}
	cursors := len(r.tab.cursors)
	tab, done, err := r.tab.Convert(o, how)
	if err != nil || done.Records != 1 || done.Failed != 0 || done.Err != nil {
		r.Fatalf("Convert: got %+v, error %v, want 1 record", done, err)
	}
	if n := len(r.tab.cursors); n != cursors || r.tab.owners.keepIDs {
		r.Errorf("cursors: got %d, want %d; owner ids kept: got %v, want false", n, cursors, r.tab.owners.keepIDs)
	}
	checkInvariants(r, tab)
	return &rig{T: r.T, tab: tab, writer: tab.NewCursor(0)}
}

// TestConvertIntoOneKey: the new table keeps the newest of several records, and the last of records
// with equal versions.
func TestConvertIntoOneKey(t *testing.T) {
	for name, test := range map[string]struct {
		have  func(*rig)
		state string
		tombs int
	}{
		"newer":                  {func(r *rig) { r.remote(Accepted, 1, peer, 10, "k", "v"); r.remote(Accepted, 1, peer, 11, "l", "w") }, "+w v11 b100 dirty", 0},
		"older":                  {func(r *rig) { r.remote(Accepted, 1, peer, 11, "k", "v"); r.remote(Accepted, 1, peer, 10, "l", "w") }, "+v v11 b100 dirty", 0},
		"equal":                  {func(r *rig) { r.remote(Accepted, 1, peer, 10, "k", "v"); r.remote(Accepted, 1, peer, 10, "l", "w") }, "+w v10 b100 dirty", 0},
		"deleted":                {func(r *rig) { r.remote(Accepted, 1, peer, 10, "k", "v"); r.remote(Accepted, 1, peer, 11, "l", "-") }, "- v11 b100", 1},
		"two deletes":            {func(r *rig) { r.remote(Accepted, 1, peer, 10, "k", "-"); r.remote(Accepted, 1, peer, 11, "l", "-") }, "- v11 b100", 1},
		"recreated":              {func(r *rig) { r.remote(Accepted, 1, peer, 10, "k", "-"); r.remote(Accepted, 1, peer, 11, "l", "v") }, "+v v11 b100 dirty", 1},
		"unversioned":            {func(r *rig) { r.load(Accepted, "k", "v"); r.load(Accepted, "l", "w") }, "+w v0 a100 dirty", 0},
		"unversioned and remote": {func(r *rig) { r.load(Accepted, "k", "v"); r.remote(Accepted, 1, peer, 10, "l", "w") }, "+w v10 b100 dirty", 0},
		"one":                    {func(r *rig) { r.local(Accepted, 10, "update k v packet 0") }, "+v v10 a100 dirty", 0},
	} {
		r := newRig(t)
		test.have(r)
		to := r.toOneKey()
		if got := to.state("k"); got != test.state {
			t.Errorf("%s: %q, want %q", name, got, test.state)
		}
		if n := to.tab.tombs.len(); n != test.tombs {
			t.Errorf("%s: %d tombstones in the queue, want %d", name, n, test.tombs)
		}
	}
}

// TestConvertKeepsTheTimeOfRecords: the new table refuses a reread that is older than the last event
// of the record.
func TestConvertKeepsTheTimeOfRecords(t *testing.T) {
	for at, want := range map[int64]Outcome{5*second - 1: Stale, 6 * second: Accepted} {
		r := newRig(t)
		r.local(Accepted, 5*second, "update k v packet 0")
		o, how := Options{KeySize: keySize, ValueSize: valueSize, Seed: 1}, Conversion{}
		how.Key = func(dst, src []byte) error { copy(dst, src); return nil }
		how.Value = how.Key
		tab, _, err := r.tab.Convert(o, how)
		if err != nil {
			t.Fatal(err)
		}
		to := &rig{T: t, tab: tab, writer: tab.NewCursor(0)}
		if keys := to.write(); keys != "k" {
			t.Fatalf("write: got keys %q, want k", keys)
		}
		to.tab.Update(func(tx *Tx) { tx.RequestReread(pad("k", keySize)) })
		to.wantRereads("k")
		to.local(want, at, "update k w reread 0")
	}
}

// TestConvertSkipsFreeOwnerIDs: a free owner id adds no digest to the new table.
func TestConvertSkipsFreeOwnerIDs(t *testing.T) {
	r := newRig(t)
	r.intern(other)
	r.remote(Accepted, 1, peer, 10, "k", "v")
	r.tab.View((*Tx).ReclaimOwners)
	to := r.toOneKey()
	var nodes []string
	to.tab.View(func(tx *Tx) {
		tx.DigestOfNodes(func(n string) bool {
			nodes = append(nodes, n)
			return false
		}, nil)
	})
	slices.Sort(nodes)
	if !slices.Equal(nodes, []string{"a", "b"}) {
		t.Errorf("nodes with a digest: got %q, want a and b", nodes)
	}
}

// TestEqualUnderMask: the comparison covers each bit of the mask, for any size, and no other bits.
func TestEqualUnderMask(t *testing.T) {
	for size := 1; size <= 35; size++ {
		mask, a, b := make([]byte, size), make([]byte, size), make([]byte, size)
		for i := range mask {
			mask[i] = 0x55
		}
		for i := range size {
			b[i] = 0xaa
			if !equalUnder(mask, a, b) || equalUnder(nil, a, b) {
				t.Errorf("byte %d of %d: the comparison includes a bit outside the mask", i, size)
			}
			b[i] = 0x40
			if equalUnder(mask, a, b) {
				t.Errorf("byte %d of %d: the comparison ignores a difference", i, size)
			}
			b[i] = 0
		}
	}
}

// TestDeltaKeepIsIgnoredForDeletes: Delta.Keep has no effect on a delta that deletes.
func TestDeltaKeepIsIgnoredForDeletes(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 1, peer, 10, "k", "v")
	r.do(Accepted, func(tx *Tx) Outcome {
		d := &Delta{Key: pad("k", keySize), Version: 11, Owner: tx.Intern(peer), Delete: true, Keep: []Range{{0, 4}}}
		return tx.Remote(d, 1, RemoteOptions{})
	})
	r.want("k", "- v11 b100 dirty")
}

// TestRejectedCounter: the table counts records that it rejects because of Options.MaxLive. Records
// that were admitted ahead are accepted.
func TestRejectedCounter(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxLive = 4 })
	r.tab.tx.SetMembers([]string{"b"}, nil)
	if n := r.flood(Owner{"unverified", 1}, "s", 9); n == 0 || n > 4 {
		t.Errorf("accepted records: got %d, want 1 to 4", n)
	}
	entered, rejected := r.tab.stats.Live, uint64(9-r.tab.stats.Live)
	r.tab.admitted = 1
	if n := r.flood(Owner{"unverified", 1}, "t", 3); n != 1 || r.tab.stats.Live != entered+1 {
		t.Errorf("accepted records: got %d, want the admitted one", n)
	}
	r.tab.View(func(tx *Tx) {
		if n := tx.Rejected(); n != rejected+2 {
			t.Errorf("%d rejected, want %d", n, rejected+2)
		}
	})
}
