package table

import "testing"

// TestRecordsFillTheLimit: with one live peer a quarter of the table is this node's share, and a quarter the
// peer's.
func TestRecordsFillTheLimit(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxLive = 12 })
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"b"}, nil) })
	for i, want := range []struct {
		owner Owner
		n     int
	}{{Owner{"departed", 1}, 6}, {peer, 3}, {peer, 0}, {other, 0}} {
		if n := r.flood(want.owner, string(rune('p'+i)), 20); n != want.n {
			t.Errorf("%d records of %s entered, want %d", n, want.owner.Node, want.n)
		}
	}
	r.remote(Accepted, 5, older, 5, "own", "v")
}

// TestOpenRecordsMakeNoWay: a record that is in use again and one that waits for a reread do not expire in
// favour of a peer's record. They do once they are evicted.
func TestOpenRecordsMakeNoWay(t *testing.T) {
	r := newRig(t, lru(60, 60), func(o *Options) { o.MaxLive = 12 })
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"b"}, nil) })
	r.evict(second, "a", "b", "c")
	for _, k := range []string{"d", "e", "f"} {
		r.local(Accepted, 5*second, "update "+k+" v packet 0")
	}
	r.local(Unchanged, 10*second, "update a v packet 0")
	r.tab.Update(func(tx *Tx) { tx.Reread(pad("b", simKey)) })
	r.flood(peer, "p", 50)
	r.wantLive("abcdef", "abdef")
	r.rechecks()
	r.local(Unchanged, 20*second, "delete b - reread 0")
	r.flood(peer, "q", 50)
	r.wantLive("abcdef", "adef")
	r.local(Ignored, 30*second, "evict a - packet 0")
	r.rechecks()
	r.local(Unchanged, 31*second, "delete a - reread 0")
	r.flood(peer, "r", 50)
	r.wantLive("abcdef", "def")
	r.local(Ignored, 40*second, "evict d - packet 0")
	r.flood(peer, "s", 50)
	r.wantLive("abcdef", "def") // this node's share
}

// TestOrphanedRecordsMakeWay: an evicted orphaned record expires in favour of a peer's, whatever this node has.
func TestOrphanedRecordsMakeWay(t *testing.T) {
	r := newRig(t, lru(60, 60), func(o *Options) { o.MaxLive = 12 })
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"c"}, []string{"b"}) })
	r.remote(Accepted, second, peer, 5, "p", "v")
	r.write()
	r.setGone("b", true)
	r.local(Ignored, 2*second, "evict p - packet 0")
	r.rechecks()
	r.local(Unchanged, 3*second, "delete p - reread 0")
	r.flood(other, "q", 50)
	r.wantLive("p", "")
}

// TestEndScanWithoutAScan: it looks at nothing, and what the load passed over is still open.
func TestEndScanWithoutAScan(t *testing.T) {
	r := newRig(t, shortLived)
	end := func() {
		r.tab.Update(func(tx *Tx) {
			if tx.EndScan(9) {
				t.Error("there is more")
			}
		})
	}
	end()
	r.local(Accepted, second, "update k v packet 0")
	end()
	r.wantRechecks("")
	r.scan(2*second, "k", "v")
	r.tab.Update((*Tx).BeginLoad)
	end()
	r.wantRechecks("")
	if !r.tab.unsure {
		t.Error("no scan has read the map after the load")
	}
}

// TestScanIsEvidence: an event that is older than a scan does not count, however the scan entered the value.
func TestScanIsEvidence(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k v packet 0")
	r.tab.Update(func(tx *Tx) {
		tx.BeginScan()
		tx.ScannedAll(nil, 5*second, pad("k", simKey), pad("v", simValue))
		for tx.EndScan(9) {
		}
	})
	r.local(Stale, 4*second, "update k w packet 0")
	r.wantRechecks("k")
}
