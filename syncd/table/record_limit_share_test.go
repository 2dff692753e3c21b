package table

import (
	"fmt"
	"testing"
)

// TestRecordsFillTheLimit: with one live peer this node and the peer have a share of a quarter of the
// table each.
func TestRecordsFillTheLimit(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxLive = 12 })
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"b"}, nil) })
	for i, want := range []struct {
		owner Owner
		n     int
	}{{Owner{"departed", 1}, 6}, {peer, 3}, {peer, 0}, {other, 0}} {
		if n := r.flood(want.owner, string(rune('p'+i)), 20); n != want.n {
			t.Errorf("accepted records: got %d of %s, want %d", n, want.owner.Node, want.n)
		}
	}
	r.remote(Accepted, 5, older, 5, "own", "v")
}

// TestPendingRecordsDoNotExpireForPeers: a record that is in use again and one with a pending reread
// do not expire in favour of a peer's record. They expire once they are evicted.
func TestPendingRecordsDoNotExpireForPeers(t *testing.T) {
	r := newRig(t, lru(60, 60), func(o *Options) { o.MaxLive = 12 })
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"b"}, nil) })
	r.evict(second, "a", "b", "c")
	for _, k := range []string{"d", "e", "f"} {
		r.local(Accepted, 5*second, "update "+k+" v packet 0")
	}
	r.local(Unchanged, 10*second, "update a v packet 0")
	r.tab.Update(func(tx *Tx) { tx.RequestReread(pad("b", keySize)) })
	r.flood(peer, "p", 50)
	r.wantLive("abcdef", "abdef")
	r.takeRereads()
	r.local(Unchanged, 20*second, "delete b - reread 0")
	r.flood(peer, "q", 50)
	r.wantLive("abcdef", "adef")
	r.local(Ignored, 30*second, "evict a - packet 0")
	r.takeRereads()
	r.local(Unchanged, 31*second, "delete a - reread 0")
	r.flood(peer, "r", 50)
	r.wantLive("abcdef", "def")
	r.local(Ignored, 40*second, "evict d - packet 0")
	r.flood(peer, "s", 50)
	r.wantLive("abcdef", "def") // the share of this node
}

// TestOrphanedRecordsExpireForPeers: an evicted orphaned record expires in favour of a peer's record,
// however many records this node has.
func TestOrphanedRecordsExpireForPeers(t *testing.T) {
	r := newRig(t, lru(60, 60), func(o *Options) { o.MaxLive = 12 })
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"c"}, []string{"b"}) })
	r.remote(Accepted, second, peer, 5, "p", "v")
	r.write()
	r.setGone("b", true)
	r.local(Ignored, 2*second, "evict p - packet 0")
	r.takeRereads()
	r.local(Unchanged, 3*second, "delete p - reread 0")
	r.flood(other, "q", 50)
	r.wantLive("p", "")
}

// TestEndScanWithoutAScan: EndScan examines nothing. The keys that the load may have skipped stay
// unconfirmed.
func TestEndScanWithoutAScan(t *testing.T) {
	r := newRig(t, shortLived)
	end := func() {
		r.tab.Update(func(tx *Tx) {
			if tx.EndScan(9) {
				t.Error("EndScan: got more true, want false")
			}
		})
	}
	end()
	r.local(Accepted, second, "update k v packet 0")
	end()
	r.wantRereads("")
	r.scan(2*second, "k", "v")
	r.tab.Update((*Tx).BeginLoad)
	end()
	r.wantRereads("")
	if !r.tab.unscanned {
		t.Error("unscanned after the load: got false, want true")
	}
}

// TestEventOlderThanScanIsStale: an event that is older than a scan is stale, whichever function
// entered the value of the scan.
func TestEventOlderThanScanIsStale(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k v packet 0")
	r.tab.Update(func(tx *Tx) {
		tx.BeginScan(0)
		tx.ScannedAll(nil, 5*second, pad("k", keySize), pad("v", valueSize))
		for tx.EndScan(9) {
		}
	})
	r.local(Stale, 4*second, "update k w packet 0")
	r.wantRereads("k")
}

// TestChangesOfOwnersNeedRoom: records of a peer change to another owner, so that its share is free again. The limit of the table
// holds. A peer that uses its own share takes records over at any time.
func TestChangesOfOwnersNeedRoom(t *testing.T) {
	const limit = 120
	for name, to := range map[string]Owner{
		"a departed owner":                    {"departed", 1},
		"an earlier incarnation of this node": older,
		"another live node":                   other,
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(o *Options) { o.MaxLive, o.MaxEntries = limit, limit/4 })
			r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"b", "c"}, []string{"departed"}) })
			for round := range 20 {
				prefix := fmt.Sprint(round, "k")
				r.flood(peer, prefix, 10)
				r.floodVersion(6, to, prefix, 10)
			}
			if n := r.tab.Stats().Live; n > limit {
				t.Errorf("live records: got %d, want at most %d", n, limit)
			}
			if n := r.floodVersion(7, Owner{"b", 101}, "0k", 10); n != 10 {
				t.Errorf("records that the peer takes over: got %d accepted, want 10", n)
			}
		})
	}
}
