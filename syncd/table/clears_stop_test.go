package table

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// stoppedRig is a table that has started after a clean stop with n entries of its own. The map has the first left ones, and fresh
// new ones.
func stoppedRig(t *testing.T, n, left, fresh int, change ...func(*Options)) clearRig {
	t.Helper()
	options := append([]func(*Options){lastStop(t, slices.Repeat([]Owner{older}, n)...), holdClears, sameMap}, change...)
	r := clearRig{newRig(t, options...)}
	r.tab.Update(func(tx *Tx) { tx.DelayAbsent(); tx.BeginLoad() })
	for i := range left {
		r.load(Accepted, fmt.Sprint("k", i), "v")
	}
	for i := range fresh {
		r.load(Accepted, fmt.Sprint("n", i), "v")
	}
	r.tab.Update(func(tx *Tx) { tx.AdvanceClock(int64(stopTime) + second); tx.EndLoad() })
	return r
}

// receive merges records of the last incarnation with the keys from to to-1 of a prefix. The outcome does not count.
func (r clearRig) receive(prefix string, from, to int, v Version) {
	for i := from; i < to; i++ {
		d := &Delta{Key: pad(fmt.Sprint(prefix, i), keySize), Value: pad("v", valueSize), Version: v + Version(i)}
		r.tab.Update(func(tx *Tx) {
			d.Owner = tx.Intern(older)
			tx.Remote(d, int64(stopTime)+second, RemoteOptions{})
		})
	}
}

// TestInventedRecordsAreNoClear: a member sends records of entries that this node has never had, in the name of its last
// incarnation. They do not count as a clear, nor do they make one of the few entries that have ended.
func TestInventedRecordsAreNoClear(t *testing.T) {
	for _, ended := range []int{0, 10, 90} {
		r := stoppedRig(t, 200, 200-ended, 0)
		r.receive("k", 200-ended, 200, stopTime)
		r.receive("i", 0, 5000, stopTime)
		r.decideAbsent(int64(stopTime) + 2*second)
		r.wantLive(200-ended, 0, 0)
	}
}

// TestInventedRecordsHideNoClear: the load balancer has cleared its map while syncd was stopped. Records that a member sends in the
// name of the last incarnation hide that neither for new entries, nor for entries that this node has never had.
func TestInventedRecordsHideNoClear(t *testing.T) {
	for name, invent := range map[string]func(r clearRig){
		"new entries":          func(r clearRig) { r.receive("n", 0, 100, stopTime-1000) },
		"new entries, adopted": func(r clearRig) { r.adopt(); r.receive("n", 0, 100, stopTime-1000) },
		"later ones":           func(r clearRig) { r.receive("i", 0, 20, stopTime+Version(second)/2) },
		"many idle ones":       func(r clearRig) { r.receive("i", 0, 5000, stopTime-Version(1000*second)) },
		"many idle, later ones": func(r clearRig) {
			r.receive("i", 0, 5000, stopTime-Version(1000*second))
			r.receive("j", 0, 100, stopTime+Version(second)/2)
		},
	} {
		for _, uses := range []func(*Options){func(*Options) {}, func(o *Options) { visibleUse(o); o.ClearUse = 100_000_000 }} {
			r := stoppedRig(t, 300, 0, 100, uses)
			r.receive("k", 0, 300, stopTime)
			invent(r)
			r.decideAbsent(int64(stopTime) + 2*second)
			if c := r.tab.Stats().Clears; c != 1 {
				t.Errorf("%s: got %d clears, want 1", name, c)
			}
		}
	}
}

// TestOpenEntriesOfTheStop: at a clean stop, the deletes of a clear wait, or all entries are being reread, and the load balancer clears
// its map after that. The next start has the proof that the entries were there.
func TestOpenEntriesOfTheStop(t *testing.T) {
	for name, open := range map[string]func(r clearRig){
		"waiting deletes": func(r clearRig) { r.clear(0, 300, later, young) },
		"rereads": func(r clearRig) {
			for i := range int64(300) {
				r.local(Accepted, startTime+i+1, fmt.Sprintf("update k%d w packet 1", i))
			}
		},
	} {
		t.Run(name, func(t *testing.T) { testOpenEntriesOfTheStop(t, open) })
	}
}

func testOpenEntriesOfTheStop(t *testing.T, open func(r clearRig)) {
	r := newClearRig(t, 300)
	open(r)
	var s Stop
	r.tab.View(func(tx *Tx) { s = tx.Stop(7) })
	if err := s.Check(); err != nil || s.Len() != 300 {
		t.Fatalf("records of the stop: got %d, error %v, want 300", s.Len(), err)
	}
	next := clearRig{newRig(t, holdClears, sameMap, func(o *Options) {
		o.Self, o.AdoptVersion, o.Stop = Owner{"a", 200}, RestoredVersions, s
	})}
	next.tab.Update(func(tx *Tx) { tx.DelayAbsent(); tx.BeginLoad() })
	next.load(Accepted, "k0", "v") // written again
	next.tab.Update(func(tx *Tx) { tx.AdvanceClock(later + second); tx.EndLoad() })
	for i := 1; i < 300; i++ {
		next.remote(Accepted, later+second, Owner{"a", 100}, Version(startTime+int64(i)), fmt.Sprint("k", i), "v")
	}
	next.decideAbsent(later + 2*second)
	next.want("k0", fmt.Sprintf("v v%d a200", RestoredVersions+1))
	next.wantLive(300, 299, 1)
}

// TestAbsentEntriesDuringADecision: a few entries have ended while syncd was stopped. While the decision waits for a reread of one of
// them, a late peer sends records of a clear. The decision does not cover these.
func TestAbsentEntriesDuringADecision(t *testing.T) {
	r := absentRig(t, 6, func(clearRig) {})
	r.takeRereads()
	r.local(Stale, startTime-1, "update k4 v process 0") // an old event
	r.decideAbsent(startTime + second)
	for i := 6; i < 306; i++ {
		r.remote(Accepted, startTime+second, older, Version(startTime-int64(i)), fmt.Sprint("k", i), "v")
	}
	r.remote(Accepted, startTime+second, older, Version(startTime), "k5", "w") // a later version
	r.local(Unchanged, startTime+2*second, "delete k4 - reread 0")
	r.settle(startTime+3*second, startTime+3*second, nil)
	if n := r.tab.Stats().Live; n != 301 {
		t.Errorf("live records after the decision: got %d, want the 301 late ones", n)
	}
	r.decideAbsent(startTime + 4*second)
	r.wantLive(301, 301, 1)
}

// TestInventedRecordsFillTheTable: a member invents records in the name of the last incarnation until no more are admitted. The
// genuine ones, which arrive later, are then refused. Without a decision, none of them is deleted.
func TestInventedRecordsFillTheTable(t *testing.T) {
	const own = 120
	r := stoppedRig(t, own, 0, 0, func(o *Options) { o.MaxEntries, o.MaxLive = own, 2*own })
	r.receive("i", 0, 4*own, stopTime)
	r.receive("k", 0, own, stopTime)
	s := r.tab.Stats()
	if s.Rejected == 0 {
		t.Fatal("rejected records: got 0, want some")
	}
	for i := range own {
		if state := r.state(fmt.Sprint("k", i)); strings.HasPrefix(state, "-") {
			t.Fatalf("record k%d: got %q, want no tombstone", i, state)
		}
	}
}
