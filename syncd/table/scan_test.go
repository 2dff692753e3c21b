package table

import (
	"fmt"
	"testing"
	"time"
)

// scan scans the whole map, which holds the given pairs of key and value.
func (r *rig) scan(at int64, pairs ...string) {
	r.Helper()
	r.tab.Update(func(tx *Tx) {
		tx.BeginScan(0)
		for i := 0; i < len(pairs); i += 2 {
			tx.Scanned(&Change{
				Key: pad(pairs[i], keySize), Value: pad(pairs[i+1], valueSize), Time: at,
				Op: OpUpdate, Context: ContextReread,
			})
		}
		for tx.EndScan(1) {
		}
	})
}

func TestScanFindsUnreportedChanges(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k old packet 0")
	r.local(Accepted, second, "update l same packet 0")
	r.local(Accepted, second, "update m gone packet 0")
	r.scan(2*second, "k", "new", "l", "same", "n", "fresh")
	r.want("k", "new v2000000000 a100")
	r.want("l", "same v1000000000 a100")
	r.want("n", "fresh v2000000000 a100")
	r.wantRereads("m")
	if st := r.tab.Stats(); st.Scanned != 3 || st.ScanFound != 3 {
		t.Errorf("scanned %d and found %d, want 3 and 3", st.Scanned, st.ScanFound)
	}
	// The next scan starts with no key found.
	r.local(Accepted, 3*second, "delete m - reread 0")
	r.scan(4*second, "k", "new", "n", "fresh")
	r.wantRereads("l")
}

func TestScanIgnoresConcurrentChanges(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, 5, "w", "1")
	r.local(Accepted, second, "update back 1 packet 0")
	r.local(Accepted, second+1, "delete back - packet 0")
	r.tab.Update(func(tx *Tx) { tx.BeginScan(0) })
	r.write()
	r.local(Accepted, 2*second, "update c 1 packet 0")
	r.local(Accepted, 2*second, "update back 2 packet 0")
	r.tab.Update(func(tx *Tx) {
		for tx.EndScan(1) {
		}
	})
	r.wantRereads("")
}

// ScannedAll gives the same results as single calls of Scanned, for any mix of entries.
func TestScannedAllEqualsScanned(t *testing.T) {
	one, all := newRig(t, volatileTail), newRig(t, volatileTail)
	const n = 3*PrefetchBatch + 7
	var keys, values []byte
	for i := range n {
		key, value := fmt.Sprint("k", i), fmt.Sprint("v", i)
		for _, r := range []*rig{one, all} {
			switch i % 11 {
			case 5: // unknown key
			case 6:
				r.remote(Accepted, second, peer, 5, key, value) // dirty
			case 7:
				r.local(Accepted, second, "update "+key+" other packet 0")
			case 8:
				r.local(Accepted, second, "update "+key+" "+value+" packet 0")
				r.local(Accepted, second+1, "delete "+key+" - packet 0")
			case 9:
				r.load(Accepted, key, value)
			default:
				r.local(Accepted, second, "update "+key+" "+value+" packet 0")
			}
		}
		if i%11 != 10 { // deleted from the map
			keys, values = append(keys, pad(key, keySize)...), append(values, pad(value, valueSize)...)
		}
	}
	one.tab.Update(func(tx *Tx) {
		tx.BeginScan(0)
		for i := range len(keys) / keySize {
			tx.Scanned(&Change{
				Key: keys[i*keySize:][:keySize], Value: values[i*valueSize:][:valueSize],
				Time: 2 * second, Op: OpUpdate, Context: ContextReread,
			})
		}
		for tx.EndScan(100) {
		}
	})
	all.tab.Update(func(tx *Tx) {
		tx.BeginScan(0)
		tx.ScannedAll(nil, 2*second, keys, values)
		for tx.EndScan(100) {
		}
	})
	for i := range n {
		key := fmt.Sprint("k", i)
		if a, b := one.state(key), all.state(key); a != b {
			t.Errorf("%s: Scanned: %q, ScannedAll: %q, want equal results", key, a, b)
		}
	}
	a, b := one.tab.Stats(), all.tab.Stats()
	if a != b || a.ScanFound == 0 || a.PendingRereads == 0 {
		t.Errorf("Scanned:\n%+v\nScannedAll:\n%+v\nwant equal stats", a, b)
	}
	if a, b := one.takeRereads(), all.takeRereads(); a != b {
		t.Errorf("rereads: Scanned: %q, ScannedAll: %q, want equal keys", a, b)
	}
}

// An LRU map evicts an entry between its read and the comparison: this is not a delete.
func TestScanIgnoresConcurrentEviction(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k v packet 0")
	r.local(Ignored, 3*second, "evict k - packet 0")
	r.scan(2*second, "k", "v")
	r.scan(4 * second)
	r.wantRereads("")
	// The map holds the key again.
	r.scan(5*second, "k", "v")
	r.scan(6 * second)
	r.wantRereads("k")
}

// A scan enters a value that it read before a write of syncd, after the key was reread.
func TestStaleScanAfterReread(t *testing.T) {
	r := newRig(t, volatileTail, func(o *Options) { o.Refresh = 10 * time.Second })
	r.remote(Accepted, 1*second, peer, 1000, "k", "v1")
	r.write()
	r.tab.Update(func(tx *Tx) { tx.RequestReread(pad("k", keySize)) })
	r.remote(Accepted, 2*second, peer, 2000, "k", "v2")
	r.write()
	r.wantRereads("k")
	r.scan(2*second, "k", "v1")
	r.want("k", "v2 v2000 b100")
	r.wantRereads("")
	r.local(Unchanged, 4*second, "update k v2 reread 0")
	r.scan(5*second, "k", "v3")
	r.want("k", "v3 v5000000000 a100")
	// The same holds for a value without a significant change: the data plane has not changed the key.
	r.remote(Accepted, 6*second, peer, Version(6*second), "k", "v4\x00\x00\x00\x00\x00\x02")
	r.write()
	r.scan(7*second, "k", "v4\x00\x00\x00\x00\x00\x01")
	r.wantRereads("k")
	r.local(Unchanged, 8*second, "update k v4\x00\x00\x00\x00\x00\x02 reread 0")
	r.scan(20*second, "k", "v4\x00\x00\x00\x00\x00\x02")
	r.want("k", "v4\x00\x00\x00\x00\x00\x02 v6000000000 b100")
}

func TestRefreshIsSentOncePerInterval(t *testing.T) {
	r := newRig(t, volatileTail, func(o *Options) { o.Refresh = 10 * time.Second })
	touch := func(want Outcome, last byte, at int64) {
		t.Helper()
		r.do(want, func(tx *Tx) Outcome { return tx.Local(tail(t, last, at)) })
	}
	touch(Accepted, 1, second)
	touch(Unchanged, 2, 10*second)
	touch(Accepted, 3, 11*second)
	touch(Unchanged, 4, 12*second)
	// The last refresh was not sent: the next one is sent as soon as the interval is over.
	touch(Accepted, 4, 30*second)
	// The data plane writes the same value of its own key again: this is not sent.
	touch(Unchanged, 4, 50*second)
}

// remoteTail merges a record of a peer at a given time: key k with the given last byte.
func (r *rig) remoteTail(at int64, last byte) {
	r.Helper()
	r.do(Accepted, func(tx *Tx) Outcome {
		d := &Delta{Key: pad("k", keySize), Value: tail(r.T, last, 0).Value, Version: Version(at), Owner: tx.Intern(peer)}
		return tx.Remote(d, at, RemoteOptions{})
	})
}

// scanTail simulates a scan that compares a value read at a given time: key k with the given last
// byte.
func (r *rig) scanTail(want Outcome, at int64, last byte) {
	r.Helper()
	r.do(want, func(tx *Tx) Outcome {
		c := tail(r.T, last, at)
		c.Context = ContextReread
		tx.BeginScan(0)
		return tx.Scanned(c)
	})
}

// rereadTail enters a reread of key k at a given time, with the given last byte.
func (r *rig) rereadTail(want Outcome, at int64, last byte) {
	r.Helper()
	c := tail(r.T, last, at)
	c.Context = ContextReread
	r.do(want, func(tx *Tx) Outcome { return tx.Local(c) })
}

// wantTail checks that the peer has owned key k since the given time, and its last byte.
func (r *rig) wantTail(since int64, last byte) {
	r.Helper()
	r.tab.View(func(tx *Tx) {
		var rec Record
		tx.Get(pad("k", keySize), &rec)
		if got := rec.Value[valueSize-1]; tx.Owner(rec.Owner) != peer || rec.Version != Version(since) || got != last {
			r.Fatalf("owned by %v since %d, last byte %d; want %v, %d, %d", tx.Owner(rec.Owner), rec.Version, got, peer, since, last)
		}
	})
}

// A scan read a value before a write of syncd, so the map may no longer hold that value when the scan
// compares it. The comparison must not revert the change of the peer. It must not count as a use of
// the key by this node either. Otherwise the standby would own a session of the peer, and its expiry
// of the session would take effect.
func TestStaleScanDoesNotTakeOver(t *testing.T) {
	refreshed := func(t *testing.T) *rig {
		r := newRig(t, volatileTail, func(o *Options) { o.Refresh = 10 * time.Second })
		r.remoteTail(20*second, 1)
		r.write()
		r.scanTail(Unchanged, 21*second, 1)
		r.remoteTail(40*second, 2)
		r.write()
		return r
	}
	t.Run("compared after the write", func(t *testing.T) {
		r := refreshed(t)
		r.scanTail(Stale, 40*second+1, 1)
		r.wantTail(40*second, 2)
		r.wantRereads("k")
		r.rereadTail(Unchanged, 41*second, 2)
		r.scanTail(Unchanged, 60*second, 2)
		r.wantTail(40*second, 2)
		r.local(Restored, 61*second, "delete k - syscall 0")
	})
	t.Run("compared during a pending reread", func(t *testing.T) {
		r := refreshed(t)
		r.tab.Update(func(tx *Tx) { tx.RequestReread(pad("k", keySize)) })
		r.wantRereads("k")
		r.scanTail(Ignored, 40*second+1, 1)
		r.scanTail(Ignored, 60*second, 1)
		r.wantTail(40*second, 2)
		r.rereadTail(Unchanged, 60*second, 2)
		r.wantTail(40*second, 2)
	})
	t.Run("changed in place after the write", func(t *testing.T) {
		r := refreshed(t)
		r.scanTail(Stale, 60*second, 3)
		r.wantRereads("k")
		r.rereadTail(Accepted, 60*second+1, 3)
	})
}

func TestLocalWriteTakesOwnership(t *testing.T) {
	r := newRig(t, volatileTail, func(o *Options) { o.Refresh = 10 * time.Second })
	r.remote(Accepted, 20*second, peer, Version(20*second), "k", "v")
	r.write()
	// This is too soon after the change of the peer. Later writes are not.
	r.local(Unchanged, 25*second, "update k v packet 0")
	r.local(Unchanged, 31*second, "update k v reread 0")
	r.local(Accepted, 32*second, "update k v packet 0")
	r.want("k", "v v32000000000 a100")
	if got := r.tab.Stats().Refreshed; got != 1 {
		t.Errorf("refreshes: got %d, want 1", got)
	}
}
