package table

import "testing"

// TestLateEventShowsAnEntry: the load balancer wrote an entry, and a peer replaces it before its event arrives. The map has an entry
// of the key, so that the write of the record needs no room. Otherwise the former entry would stay in a full LRU map.
func TestLateEventShowsAnEntry(t *testing.T) {
	for event, lacks := range map[string]bool{"update k v packet 0": false, "delete k - packet 0": true} {
		r := newRig(t, lru(4, 4), func(o *Options) { o.Room = 1 })
		r.remote(Accepted, second, peer, Version(second), "a", "v")
		r.write() // the room is used
		r.remote(Accepted, 3*second, peer, Version(3*second), "k", "w")
		r.local(Stale, 2*second, event)
		r.tab.Update(func(tx *Tx) {
			_, s := tx.t.find(pad("k", keySize))
			if got := tx.t.lacksRoom(s); got != lacks {
				t.Errorf("%s, then the write of the record of the peer lacks room: got %v, want %v", event, got, lacks)
			}
		})
	}
}

// TestRecordReplacesATombstone: a sweep has deleted a record, and a peer writes its key before the writer deletes the entry.
func TestRecordReplacesATombstone(t *testing.T) {
	r := newRig(t, lru(4, 4), func(o *Options) { o.Room = 2 })
	r.remote(Accepted, second, peer, Version(second), "a", "v")
	r.remote(Accepted, second, peer, Version(second), "k", "v")
	r.write()
	if n := r.sweepAll(9, func(key, _ []byte) bool { return text(key) != "k" }); n != 1 {
		t.Fatalf("records that the peer lacks: got %d deleted, want 1", n)
	}
	r.local(Accepted, 2*second, "update b v packet 0") // the room is used
	r.remote(Accepted, 4*second, peer, Version(4*second), "k", "w")
	r.tab.Update(func(tx *Tx) {
		if _, s := tx.t.find(pad("k", keySize)); tx.t.lacksRoom(s) {
			t.Error("write of a key whose entry the map still has lacks room: got true, want false")
		}
	})
}
