package table

import (
	"fmt"
	"testing"
	"time"
)

// settleOnce is SettleDeletes until it has no more to do.
func (r clearRig) settleOnce(now int64, ended func(Process) bool) {
	for more := true; more; {
		r.tab.Update(func(tx *Tx) {
			tx.AdvanceClock(now)
			more = tx.SettleDeletes(now, ended, 10)
			if _, awaited := tx.RestoresClear(); awaited {
				tx.AllowRestore()
				more = true
			}
		})
	}
}

// busy is a map with n sessions that go on, and with short ones, which a control plane begins and ends by bpf(2).
type busy struct {
	clearRig
	n, begun, ended int
	now             int64
}

func newBusy(t *testing.T, n int) *busy {
	return &busy{clearRig: newClearRig(t, n), n: n, begun: n, ended: n, now: idle}
}

// run begins perSecond short sessions each second, for some seconds. Each lives for 0.4 s.
func (b *busy) run(seconds, perSecond int) {
	b.Helper()
	const part = second / 10
	step := perSecond / 10
	for i := range 10 * seconds {
		b.now += part
		for range step {
			b.local(Accepted, b.now+int64(b.begun), fmt.Sprintf("update k%d v process 0", b.begun))
			b.begun++
		}
		if due := b.begun - 4*step; due > b.ended {
			b.clear(b.ended, due, b.now+part/2, collector)
			b.ended = due
		}
		if i%10 == 9 {
			b.settleOnce(b.now+part-1, nil)
		}
	}
}

// TestBusyMapHasNoClear: sessions that began and ended while deletes wait do not look like a clear, however many they are: their
// deletes replicate within 5 s. A clear of the map is detected nevertheless.
func TestBusyMapHasNoClear(t *testing.T) {
	for _, perSecond := range []int{100, 1000, 10000} {
		t.Run(fmt.Sprint(perSecond, " a second"), func(t *testing.T) {
			b := newBusy(t, 500)
			b.run(6, perSecond)
			if s := b.tab.Stats(); s.Clears != 0 || s.HeldDeletes > 5*perSecond || s.Live != b.n+b.begun-b.ended+s.HeldDeletes {
				t.Errorf("got %d clears, %d waiting, %d live, want no clear, at most %d waiting and %d live besides",
					s.Clears, s.HeldDeletes, s.Live, 5*perSecond, b.n+b.begun-b.ended)
			}
			b.clear(0, b.n, b.now+second/10, young)
			b.clear(b.ended, b.begun, b.now+second/10, young)
			b.settle(b.now+second, b.now+8*second, nil)
			if s := b.tab.Stats(); s.Clears != 1 || s.Live < b.n {
				t.Errorf("after a clear: got %d clears, %d live, want one and at least %d", s.Clears, s.Live, b.n)
			}
		})
	}
}

// TestBusyMapForLong: a clear of entries that were written while some delete waited all the time is detected.
func TestBusyMapForLong(t *testing.T) {
	b := newBusy(t, 60)
	b.run(60, 100)
	const from, to = 100_000, 100_300
	b.create(from, to, b.now)
	b.run(30, 100)
	if s := b.tab.Stats(); s.Clears != 0 || s.HeldDeletes == 0 {
		t.Errorf("got %d clears, %d waiting, want none and some", s.Clears, s.HeldDeletes)
	}
	b.clear(0, b.n, b.now+second/10, young)
	b.clear(b.ended, b.begun, b.now+second/10, young)
	b.clear(from, to, b.now+second/10, young)
	b.settle(b.now+second, b.now+8*second, nil)
	if s := b.tab.Stats(); s.Clears != 1 || s.Live < b.n+to-from {
		t.Errorf("after a clear: got %d clears, %d live, want one and at least %d", s.Clears, s.Live, b.n+to-from)
	}
}

// TestClearDuringTraffic: traffic writes entries of a clear again, and the clear deletes some of them again. These count once.
func TestClearDuringTraffic(t *testing.T) {
	for _, again := range []int{0, 30} {
		r := newClearRig(t, 200)
		r.clear(0, 150, idle, young)
		for i := range 100 {
			r.local(Accepted, idle+second/10+int64(i), fmt.Sprintf("update k%d w process 0", i))
		}
		r.clear(0, again, idle+second/5, young)
		r.clear(150, 195, idle+second/5, young)
		r.settle(idle+second, idle+6*second, nil)
		s := r.tab.Stats()
		if want := uint64(again / 30); s.Clears != want {
			t.Errorf("%d entries deleted again, %d live: got %d clears, want %d", again, s.Live, s.Clears, want)
		}
	}
}

// TestClearAfterADelete: while a delete waits, the load balancer fills its map, and clears it. syncd settles deletes once a second,
// or after a pause.
func TestClearAfterADelete(t *testing.T) {
	for _, settled := range []bool{true, false} {
		r := newClearRig(t, 50)
		for i := range 100 { // of a live node
			r.remote(Accepted, startTime, peer, Version(startTime+int64(i)), fmt.Sprintf("p%d", i), "v")
		}
		r.write()
		r.takeRereads()
		r.clear(0, 1, idle, collector)
		if settled {
			r.settleOnce(idle+second/2, nil)
		}
		r.create(50, 1000, idle+6*second/10)
		r.clear(1, 1000, idle+13*second/10, young)
		if settled {
			r.settle(idle+3*second/2, idle+4*second, nil)
		}
		r.settle(idle+5*second, idle+12*second, nil)
		r.wantLive(1100, 1000, 1)
	}
}

// TestClearAfterTheEndOfAll: a collector ends all entries, which are idle. The clear that follows, of other entries, is detected.
func TestClearAfterTheEndOfAll(t *testing.T) {
	r := newClearRig(t, 6000)
	r.clear(0, 6000, idle, collector)
	r.create(10000, 10550, idle+3*second/10)
	for i := range 25 {
		at := idle + second + int64(i)*second/10
		r.clear(10000+i*22, 10022+i*22, at, young)
		r.settleOnce(at+second/20, nil)
	}
	r.settle(idle+5*second, idle+9*second, nil)
	if s := r.tab.Stats(); s.Live < 550 {
		t.Errorf("got %d clears, %d live, want at least 550", s.Clears, s.Live)
	}
}

// TestClearBeforeARestore: before the entries of a clear are restored, the load balancer fills its map, and clears it again.
func TestClearBeforeARestore(t *testing.T) {
	r := newClearRig(t, 200)
	r.clear(0, 200, idle, young)
	settle := func(now int64) {
		r.tab.Update(func(tx *Tx) {
			tx.AdvanceClock(now)
			for tx.SettleDeletes(now, nil, 10) {
			}
		})
	}
	settle(idle + 2*second)
	r.create(1000, 6000, idle+3*second)
	for i := range int64(4) {
		settle(idle + (4+i)*second)
	}
	r.clear(1000, 6000, idle+8*second, Caller{Process{9, 90}, time.Second})
	r.settle(idle+9*second, idle+16*second, nil)
	r.wantLive(5200, 5200, 2)
}

// TestEndOfOldSessions: a collector ends all sessions that were there before others which go on, beside many short ones.
func TestEndOfOldSessions(t *testing.T) {
	b := newBusy(t, 150)
	b.run(2, 1000)
	b.create(900_000, 900_600, b.now)
	b.run(4, 10000)
	b.clear(0, 150, b.now, Caller{})
	b.run(4, 10000)
	if s := b.tab.Stats(); s.Clears != 0 {
		t.Errorf("clears: got %d, of %d entries, want none", s.Clears, b.tab.clears.clear.Entries)
	}
}

// TestDepartureAfterAClear: after a clear, syncd has restored the entries of a peer. The peer leaves or hands them over before the
// decision, so that deletes of its entries would replicate from then on. They do not count as entries that the clear has left.
func TestDepartureAfterAClear(t *testing.T) {
	for name, depart := range map[string]func(clearRig){
		"the peer leaves":     func(r clearRig) { r.setGone("b", true) },
		"the peer is drained": func(r clearRig) { r.setHandover("b", Handover{peer.Incarnation, Version(later)}) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newClearRig(t, 150)
			for i := range 50 {
				r.remote(Accepted, startTime, peer, Version(startTime), fmt.Sprintf("p%d", i), "v")
			}
			r.write()
			r.clear(0, 150, later, collector)
			for i := range 50 {
				r.local(Restored, later+200+int64(i), fmt.Sprintf("delete p%d - syscall 0", i))
			}
			r.write()
			depart(r)
			r.settle(later+second, later+8*second, nil)
			r.wantLive(200, 150, 1)
		})
	}
}

// TestWithdrawnVersionsWhileDeletesWait: the wall clock is set right meanwhile, so that all records get other versions. The evidence
// stays.
func TestWithdrawnVersionsWhileDeletesWait(t *testing.T) {
	for name, c := range map[string]struct {
		again  bool
		clears uint64
		live   int
	}{"a clear": {false, 1, 200}, "an intended clear": {true, 1, 0}} {
		t.Run(name, func(t *testing.T) {
			r := newClearRig(t, 200, visibleUse, func(o *Options) { o.MaxSkew = time.Second })
			at := later
			if c.again {
				r.clear(0, 200, at, collector)
				r.settle(at+second, at+8*second, nil)
				r.write()
				at += 9 * second
				r.wantLive(200, 0, 1)
			}
			r.clear(0, 200, at, collector)
			r.tab.Update(func(tx *Tx) {
				if !tx.FollowClock(at+second, -int64(time.Hour)) {
					t.Fatal("clock of an hour ago: got no withdrawal, want one")
				}
			})
			cursor := r.tab.NewCursor(0)
			defer cursor.Close()
			r.tab.Update(func(tx *Tx) {
				for tx.Withdraw(at+second, cursor, 100) {
				}
			})
			r.settle(at+2*second, at+8*second, nil)
			if s := r.tab.Stats(); s.Clears != c.clears || s.Live != c.live {
				t.Errorf("got %d clears, %d live, want %d and %d", s.Clears, s.Live, c.clears, c.live)
			}
		})
	}
}
