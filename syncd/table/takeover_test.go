package table

import (
	"testing"
	"time"
)

const takeoverTTL = 100 * time.Second

func takeoverExpiry(o *Options) { o.TakeoverExpiry = takeoverTTL }

// expireTakenOver scans a map that equals the table, and runs one pass.
func (r *rig) expireTakenOver(now int64) {
	r.scanUnchangedMap(now)
	r.expirePass(now)
}

// scanUnchangedMap scans a map that equals the table.
func (r *rig) scanUnchangedMap(began int64) {
	r.tab.Update(func(tx *Tx) {
		tx.BeginScan(began)
		for s := firstSlot; s < r.tab.allocated; s++ {
			r.tab.markScanned(s)
		}
		for tx.EndScan(1) {
		}
	})
}

// expirePass runs one pass, with a limit that needs several calls.
func (r *rig) expirePass(now int64) {
	r.tab.Update(func(tx *Tx) {
		for tx.ExpireTakenOver(now, 1) {
		}
	})
}

// TestTakenOverEntriesExpire: entries of an owner that has left expire once they have not changed for the time
// since it left. Those of a live peer, and those that this node's data plane wrote, stay.
func TestTakenOverEntriesExpire(t *testing.T) {
	r := newRig(t, takeoverExpiry)
	r.remote(Accepted, second, peer, Version(second), "k", "v")
	r.remote(Accepted, second, other, Version(second), "l", "v")
	r.local(Accepted, second, "update m v packet 0")
	r.write()
	r.expireTakenOver(1000 * second)
	r.wantLive("klm", "klm")

	r.setGone("b", true)
	r.expireTakenOver(2000 * second) // notes that the owner has left
	r.expireTakenOver(2099 * second)
	r.want("k", "v v1000000000 b100")
	r.expireTakenOver(2112 * second)
	r.want("k", "- v1000000001 a100 dirty")
	r.want("l", "v v1000000000 c100")
	r.want("m", "v v1000000000 a100")
	if st := r.tab.Stats(); st.TakeoversExpired != 1 {
		t.Errorf("expired records: got %d, want 1", st.TakeoversExpired)
	}
	if keys := r.write(); keys != "k" {
		t.Errorf("written keys: got %q, want the delete of k", keys)
	}
	// A node that has used the entry keeps it.
	r.remote(Accepted, 2113*second, other, Version(2050*second), "k", "w")
	r.want("k", "w v2050000000000 c100 dirty")
}

// TestUseAfterTakeoverDelaysExpiry: each change starts the time anew, also one of this node, whose data plane
// changes an entry that syncd wrote in place.
func TestUseAfterTakeoverDelaysExpiry(t *testing.T) {
	r := newRig(t, takeoverExpiry)
	r.remote(Accepted, second, peer, Version(second), "k", "v")
	r.write()
	r.setGone("b", true)
	r.expireTakenOver(2000 * second)
	r.local(Stale, 2080*second, "update k w reread 0") // the value may be from before the write of syncd
	r.wantRereads("k")
	r.local(Accepted, 2090*second, "update k w reread 0")
	r.expireTakenOver(2189 * second)
	r.want("k", "w v2090000000000 a100")
	r.expireTakenOver(2202 * second)
	r.want("k", "- v2090000000001 a100 dirty")
}

// TestExpiryWaitsForScan: an entry stays until a scan shows that it has not changed for the whole time. A scan that
// began before that time, or that is not complete, does not show that.
func TestExpiryWaitsForScan(t *testing.T) {
	const left = 2000 * second
	r := newRig(t, takeoverExpiry)
	r.remote(Accepted, second, peer, Version(second), "k", "v")
	r.write()
	r.setGone("b", true)
	r.expirePass(left)
	r.expirePass(left + 1000*second)
	r.scanUnchangedMap(left + 99*second)
	r.expirePass(left + 2000*second)
	r.tab.Update(func(tx *Tx) { tx.BeginScan(left + 2000*second) })
	r.expirePass(left + 3000*second)
	r.want("k", "v v1000000000 b100")
	// The scan finds that k is in use.
	r.tab.Update(func(tx *Tx) {
		tx.Scanned(&Change{Key: pad("k", keySize), Value: pad("w", valueSize), Time: left + 2001*second, Op: OpUpdate, Context: ContextReread})
		for tx.EndScan(1) {
		}
	})
	r.expirePass(left + 4000*second)
	r.wantRereads("k")
	r.local(Accepted, left+4000*second, "update k w reread 0")
	r.expirePass(left + 5000*second)
	r.want("k", "w v6000000000000 a100")
	r.scanUnchangedMap(left + 4100*second)
	r.expirePass(left + 6000*second)
	r.want("k", "- v6000000000001 a100 dirty")
}

// TestNewMapDelaysExpiry: the time starts anew for the entries of a new map, which syncd writes after their owner
// has left.
func TestNewMapDelaysExpiry(t *testing.T) {
	r := newRig(t, takeoverExpiry)
	r.remote(Accepted, second, peer, Version(second), "k", "v")
	r.write()
	r.setGone("b", true)
	r.expireTakenOver(2000 * second)
	r.tab.Update((*Tx).Refill)
	r.writer = r.tab.NewCursor(0)
	r.write()
	r.expireTakenOver(3000 * second)
	r.expireTakenOver(3099 * second)
	r.want("k", "v v1000000000 b100")
	r.expireTakenOver(3112 * second)
	r.want("k", "- v1000000001 a100 dirty")
}

// TestReturnOfTheOwnerDelaysExpiry: the time starts anew when the owner leaves again.
func TestReturnOfTheOwnerDelaysExpiry(t *testing.T) {
	r := newRig(t, takeoverExpiry)
	r.remote(Accepted, second, peer, Version(second), "k", "v")
	r.write()
	for _, left := range []int64{2000, 2050} {
		r.setGone("b", true)
		r.expireTakenOver(left * second)
		r.setGone("b", false)
	}
	r.expireTakenOver(3000 * second)
	r.setGone("b", true)
	r.expireTakenOver(3050 * second)
	r.expireTakenOver(3149 * second)
	r.want("k", "v v1000000000 b100")
	r.expireTakenOver(3163 * second)
	r.want("k", "- v1000000001 a100 dirty")
}

// TestOwnRecordsExpireInANewMap: syncd wrote the entries of a new map, so none of them has an armed timer. Their
// time starts with the new map. Records that are not in the map stay.
func TestOwnRecordsExpireInANewMap(t *testing.T) {
	r := newRig(t, takeoverExpiry)
	r.local(Accepted, second, "update k v packet 0")
	r.local(Accepted, second, "update l v packet 0")
	r.expireTakenOver(1000 * second)
	r.tab.Update((*Tx).Refill)
	r.writer = r.tab.NewCursor(0)
	rec := r.take()
	r.applied(rec, nil)
	rec = r.take()
	r.applied(rec, errWrite)
	r.expireTakenOver(2000 * second)
	r.expireTakenOver(2099 * second)
	r.want("k", "v v1000000000 a100")
	r.expireTakenOver(2113 * second)
	r.want("k", "- v1000000001 a100 dirty")
	r.want("l", "v v1000000000 a100 dirty")
}

// TestNoTakeoverExpiryByDefault: without the option nothing expires.
func TestNoTakeoverExpiryByDefault(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, Version(second), "k", "v")
	r.write()
	r.setGone("b", true)
	for i := range int64(5) {
		r.expireTakenOver((1 + i) * 10_000 * second)
	}
	r.want("k", "v v1000000000 b100")
}
