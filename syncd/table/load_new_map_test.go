package table

import (
	"fmt"
	"testing"
)

// newMap enters an entry that the read of a new map found at a time.
func (r *rig) newMap(want Outcome, at int64, key, value string) {
	r.Helper()
	var reading Reading
	r.do(want, func(tx *Tx) Outcome {
		tx.BeginReading(&reading)
		defer tx.EndReading(&reading)
		return tx.LoadNewMap(&Change{Key: pad(key, keySize), Value: pad(value, valueSize), Time: at, Read: &reading}, true)
	})
}

func (r *rig) refill() {
	r.tab.Update((*Tx).Refill)
	r.writer.Close()
	r.writer = r.tab.NewCursor(0)
}

func (r *rig) pendingCopies() (n int) {
	r.tab.View(func(tx *Tx) { n = tx.PendingCopies() })
	return n
}

// TestRecordOfLivePeerWinsOverNewMap: a new map has an old value and an ended entry of a live peer.
func TestRecordOfLivePeerWinsOverNewMap(t *testing.T) {
	for name, options := range map[string][]func(*Options){
		"Hash": nil, "LRU": {func(o *Options) { o.LRU = true }}, "deletes any": {deletesAny},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, options...)
			r.remote(Accepted, second, peer, 10, "k", "new")
			r.remote(Accepted, second, peer, 11, "d", "v")
			r.remote(Accepted, second, peer, 12, "d", "-")
			r.remote(Accepted, second, peer, 13, "e", "v")
			r.write()
			r.refill()
			r.newMap(Stale, 2*second, "k", "old")
			r.newMap(Stale, 2*second, "d", "v")
			r.newMap(Unchanged, 2*second, "e", "v")
			if got := r.write(); got != "" {
				t.Errorf("written before the reread: got %q, want none", got)
			}
			r.wantRereads("kd")
			r.local(Restored, 3*second, "update k old reread 0")
			r.local(Restored, 3*second, "update d v reread 0")
			r.want("k", "new v10 b100 dirty")
			r.want("d", "- v12 b100 dirty")
			if got := r.write(); got != "kd" {
				t.Errorf("restored: got %q, want kd", got)
			}
			r.want("e", "v v13 b100")
			// What changes from now on is a change of this node.
			r.local(Accepted, 4*second, "update k use packet 0")
			r.want("k", "use v4000000000 a100")
		})
	}
}

// TestNewMapWinsOverHandedOverRecord: a new map has other values than records of a drained peer. Those that the peer has handed
// over may have been taken over by this node's load balancer.
func TestNewMapWinsOverHandedOverRecord(t *testing.T) {
	r := newRig(t, visibleUse)
	for _, key := range []string{"k", "l"} {
		r.remote(Accepted, second, peer, 10, key, "v")
	}
	r.remote(Accepted, second, peer, 20, "m", "v")
	r.write()
	r.setHandover("b", Handover{peer.Incarnation, 10})
	r.refill()
	r.newMap(Accepted, 20*second, "k", "use")
	r.newMap(Unchanged, 20*second, "l", "v") // the read shows no use
	r.newMap(Stale, 20*second, "m", "use")
	r.want("k", "use v20000000000 a100")
	r.want("l", "v v10 b100")
}

// TestChangeAfterTheNewMapWasReadWins: a hook, or the reread, shows that this node's data plane uses the entry.
func TestChangeAfterTheNewMapWasReadWins(t *testing.T) {
	t.Run("reread", func(t *testing.T) {
		r := newRig(t)
		r.remote(Accepted, second, peer, 10, "k", "new")
		r.write()
		r.refill()
		r.newMap(Stale, 2*second, "k", "old")
		r.wantRereads("k")
		r.local(Accepted, 3*second, "update k use reread 0")
		r.want("k", "use v3000000000 a100")
	})
	t.Run("event", func(t *testing.T) {
		r := newRig(t)
		r.remote(Accepted, second, peer, 10, "k", "new")
		r.write()
		r.refill()
		r.newMap(Stale, 2*second, "k", "old")
		r.local(Accepted, 3*second, "update k old packet 0") // the same value again
		r.wantRereads("k")
		r.local(Unchanged, 4*second, "update k old reread 0")
		r.want("k", "old v3000000000 a100")
	})
	t.Run("event without value", func(t *testing.T) {
		r := newRig(t)
		r.remote(Accepted, second, peer, 10, "k", "new")
		r.write()
		r.refill()
		r.newMap(Stale, 2*second, "k", "old")
		r.tab.Update(func(tx *Tx) { tx.RequestRereadOfChange(pad("k", keySize)) })
		r.wantRereads("k")
		r.local(Accepted, 4*second, "update k old reread 0")
		r.want("k", "old v4000000000 a100")
	})
	t.Run("delete", func(t *testing.T) {
		r := newRig(t)
		r.remote(Accepted, second, peer, 10, "k", "new")
		r.write()
		r.refill()
		r.newMap(Stale, 2*second, "k", "old")
		r.local(Accepted, 3*second, "delete k - packet 0")
		r.want("k", "- v3000000000 a100")
	})
}

// TestNewerRecordOverCopy: the live peer changes or ends the entry before the reread.
func TestNewerRecordOverCopy(t *testing.T) {
	for value, state := range map[string]string{"newer": "newer v20 b100", "-": "- v20 b100"} {
		r := newRig(t)
		r.remote(Accepted, second, peer, 10, "k", "new")
		r.write()
		r.refill()
		r.newMap(Stale, 2*second, "k", "old")
		r.remote(Accepted, 2*second, peer, 20, "k", value)
		r.want("k", state+" dirty")
		r.wantRereads("")
		if got := r.write(); got != "k" {
			t.Errorf("written: got %q, want k", got)
		}
		r.wantRereads("k")
		if value == "-" {
			r.local(Unchanged, 3*second, "delete k - reread 0")
		} else {
			r.local(Unchanged, 3*second, "update k newer reread 0")
		}
		r.want("k", state)
		if n := r.pendingCopies(); n != 0 {
			t.Errorf("%s: got %d pending copies, want 0", value, n)
		}
	}
}

// TestNewMapWins: the entry of a new map wins for this node's own keys, keys of departed owners, and unknown keys, and
// with the option for all keys.
func TestNewMapWins(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update own v packet 0")
	r.local(Accepted, second, "update end v packet 0")
	r.local(Accepted, second, "delete end - packet 0")
	r.remote(Accepted, second, other, 10, "left", "v")
	r.remote(Accepted, second, other, 11, "leftend", "-")
	r.setGone("c", true)
	r.write()
	r.refill()
	for _, key := range []string{"own", "end", "left", "leftend", "none"} {
		r.newMap(Accepted, 2*second, key, "w")
		r.want(key, "w v2000000000 a100")
	}
	all := newRig(t, func(o *Options) { o.NewMapWins = true })
	all.remote(Accepted, second, peer, 10, "k", "new")
	all.write()
	all.refill()
	all.newMap(Accepted, 2*second, "k", "old")
	all.want("k", "old v2000000000 a100")
}

// TestVolatileDifferenceOfACopy: a copy that differs only in bits that are not sent claims nothing, even if a refresh is due.
func TestVolatileDifferenceOfACopy(t *testing.T) {
	r := newRig(t, func(o *Options) {
		o.Significant, o.Refresh = []byte{255, 0, 0, 0, 0, 0, 0, 0}, 1
	})
	r.remote(Accepted, second, peer, 10, "k", "v2")
	r.write()
	r.refill()
	r.newMap(Stale, 100*second, "k", "v1")
	r.wantRereads("k")
	r.local(Restored, 101*second, "update k v1 reread 0")
	r.want("k", "v2 v10 b100 dirty")
}

// TestLocalFieldsOfACopy: bits that are not replicated do not make an entry differ from its record.
func TestLocalFieldsOfACopy(t *testing.T) {
	r := newRig(t, func(o *Options) {
		o.Carried = []byte{255, 0, 0, 0, 0, 0, 0, 0}
		o.Significant = o.Carried
	})
	r.remote(Accepted, second, peer, 10, "k", "va")
	r.remote(Accepted, second, peer, 11, "l", "va")
	r.write()
	r.refill()
	r.newMap(Unchanged, 2*second, "k", "vb")
	r.newMap(Stale, 2*second, "l", "wa")
	r.wantRereads("l")
	r.local(Restored, 3*second, "update l wb reread 0")
}

// TestUnknownKeyOfNewMapBeforePeersHaveSent: the key may be one of a peer that has yet to send its records.
func TestUnknownKeyOfNewMapBeforePeersHaveSent(t *testing.T) {
	r := newRig(t)
	r.refill()
	var reading Reading
	r.do(Accepted, func(tx *Tx) Outcome {
		tx.BeginReading(&reading)
		defer tx.EndReading(&reading)
		return tx.LoadNewMap(&Change{Key: pad("k", keySize), Value: pad("old", valueSize), Time: 2 * second, Read: &reading}, false)
	})
	r.remote(Accepted, 3*second, peer, 10, "k", "new")
	r.adopt()
	r.want("k", "new v10 b100 dirty")
}

// TestExpiredEntryOfANewMap: an expiry deletes no entry of a new map either. If the load balancer uses the entry after the read, it
// becomes a record of this node.
func TestExpiredEntryOfANewMap(t *testing.T) {
	for found, want := range map[string]string{"v": "- v10 b100", "w": "w v4000000000 a100"} {
		r := newRig(t, lru(8, 8))
		r.remote(Accepted, second, peer, 10, "k", "v")
		r.write()
		r.expired(Accepted, 2*second, peer, 10, "k")
		r.refill()
		r.newMap(Ignored, 3*second, "k", "v")
		r.wantExpired("k", true)
		r.local(map[string]Outcome{"v": Unchanged, "w": Accepted}[found], 4*second, "update k "+found+" reread 0")
		r.want("k", want)
	}
}

// TestForgottenRecordHasNoCopy: the table keeps a tombstone until the entry of a new map has been read again. A table without a
// kernel map forgets both.
func TestForgottenRecordHasNoCopy(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, 10, "k", "-")
	r.write()
	r.refill()
	r.newMap(Stale, 2*second, "k", "old")
	r.tab.Update(func(tx *Tx) {
		for tx.Expire(3*second+int64(DefaultTombstoneTTL), 10) {
		}
	})
	r.want("k", "- v10 b100")
	r.tab.Update(func(tx *Tx) {
		for tx.ExpireUnwritten(4*second+int64(DefaultTombstoneTTL), 10) {
		}
	})
	r.want("k", "unknown")
	if n := r.pendingCopies(); n != 0 {
		t.Errorf("pending copies: got %d, want 0", n)
	}
}

// TestCopyOutlastsTheLimitOfTombstones: a table with too many tombstones forgets none whose entry in a new map has yet to be
// read again. Otherwise a scan would find the ended entry without a record, and send it to all nodes.
func TestCopyOutlastsTheLimitOfTombstones(t *testing.T) {
	const limit = 4
	r := newRig(t, func(o *Options) { o.MaxTombstones = limit })
	r.remote(Accepted, second, peer, 10, "k", "-")
	r.write()
	r.refill()
	r.newMap(Stale, 2*second, "k", "old")
	for i := range 3 * limit {
		r.remote(Accepted, 3*second, peer, Version(20+i), fmt.Sprint(i), "-") // stay until they are written
	}
	r.want("k", "- v10 b100")
	r.local(Restored, 4*second, "update k old reread 0")
	r.want("k", "- v10 b100 dirty")
	r.write()
	r.want("k", "- v10 b100")
}

// TestScanAfterARestoreThatANewMapMakesNeedless: syncd was about to restore an entry when its map was replaced by one that has
// it. Scans compare the entry.
func TestScanAfterARestoreThatANewMapMakesNeedless(t *testing.T) {
	r := withMembers(t)
	r.remote(Accepted, second, peer, Version(second), "k", "v")
	r.write()
	r.tab.Update(func(tx *Tx) { tx.RequestReread(pad("k", keySize)) })
	r.wantRereads("k")
	r.local(Restored, 3*second, "delete k - reread 0")
	r.want("k", "v v1000000000 b100 dirty")
	r.refill()
	r.newMap(Unchanged, 4*second, "k", "v")
	r.want("k", "v v1000000000 b100")
	r.do(Accepted, func(tx *Tx) Outcome {
		return tx.Scanned(&Change{Key: pad("k", keySize), Value: pad("w", valueSize), Time: 5 * second, Context: ContextReread})
	})
}

// TestNewMapWithOwnRecords: the writer does not write records of this node that a new map has already, because the load balancer may
// have changed an entry since.
func TestNewMapWithOwnRecords(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k v packet 0")
	r.local(Accepted, second, "update l v packet 0")
	r.write()
	r.refill()
	r.newMap(Unchanged, 2*second, "k", "v")
	if got := r.write(); got != "l" {
		t.Errorf("written: got %q, want only the record that the map lacks", got)
	}
}

// TestReadOfANewMapIsNoWrite: the entry of an adopted record in a new map may be a copy. The record does not get the time of the read.
func TestReadOfANewMapIsNoWrite(t *testing.T) {
	r := newRig(t)
	r.load(Accepted, "k", "v")
	r.adopt()
	r.tab.Update(func(tx *Tx) { tx.Refill() })
	r.writer = r.tab.NewCursor(0)
	r.tab.Update(func(tx *Tx) {
		var read Reading
		tx.BeginReading(&read)
		tx.LoadNewMap(&Change{Key: pad("k", keySize), Value: pad("v", valueSize), Time: 5 * second, Read: &read}, true)
		tx.EndReading(&read)
	})
	r.want("k", "v v2 a100")
	r.remote(Accepted, 6*second, other, 1000, "k", "w")
}
