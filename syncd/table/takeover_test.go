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
	r.expireUnused(now, nil)
}

// expireUnused runs one pass with the uses that this node has seen.
func (r *rig) expireUnused(now int64, uses Uses) {
	r.tab.Update(func(tx *Tx) {
		for more := tx.ObserveTakeover(now); more; {
			_, more = tx.ExpireTakenOver(now, uses, 1)
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

// withTimer makes the second half of a value a timer, which is not replicated.
func withTimer(o *Options) {
	takeoverExpiry(o)
	o.Timers = []Range{{Offset: 4, Size: 4}}
	o.Carried = []byte("\xff\xff\xff\xff\x00\x00\x00\x00")
	o.Significant = o.Carried
}

// armed is the value v with a timer that the data plane has set up.
const armed = "v\x00\x00\x00\x00\x01"

// scanned enters an entry that a scan has read.
func (r *rig) scanned(want Outcome, at int64, read *Reading, key, value string) {
	r.Helper()
	r.do(want, func(tx *Tx) Outcome {
		return tx.Scanned(&Change{Key: pad(key, keySize), Value: pad(value, valueSize), Time: at, Op: OpUpdate, Context: ContextReread, Read: read})
	})
}

// TestLoadedEntriesWithoutTimerExpire: an earlier incarnation wrote the entries whose timer is not set up. They expire,
// whether peers have sent them or not. Entries with a timer stay, and so do those of a live peer.
func TestLoadedEntriesWithoutTimerExpire(t *testing.T) {
	r := newRig(t, withTimer)
	for _, key := range []string{"k", "m", "o"} {
		r.load(Accepted, key, "v")
	}
	for _, key := range []string{"l", "n"} {
		r.load(Accepted, key, armed)
	}
	r.remote(Accepted, second, older, Version(second), "m", "v")
	r.remote(Accepted, second, older, Version(second), "n", "v")
	r.remote(Accepted, second, peer, Version(second), "o", "v")
	r.adopt()
	r.want("k", "v v2 a100")
	r.want("m", "v v1000000000 a90")
	r.expireTakenOver(1000 * second)
	r.expireTakenOver(1099 * second)
	r.wantLive("klmno", "klmno")
	r.expireTakenOver(1113 * second)
	r.wantLive("klmno", "lno")
	r.want("k", "- v3 a100 dirty")
	// A node that was cut off has a record of k, with its version.
	r.remote(Accepted, 1114*second, peer, Version(second), "k", "v")
	r.wantLive("k", "k")
	r.write()
	r.expireTakenOver(2000 * second)
	r.wantLive("klmno", "klno")
	r.setGone("b", true)
	r.expireTakenOver(3000 * second)
	r.expireTakenOver(3113 * second)
	r.wantLive("klmno", "ln")
}

// TestLoadedEntriesStayIfTimersAreUnreadable: without the bytes of timers, no loaded entry of this node expires.
func TestLoadedEntriesStayIfTimersAreUnreadable(t *testing.T) {
	r := newRig(t, withTimer, func(o *Options) { o.Timers = nil })
	r.load(Accepted, "k", "v")
	r.adopt()
	r.expireTakenOver(1000 * second)
	r.expireTakenOver(2000 * second)
	r.wantLive("k", "k")
}

// TestChangeOfLoadedEntryDelaysExpiry: a loaded entry that the data plane changes in place, without a timer, starts its
// time anew.
func TestChangeOfLoadedEntryDelaysExpiry(t *testing.T) {
	r := newRig(t, withTimer)
	r.load(Accepted, "k", "v")
	r.adopt()
	r.expireTakenOver(1000 * second)
	r.scanned(Accepted, 1090*second, nil, "k", "w")
	r.expireTakenOver(1113 * second)
	r.expireTakenOver(1189 * second)
	r.wantLive("k", "k")
	r.expireTakenOver(1202 * second)
	r.wantLive("k", "")
}

// TestTimerPreventsExpiry: an entry that was loaded, or written by syncd, does not expire once a scan shows a timer,
// even if nothing else changes. A value that was read before the write of syncd does not show that.
func TestTimerPreventsExpiry(t *testing.T) {
	r := newRig(t, withTimer)
	r.load(Accepted, "k", "v")
	r.adopt()
	r.scanned(Unchanged, 2*second, nil, "k", armed)
	r.expireTakenOver(1000 * second)
	r.expireTakenOver(2000 * second)
	r.wantLive("k", "k")

	r.local(Accepted, 2000*second, "update l v packet 0")
	var read Reading
	r.tab.Update(func(tx *Tx) { tx.Refill(); tx.BeginReading(&read) })
	r.writer = r.tab.NewCursor(0)
	r.write()
	r.scanned(Stale, 2001*second, &read, "k", armed) // as read before the write
	r.read(2001*second).found(Unchanged, "k", "v")
	r.tab.Update(func(tx *Tx) { tx.BeginReading(&read) })
	r.scanned(Unchanged, 2002*second, &read, "l", armed)
	r.tab.Update(func(tx *Tx) { tx.EndReading(&read) })
	r.expireTakenOver(3000 * second)
	r.expireTakenOver(4000 * second)
	r.wantLive("kl", "l")
}

// TestTimerInAnOutdatedReading: the event of a write arrives after a scan has read its entry. The scan is complete and shows the timer,
// so the entry does not expire before a reread.
func TestTimerInAnOutdatedReading(t *testing.T) {
	r := newRig(t, withTimer)
	r.load(Accepted, "k", "v")
	r.adopt()
	r.expireTakenOver(2 * second)
	scan := r.read(1000 * second)
	r.local(Accepted, 3*second, "update k w packet 0")
	scan.scanned(Stale, "k", "w"+armed[1:])
	r.expireTakenOver(1000 * second)
	r.wantLive("k", "k")
	r.read(1001*second).found(Unchanged, "k", "w"+armed[1:])
	r.expireTakenOver(2000 * second)
	r.wantLive("k", "k")
}

// TestTimerWithKnownBytesPreventsExpiry: the record has the bytes of a timer from before a write of syncd, and the data plane sets
// up a timer with the same bytes.
func TestTimerWithKnownBytesPreventsExpiry(t *testing.T) {
	r := newRig(t, withTimer)
	r.local(Accepted, second, "update k v packet 0")
	r.scanned(Unchanged, 2*second, nil, "k", armed)
	r.tab.Update((*Tx).Refill)
	r.writer = r.tab.NewCursor(0)
	r.write()
	var read Reading
	r.tab.Update(func(tx *Tx) { tx.BeginReading(&read) })
	r.tab.Update(func(tx *Tx) { tx.ScannedAll(&read, 3*second, pad("k", keySize), pad(armed, valueSize)) })
	r.tab.Update(func(tx *Tx) { tx.EndReading(&read) })
	r.expireTakenOver(1000 * second)
	r.expireTakenOver(2000 * second)
	r.wantLive("k", "k")
}
