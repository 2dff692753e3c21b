package table

import "testing"

// TestLimitsOfAReplacedMap: a larger LRU map of the same layout replaces the kernel map, and then the former
// one returns.
func TestLimitsOfAReplacedMap(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxEntries, o.MaxLive = 50, 100 })
	former := r.tab.opt
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"b"}, nil) })
	if n := r.flood(peer, "b", 1000); n > 100 {
		t.Errorf("records of a peer: got %d accepted, want at most 100", n)
	}
	r.tab.Update(func(tx *Tx) {
		tx.SetMap(Options{MaxEntries: 500_000, MaxLive: 1_000_000, LRU: true})
		tx.Refill()
	})
	if o := r.tab.opt; o.MaxEvicted != 500_000 || o.MaxTombstones != 1_000_000 || !o.LRU {
		t.Errorf("options of the larger map: got %+v, want room for 500000 evicted entries and 1000000 tombstones, LRU",
			o)
	}
	if n := r.flood(peer, "B", 1000); n != 1000 {
		t.Errorf("records of a peer for the larger map: got %d accepted, want 1000", n)
	}
	r.tab.Update(func(tx *Tx) { tx.SetMap(former) })
	if n := r.flood(peer, "c", 1000); n != 0 {
		t.Errorf("records of a peer for the former map: got %d accepted, want 0", n)
	}
	if o := r.tab.opt; o.MaxEvicted != 50 || o.MaxTombstones != DefaultMaxTombstones || o.LRU {
		t.Errorf("options of the former map: got %+v, want room for 50 evicted entries and %d tombstones, no LRU",
			o, DefaultMaxTombstones)
	}
}

// TestRoomOfAFormerMapIsNotUsed: records that the former limit has admitted in advance do not enter a smaller map.
func TestRoomOfAFormerMapIsNotUsed(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxEntries, o.MaxLive = 50, 100 })
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"b"}, nil) })
	r.flood(peer, "b", 51)
	if r.tab.admitted == 0 {
		t.Fatal("records that are admitted in advance: got 0, want some")
	}
	r.tab.Update(func(tx *Tx) { tx.SetMap(Options{MaxEntries: 10, MaxLive: 20}) })
	if n := r.flood(peer, "c", 9); n != 0 {
		t.Errorf("records of a peer for the smaller map: got %d accepted, want 0", n)
	}
}
