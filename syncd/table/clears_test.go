package table

import (
	"fmt"
	"testing"
	"time"
)

const clearUse = 20 * time.Second

// holdClears sets Options.HoldClears.
func holdClears(o *Options) { o.HoldClears, o.ClearUse = true, clearUse }

// visibleUse makes uses of entries visible.
func visibleUse(o *Options) {
	o.Refresh, o.Significant = 10*time.Second, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0}
}

// wholeValues are the options of a map without volatile fields, and with a byte that is not replicated.
func wholeValues(o *Options) {
	visibleUse(o)
	o.Carried = o.Significant
}

// clearRig has n own entries, changed at startTime.
type clearRig struct{ *rig }

func newClearRig(t *testing.T, n int, change ...func(*Options)) clearRig {
	t.Helper()
	r := clearRig{newRig(t, append([]func(*Options){holdClears}, change...)...)}
	r.create(0, n, startTime)
	return r
}

func (r clearRig) create(from, to int, at int64) {
	r.Helper()
	for i := from; i < to; i++ {
		r.local(Accepted, at+int64(i), fmt.Sprintf("update k%d v process 0", i))
	}
}

// clear deletes entries by a process.
func (r clearRig) clear(from, to int, at int64, by Caller) {
	r.Helper()
	r.tab.Update(func(tx *Tx) { tx.SetCaller(by); tx.AdvanceClock(at) })
	for i := from; i < to; i++ {
		r.local(Ignored, at+int64(i), fmt.Sprintf("delete k%d - syscall 0", i))
	}
}

// settle is SettleDeletes once a second.
func (r clearRig) settle(from, to int64, ended func(Process) bool) {
	r.Helper()
	for now := from; now <= to; now += second {
		r.settleOnce(now, ended)
		checkInvariants(r, r.tab)
	}
}

func (r clearRig) wantLive(live, dirty int, clears uint64) {
	r.Helper()
	if s := r.tab.Stats(); s.Live != live || s.Dirty != dirty || s.Clears != clears || s.HeldDeletes != 0 {
		r.Fatalf("got %d live, %d dirty, %d waiting, %d clears, want %d live, %d dirty, none waiting, %d clears",
			s.Live, s.Dirty, s.HeldDeletes, s.Clears, live, dirty, clears)
	}
}

// later is long after the entries of a clearRig have changed. idle is just after that time.
const (
	idle  = startTime + int64(time.Hour)
	later = startTime + 5*second
)

var (
	young     = Caller{Process{7, 70}, time.Second}
	collector = Caller{Process{8, 80}, time.Hour}
)

// TestClearIsRestored: no delete of a clear is sent, whichever process makes it. The entries are restored.
func TestClearIsRestored(t *testing.T) {
	for name, c := range map[string]struct {
		at   int64
		by   Caller
		opt  []func(*Options)
		ends bool
	}{
		"young process, idle entries":                {at: idle, by: young},
		"young process, idle entries, whole values":  {at: idle, by: young, opt: []func(*Options){wholeValues}},
		"young process, visible use":                 {at: later, by: young, opt: []func(*Options){visibleUse}},
		"old process, entries in use":                {at: later, by: collector},
		"old process that ends":                      {at: idle, by: collector, ends: true},
		"unknown process, entries in use":            {at: later},
		"unknown process, idle entries, unseen uses": {at: idle},
	} {
		t.Run(name, func(t *testing.T) {
			r := newClearRig(t, 200, c.opt...)
			head := r.tab.Stats().Head
			r.clear(0, 198, c.at, c.by)
			if s := r.tab.Stats(); s.Head != head || s.HeldDeletes != 198 || s.Live != 200 {
				t.Fatalf("got position %d, %d waiting and %d live, want %d, 198 and 200", s.Head, s.HeldDeletes, s.Live, head)
			}
			r.settle(c.at+second, c.at+5*second, func(Process) bool { return c.ends })
			r.wantLive(200, 198, 1)
			var latest Clear
			r.tab.View(func(tx *Tx) { latest = tx.LatestClear() })
			if want := (Clear{At: c.at, Entries: 198, Restored: true, Caller: c.by}); latest != want {
				t.Errorf("latest clear: got %+v, want %+v", latest, want)
			}
		})
	}
}

// TestClearAwaitsTheIdentity: no entry of a clear is restored before the identity of the map is removed, by a clear that this
// table has seen, or one that the start has found.
func TestClearAwaitsTheIdentity(t *testing.T) {
	for name, begin := range map[string]func(t *testing.T) clearRig{
		"seen": func(t *testing.T) clearRig {
			r := newClearRig(t, 200)
			r.clear(0, 200, idle, young)
			return r
		},
		"found at the start": func(t *testing.T) clearRig {
			r := clearRig{newRig(t, holdClears, sameMap)}
			for i := range 200 {
				r.remote(Accepted, idle, older, Version(startTime), fmt.Sprint("k", i), "v")
			}
			return r
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := begin(t)
			settle := func(dirty int, restores, awaited bool) {
				t.Helper()
				r.tab.Update(func(tx *Tx) {
					for tx.SettleDeletes(idle+5*second, nil, 10) {
					}
					gotRestores, gotAwaited := tx.RestoresClear()
					if n := r.tab.stats.Dirty; n != dirty || gotRestores != restores || gotAwaited != awaited {
						t.Errorf("got %d dirty records, restoring %t, waiting %t, want %d, %t and %t", n, gotRestores, gotAwaited, dirty, restores, awaited)
					}
				})
			}
			r.tab.Update((*Tx).AllowRestore) // too early
			settle(0, true, true)
			settle(0, true, true)
			r.tab.Update((*Tx).AllowRestore)
			settle(200, false, false)
		})
	}
}

// TestDeleteAfterAClear: a delete that arrives after the clear has ended, and before its entries are restored, does not belong to it.
func TestDeleteAfterAClear(t *testing.T) {
	r := newClearRig(t, 300)
	r.clear(0, 298, idle, young)
	r.tab.Update(func(tx *Tx) {
		for tx.SettleDeletes(idle+5*second, nil, 10) {
		}
	})
	r.clear(298, 299, idle+6*second, collector)
	r.settle(idle+7*second, idle+12*second, nil)
	r.wantLive(299, 298, 1)
}

// TestCollectorIsNotHeld: the deletes of a collector are entered within 4 s, with the version of their time.
func TestCollectorIsNotHeld(t *testing.T) {
	for name, c := range map[string]struct {
		at      int64
		deletes int
		by      Caller
		opt     []func(*Options)
	}{
		"90 % at once":                       {at: idle, deletes: 900, by: collector},
		"90 % at once, short timeout":        {at: later, deletes: 900, by: collector},
		"90 % at once, by a new process":     {at: later, deletes: 900, by: young},
		"90 % at once, by unknown":           {at: later, deletes: 900},
		"all, idle":                          {at: idle, deletes: 1000, by: collector},
		"all, idle, by a new process":        {at: idle, deletes: 1000, by: young, opt: []func(*Options){visibleUse}},
		"all, idle, found by a scan":         {at: idle, deletes: 1000, opt: []func(*Options){visibleUse}},
		"fewer than the entries of a clear ": {at: later, deletes: 99, by: young},
	} {
		t.Run(name, func(t *testing.T) {
			r := newClearRig(t, 1000, c.opt...)
			r.clear(0, c.deletes, c.at, c.by)
			r.settle(c.at+second, c.at+4*second, nil)
			r.wantLive(1000-c.deletes, 0, 0)
			r.want("k7", fmt.Sprintf("- v%d a100", c.at+7))
		})
	}
}

// TestDecisionHoldsForAllDueDeletes: the deletes of a collector are entered in several calls. The last ones are of entries
// in use. By themselves, they do not count as a clear.
func TestDecisionHoldsForAllDueDeletes(t *testing.T) {
	r := newClearRig(t, 2000)
	for i := 1850; i < 2000; i++ {
		r.local(Accepted, idle-5*second+int64(i), fmt.Sprintf("update k%d w process 0", i))
	}
	r.clear(0, 2000, idle, collector)
	r.settle(idle+second, idle+4*second, nil)
	r.wantLive(0, 0, 0)
}

// TestNewEntriesHideNoClear: entries that the load balancer writes after its clear do not count as left out.
func TestNewEntriesHideNoClear(t *testing.T) {
	r := newClearRig(t, 200)
	r.clear(0, 200, idle, young)
	r.create(200, 400, idle+second)
	r.settle(idle+second, idle+5*second, nil)
	r.wantLive(400, 200, 1)
}

// TestLongClearIsRestored: a clear takes up to 3 s until it has deleted enough entries, and may go on then.
func TestLongClearIsRestored(t *testing.T) {
	r := newClearRig(t, 1000)
	for i := range 10 {
		at := idle + int64(i)*second/3
		r.clear(100*i, 100*i+100, at, young)
		r.settle(at, at, nil)
	}
	r.settle(idle+4*second, idle+8*second, nil)
	r.wantLive(1000, 1000, 1)
}

// TestClearsOfOthersEntries: a standby's clear counts this node's entries and those of departed owners. Entries of live
// peers are restored as before.
func TestClearsOfOthersEntries(t *testing.T) {
	r := newClearRig(t, 100)
	for i := 100; i < 400; i++ {
		from := peer
		if i >= 200 {
			from = other
		}
		r.remote(Accepted, startTime, from, Version(startTime+int64(i)), fmt.Sprintf("k%d", i), "v")
	}
	r.write()
	r.tab.Update(func(tx *Tx) {
		tx.SetGone(map[string]bool{"c": true})
		for tx.TakeRereads(make([]byte, 800)) > 0 {
		}
		tx.SetCaller(young)
	})
	for i := range 400 {
		r.tab.Update(func(tx *Tx) { tx.Local(parseChange(r, fmt.Sprintf("delete k%d - syscall 0", i), idle+int64(i))) })
	}
	if s := r.tab.Stats(); s.HeldDeletes != 300 || s.Restored != 100 {
		t.Fatalf("got %d waiting and %d restored, want 300 and 100", s.HeldDeletes, s.Restored)
	}
	r.write()
	r.settle(idle+second, idle+5*second, nil)
	r.wantLive(400, 300, 1)
}

// TestRepeatedClear: a process that goes on and deletes the restored entries again means it. A clear by another process, such
// as one at each start, does not count as intended, nor does one by a process that ends.
func TestRepeatedClear(t *testing.T) {
	for name, c := range map[string]struct {
		by    Caller
		ended bool
		live  int
	}{
		"same process":    {by: young, live: 0},
		"same, and ended": {by: young, ended: true, live: 200},
		"another process": {by: Caller{Process{7, 71}, time.Second}, live: 200},
	} {
		t.Run(name, func(t *testing.T) {
			r := newClearRig(t, 200)
			r.clear(0, 200, later, young)
			r.settle(later+second, later+5*second, nil)
			r.wantLive(200, 200, 1)
			r.write()
			at := later + 8*second
			r.tab.Update(func(tx *Tx) {
				for tx.TakeRereads(make([]byte, 800)) > 0 {
				}
			})
			r.clear(0, 200, at, c.by)
			r.settle(at+second, at+5*second, func(Process) bool { return c.ended })
			if s := r.tab.Stats(); s.Live != c.live || s.HeldDeletes != 0 {
				t.Fatalf("got %d live and %d waiting, want %d and 0", s.Live, s.HeldDeletes, c.live)
			}
		})
	}
}

// TestDecideClear: an operator releases a clear, before or after its end, or ends the problem.
func TestDecideClear(t *testing.T) {
	decide := func(r clearRig, release bool, now int64) (n int) {
		for next, more := uint32(0), true; more; more = next != 0 {
			r.tab.Update(func(tx *Tx) {
				var some int
				some, next = tx.DecideClear(release, now, next, 7)
				n += some
			})
		}
		return n
	}
	for _, after := range []int64{2, 6} {
		for _, release := range []bool{false, true} {
			r := newClearRig(t, 200)
			r.clear(0, 200, later, young)
			r.settle(later+second, later+after*second, nil)
			r.local(Accepted, later+after*second, "update k0 w process 0")
			if n := decide(r, release, later+7*second); n != 199 {
				t.Errorf("decided %d s after the clear: got %d entries, want 199", after, n)
			}
			r.settle(later+8*second, later+8*second, nil)
			want := 200
			if release {
				want = 1
			}
			if s := r.tab.Stats(); s.Live != want || s.HeldDeletes != 0 {
				t.Errorf("release %t after %d s: got %d live, %d waiting, want %d and 0", release, after, s.Live, s.HeldDeletes, want)
			}
		}
	}
}

// TestDeletesAfterARelease: the deletes of a clear that follow after the operator has released it are entered, too.
func TestDeletesAfterARelease(t *testing.T) {
	r := newClearRig(t, 300)
	r.clear(0, 290, later, young)
	r.settle(later+second, later+2*second, nil)
	r.tab.Update(func(tx *Tx) { tx.DecideClear(true, later+3*second, 0, 1000) })
	r.create(300, 600, later+3*second)
	r.clear(290, 300, later+4*second, young)
	r.settle(later+5*second, later+40*second, nil)
	r.wantLive(300, 0, 1)
}

// TestClearWhileStopped: nearly all entries of this node are gone when syncd starts again. They are restored. If a collector
// has deleted some of them, those deletes are entered.
func TestClearWhileStopped(t *testing.T) {
	for name, c := range map[string]struct {
		present, live, dirty int
		opt                  func(*Options)
		versions             int64 // between two records
	}{
		"clear":                         {present: 5, live: 200, dirty: 195},
		"collector":                     {present: 20, live: 20},
		"clear of entries in use":       {present: 0, live: 200, dirty: 200, opt: visibleUse},
		"collector of all, visible use": {present: 0, live: 0, opt: visibleUse, versions: int64(clearUse)},
	} {
		t.Run(name, func(t *testing.T) {
			options := []func(*Options){holdClears, sameMap}
			if c.opt != nil {
				options = append(options, c.opt)
			}
			r := clearRig{newRig(t, options...)}
			r.tab.Update(func(tx *Tx) { tx.BeginLoad() })
			for i := range c.present {
				r.load(Accepted, fmt.Sprintf("k%d", i), "v")
			}
			r.tab.Update(func(tx *Tx) { tx.EndLoad() })
			for i := range 200 {
				r.remote(Accepted, startTime, older, Version(startTime-int64(200-i)*max(c.versions, 1)), fmt.Sprintf("k%d", i), "v")
			}
			r.remote(Stale, startTime, older, 7, "k199", "older")
			r.settle(startTime, startTime+5*second, nil)
			if s := r.tab.Stats(); s.Live != 200 || s.Dirty != 0 {
				t.Fatalf("before the end of the initial sync: got %d live, %d dirty, want 200 and 0", s.Live, s.Dirty)
			}
			r.adopt()
			r.settle(startTime+6*second, startTime+6*second, nil)
			clears := uint64(0)
			if c.dirty > 0 {
				clears = 1
			}
			r.wantLive(c.live, c.dirty, clears)
		})
	}
}

// TestAbsentEntryHasNewerDelete: after a restart, peers may have different records of a key that the map lacks. If the newest
// one is a delete or an expiry, the key stays deleted.
func TestAbsentEntryHasNewerDelete(t *testing.T) {
	r := clearRig{newRig(t, holdClears, sameMap)}
	r.tab.Update(func(tx *Tx) { tx.BeginLoad(); tx.EndLoad() })
	r.remote(Accepted, startTime, older, Version(startTime), "k0", "v")
	r.remote(Accepted, startTime, older, Version(startTime+1), "k0", "-")
	r.want("k0", fmt.Sprintf("- v%d a90", startTime+1))
	r.remote(Accepted, startTime, older, Version(startTime), "k1", "v")
	r.remote(Accepted, startTime, older, Version(startTime+1), "k1", "w")
	r.remote(Stale, startTime, older, Version(startTime), "k1", "v")
	r.adopt()
	r.settle(startTime+second, startTime+second, nil)
	r.want("k1", fmt.Sprintf("- v%d a100", startTime+2))
	r.wantLive(0, 0, 0)
}
