package table

import (
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
	// The same again, by the data plane, of a key of its own: nothing to tell.
	touch(Unchanged, 4, 30*second)
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
