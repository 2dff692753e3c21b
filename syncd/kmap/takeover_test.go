package kmap

import (
	"testing"
	"time"

	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// testUses shows no use of any entry, for idle, and misses if missed is set.
type testUses struct {
	idle   time.Duration
	missed bool
}

func (u *testUses) Idle([]byte) (time.Duration, bool) { return u.idle, false }
func (u *testUses) Advance()                          {}
func (u *testUses) Missed() bool                      { return u.missed }

// takeoverRig is a Syncer that the test runs by hand, with an entry of an owner that has left.
type takeoverRig struct {
	*syncFixture
	uses testUses
	now  int64
}

func newTakeoverRig(t *testing.T) *takeoverRig {
	t.Helper()
	r := &takeoverRig{now: time.Now().UnixNano()}
	tab := newTable(t, table.Options{TakeoverExpiry: time.Minute})
	m := openMap(t, newKernelMap(t, &ebpf.MapSpec{Type: ebpf.Hash, KeySize: testKey, ValueSize: testValue, MaxEntries: 100}), Options{})
	s, err := NewSyncer(tab, m, SyncerOptions{Now: func() int64 { return r.now }, Uses: &r.uses})
	if err != nil {
		t.Fatal(err)
	}
	r.syncFixture = &syncFixture{t: t, tab: tab, m: m, sync: s}
	s.cursor = tab.NewCursor(0)
	t.Cleanup(s.cursor.Close)
	tab.Update(func(tx *table.Tx) { r.peer = tx.Intern(table.Owner{Node: "there", Incarnation: 1}) })
	r.remote(0, 1, 1)
	if _, err := s.pass(); err != nil {
		t.Fatal(err)
	}
	tab.Update(func(tx *table.Tx) { tx.SetGone(map[string]bool{"there": true}) })
	r.now = time.Now().UnixNano() // not before the change of the entry
	r.advance(0)
	return r
}

// advance lets time pass at the intervals of upkeep, and scans the map each time. A pause follows.
func (r *takeoverRig) advance(d time.Duration) { r.advanceAndPause(d, 0) }

func (r *takeoverRig) advanceAndPause(d, pause time.Duration) {
	r.t.Helper()
	for ; d > 0; d -= time.Second {
		r.step(time.Second)
	}
	r.step(pause)
}

func (r *takeoverRig) step(d time.Duration) {
	r.t.Helper()
	r.now += d.Nanoseconds()
	r.uses.idle += d
	key, value := entry(0, 1, testKey, testValue)
	r.tab.Update(func(tx *table.Tx) {
		tx.BeginScan(r.now)
		tx.Scanned(&table.Change{Key: key, Value: value, Time: r.now, Context: table.ContextReread})
		for tx.EndScan(100) {
		}
	})
	if err := r.sync.expireTakenOver(); err != nil {
		r.t.Fatal(err)
	}
}

// wantEntry fails the test unless the kernel map has the entry, or lacks it.
func (r *takeoverRig) wantEntry(when string, want bool) {
	r.t.Helper()
	var n int
	if err := r.m.ForEach(r.t.Context(), func(_, _ []byte) error { n++; return nil }); err != nil {
		r.t.Fatal(err)
	}
	if (n == 1) != want {
		r.t.Errorf("%s: got %d entries, want the entry: %t", when, n, want)
	}
}

// TestPausesPostponeExpiry: a pause of the machine or of syncd, a step of the clock, and a use that the hook may have missed
// start the time without a use again. The entry is gone from the kernel map when the pass over the entries ends.
func TestPausesPostponeExpiry(t *testing.T) {
	for _, tt := range []struct {
		name      string
		interrupt func(r *takeoverRig)
	}{
		{"pause", func(r *takeoverRig) { r.advanceAndPause(0, time.Hour) }},
		{"step back", func(r *takeoverRig) { r.advanceAndPause(0, -time.Minute) }},
		{"missed use", func(r *takeoverRig) {
			r.uses.missed = true
			r.advance(10 * time.Second) // at least one pass
			r.uses.missed = false
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newTakeoverRig(t)
			r.advance(50 * time.Second)
			r.wantEntry("before", true)
			tt.interrupt(r)
			r.advance(50 * time.Second)
			r.wantEntry("50 s later", true)
			r.advance(90 * time.Second) // after a step back, the record is a minute ahead
			r.wantEntry("140 s later", false)
		})
	}
	t.Run("none", func(t *testing.T) {
		r := newTakeoverRig(t)
		r.advance(70 * time.Second)
		r.wantEntry("70 s later", false)
	})
}
