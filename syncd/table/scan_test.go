package table

import (
	"fmt"
	"testing"
	"time"
)

// scan has the whole map scanned: pairs of key and value.
func (r *rig) scan(at int64, pairs ...string) {
	r.Helper()
	r.tab.Update(func(tx *Tx) {
		tx.BeginScan()
		for i := 0; i < len(pairs); i += 2 {
			tx.Scanned(&Change{
				Key: pad(pairs[i], simKey), Value: pad(pairs[i+1], simValue), Time: at,
				Op: OpUpdate, Context: ContextReread,
			})
		}
		for tx.EndScan(1) {
		}
	})
}

func TestScanFindsWhatNoHookSaw(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k old packet 0")
	r.local(Accepted, second, "update l same packet 0")
	r.local(Accepted, second, "update m gone packet 0")
	r.scan(2*second, "k", "new", "l", "same", "n", "fresh")
	r.want("k", "new v2000000000 a100")
	r.want("l", "same v1000000000 a100")
	r.want("n", "fresh v2000000000 a100")
	r.wantRechecks("m")
	if st := r.tab.Stats(); st.Scanned != 3 || st.ScanFound != 3 {
		t.Errorf("scanned %d and found %d, want 3 and 3", st.Scanned, st.ScanFound)
	}
	// The next lap begins with everything unmet.
	r.local(Accepted, 3*second, "delete m - reread 0")
	r.scan(4*second, "k", "new", "n", "fresh")
	r.wantRechecks("l")
}

func TestScanLeavesWhatHappensMeanwhile(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, 5, "w", "1")
	r.local(Accepted, second, "update back 1 packet 0")
	r.local(Accepted, second+1, "delete back - packet 0")
	r.tab.Update(func(tx *Tx) { tx.BeginScan() })
	r.write()
	r.local(Accepted, 2*second, "update c 1 packet 0")
	r.local(Accepted, 2*second, "update back 2 packet 0")
	r.tab.Update(func(tx *Tx) {
		for tx.EndScan(1) {
		}
	})
	r.wantRechecks("")
}

// Many at a time is the same as one at a time, whatever is among them.
func TestScannedAllFindsTheSame(t *testing.T) {
	one, all := newRig(t, volatileTail), newRig(t, volatileTail)
	const n = 3*WarmKeys + 7
	var keys, values []byte
	for i := range n {
		key, value := fmt.Sprint("k", i), fmt.Sprint("v", i)
		for _, r := range []*rig{one, all} {
			switch i % 11 {
			case 5: // unknown
			case 6:
				r.remote(Accepted, second, peer, 5, key, value) // to be written
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
		if i%11 != 10 { // gone
			keys, values = append(keys, pad(key, simKey)...), append(values, pad(value, simValue)...)
		}
	}
	one.tab.Update(func(tx *Tx) {
		tx.BeginScan()
		for i := range len(keys) / simKey {
			tx.Scanned(&Change{
				Key: keys[i*simKey:][:simKey], Value: values[i*simValue:][:simValue],
				Time: 2 * second, Op: OpUpdate, Context: ContextReread,
			})
		}
		for tx.EndScan(100) {
		}
	})
	all.tab.Update(func(tx *Tx) {
		tx.BeginScan()
		tx.ScannedAll(nil, 2*second, keys, values)
		for tx.EndScan(100) {
		}
	})
	for i := range n {
		key := fmt.Sprint("k", i)
		if a, b := one.state(key), all.state(key); a != b {
			t.Errorf("%s: %q one at a time, %q all at once", key, a, b)
		}
	}
	a, b := one.tab.Stats(), all.tab.Stats()
	if a != b || a.ScanFound == 0 || a.Rechecks == 0 {
		t.Errorf("one at a time:\n%+v\nall at once:\n%+v", a, b)
	}
	if a, b := one.rechecks(), all.rechecks(); a != b {
		t.Errorf("to be read again: %q and %q", a, b)
	}
}

// What an LRU map threw out between the read of its entry and the comparison is no delete.
func TestScanKnowsWhatWasEvictedMeanwhile(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k v packet 0")
	r.local(Ignored, 3*second, "evict k - packet 0")
	r.scan(2*second, "k", "v")
	r.scan(4 * second)
	r.wantRechecks("")
	// It is there again.
	r.scan(5*second, "k", "v")
	r.scan(6 * second)
	r.wantRechecks("k")
}

// A scan comes with what it read before the daemon's own write, after the key was read again.
func TestScanReadBeforeAWrite(t *testing.T) {
	r := newRig(t, volatileTail, func(o *Options) { o.Refresh = 10 * time.Second })
	r.remote(Accepted, 1*second, peer, 1000, "k", "v1")
	r.write()
	r.tab.Update(func(tx *Tx) { tx.Reread(pad("k", simKey)) })
	r.remote(Accepted, 2*second, peer, 2000, "k", "v2")
	r.write()
	r.wantRechecks("k")
	r.scan(2*second, "k", "v1")
	r.want("k", "v2 v2000 b100")
	r.wantRechecks("")
	r.local(Unchanged, 4*second, "update k v2 reread 0")
	r.scan(5*second, "k", "v3")
	r.want("k", "v3 v5000000000 a100")
	// The same, of what is no difference by itself: nobody has touched the key.
	r.remote(Accepted, 6*second, peer, Version(6*second), "k", "v4\x00\x00\x00\x00\x00\x02")
	r.write()
	r.scan(7*second, "k", "v4\x00\x00\x00\x00\x00\x01")
	r.wantRechecks("k")
	r.local(Unchanged, 8*second, "update k v4\x00\x00\x00\x00\x00\x02 reread 0")
	r.scan(20*second, "k", "v4\x00\x00\x00\x00\x00\x02")
	r.want("k", "v4\x00\x00\x00\x00\x00\x02 v6000000000 b100")
}

func TestRefreshIsToldOnceAnInterval(t *testing.T) {
	r := newRig(t, volatileTail, func(o *Options) { o.Refresh = 10 * time.Second })
	touch := func(want Outcome, last byte, at int64) {
		t.Helper()
		r.do(want, func(tx *Tx) Outcome { return tx.Local(tail(t, last, at)) })
	}
	touch(Accepted, 1, second)
	touch(Unchanged, 2, 10*second)
	touch(Accepted, 3, 11*second)
	touch(Unchanged, 4, 12*second)
	// The last one was not told: it is as soon as that may be.
	touch(Accepted, 4, 30*second)
	// The same again, by the data plane, of a key of its own: nothing to tell.
	touch(Unchanged, 4, 50*second)
}

// remoteTail merges what a peer told at a time: key k with a last byte.
func (r *rig) remoteTail(at int64, last byte) {
	r.Helper()
	r.do(Accepted, func(tx *Tx) Outcome {
		d := &Delta{Key: pad("k", simKey), Value: tail(r.T, last, 0).Value, Version: Version(at), Owner: tx.Intern(peer)}
		return tx.Remote(d, at, RemoteOptions{})
	})
}

// scanTail has a scan compare what it read at a time: key k with a last byte.
func (r *rig) scanTail(want Outcome, at int64, last byte) {
	r.Helper()
	r.do(want, func(tx *Tx) Outcome {
		c := tail(r.T, last, at)
		c.Context = ContextReread
		tx.BeginScan()
		return tx.Scanned(c)
	})
}

// rereadTail enters what key k was read to be at a time.
func (r *rig) rereadTail(want Outcome, at int64, last byte) {
	r.Helper()
	c := tail(r.T, last, at)
	c.Context = ContextReread
	r.do(want, func(tx *Tx) Outcome { return tx.Local(c) })
}

// wantTail demands that the peer owns key k since a time, and its last byte.
func (r *rig) wantTail(since int64, last byte) {
	r.Helper()
	r.tab.View(func(tx *Tx) {
		var rec Record
		tx.Get(pad("k", simKey), &rec)
		if got := rec.Value[simValue-1]; tx.Owner(rec.Owner) != peer || rec.Version != Version(since) || got != last {
			r.Fatalf("owned by %v since %d, last byte %d; want %v, %d, %d", tx.Owner(rec.Owner), rec.Version, got, peer, since, last)
		}
	})
}

// What a scan read before the daemon wrote is not what the map holds when it is
// compared: it neither undoes what the peer told, nor makes it look as if somebody here had
// used the key. The standby would own a session of the peer then, and its expiry would count.
func TestScanReadBeforeTheWrite(t *testing.T) {
	refreshed := func(t *testing.T) *rig {
		r := newRig(t, volatileTail, func(o *Options) { o.Refresh = 10 * time.Second })
		r.remoteTail(20*second, 1)
		r.write()
		r.scanTail(Unchanged, 21*second, 1)
		r.remoteTail(40*second, 2)
		r.write()
		return r
	}
	t.Run("compared after it", func(t *testing.T) {
		r := refreshed(t)
		r.scanTail(Stale, 40*second+1, 1)
		r.wantTail(40*second, 2)
		r.wantRechecks("k")
		r.rereadTail(Unchanged, 41*second, 2)
		r.scanTail(Unchanged, 60*second, 2)
		r.wantTail(40*second, 2)
		r.local(Restored, 61*second, "delete k - syscall 0")
	})
	t.Run("compared while the key is read again", func(t *testing.T) {
		r := refreshed(t)
		r.tab.Update(func(tx *Tx) { tx.Reread(pad("k", simKey)) })
		r.wantRechecks("k")
		r.scanTail(Ignored, 40*second+1, 1)
		r.scanTail(Ignored, 60*second, 1)
		r.wantTail(40*second, 2)
		r.rereadTail(Unchanged, 60*second, 2)
		r.wantTail(40*second, 2)
	})
	t.Run("changed in place since", func(t *testing.T) {
		r := refreshed(t)
		r.scanTail(Stale, 60*second, 3)
		r.wantRechecks("k")
		r.rereadTail(Accepted, 60*second+1, 3)
	})
}

func TestLastToucherOwns(t *testing.T) {
	r := newRig(t, volatileTail, func(o *Options) { o.Refresh = 10 * time.Second })
	r.remote(Accepted, 20*second, peer, Version(20*second), "k", "v")
	r.write()
	// Too soon after the peer's own change, and then not.
	r.local(Unchanged, 25*second, "update k v packet 0")
	r.local(Unchanged, 31*second, "update k v reread 0")
	r.local(Accepted, 32*second, "update k v packet 0")
	r.want("k", "v v32000000000 a100")
	if got := r.tab.Stats().Refreshed; got != 1 {
		t.Errorf("%d refreshes, want 1", got)
	}
}
