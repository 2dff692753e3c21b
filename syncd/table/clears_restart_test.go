package table

import (
	"fmt"
	"testing"
	"time"
)

// absentRig is a table that has started with a map without the n entries of its last incarnation. load enters the
// entries of the map.
func absentRig(t *testing.T, n int, load func(clearRig), change ...func(*Options)) clearRig {
	t.Helper()
	r := clearRig{newRig(t, append([]func(*Options){holdClears, sameMap}, change...)...)}
	r.tab.Update(func(tx *Tx) { tx.DelayAbsent(); tx.BeginLoad() })
	load(r)
	r.tab.Update(func(tx *Tx) { tx.EndLoad() })
	for i := range n {
		r.remote(Accepted, startTime, older, Version(startTime-int64(i)), fmt.Sprint("k", i), "v")
	}
	return r
}

// decideAbsent ends the initial sync and decides about the absent entries.
func (r clearRig) decideAbsent(at int64) {
	r.adopt()
	r.tab.Update(func(tx *Tx) { tx.DecideAbsent() })
	r.settle(at, at, nil)
}

// TestNewEntriesHideNoClearWhileStopped: the load balancer has cleared its map while syncd was stopped. Entries that it has
// written since, before the start or after it, do not count as left.
func TestNewEntriesHideNoClearWhileStopped(t *testing.T) {
	for _, fresh := range []int{0, 20, 100} {
		for _, since := range []int{0, 60} {
			r := absentRig(t, 1000, func(r clearRig) {
				for i := range fresh {
					r.load(Accepted, fmt.Sprint("n", i), "v")
				}
			})
			r.create(2000, 2000+since, startTime+second)
			r.decideAbsent(startTime + 2*second)
			r.wantLive(1000+fresh+since, 1000, 1)
		}
	}
}

// TestAbsentEntriesAfterOlderDeletes: a peer that was cut off has sent former deletes of entries that were created again before the
// load balancer cleared its map. These entries belong to the clear, too.
func TestAbsentEntriesAfterOlderDeletes(t *testing.T) {
	r := absentRig(t, 200, func(r clearRig) {
		for i := range 100 {
			r.remote(Accepted, startTime-second, older, Version(startTime-second), fmt.Sprint("k", i), "-")
		}
	})
	r.decideAbsent(startTime + 2*second)
	r.wantLive(200, 200, 1)
}

// TestOlderDeleteInANewMap: a former delete arrives before the record, or in between. A new map is refilled, and so is a key that
// the map has never held.
func TestOlderDeleteInANewMap(t *testing.T) {
	for _, unheld := range []bool{false, true} {
		r := clearRig{newRig(t, holdClears, func(o *Options) { o.SameMap = unheld })}
		if unheld {
			r.tab.Update(func(tx *Tx) { tx.t.addUnheld(pad("k", keySize), 20) })
		}
		r.remote(Accepted, startTime, older, Version(startTime-second), "k", "-")
		r.remote(Accepted, startTime, older, Version(startTime), "k", "v")
		r.decideAbsent(startTime + 2*second)
		r.want("k", fmt.Sprintf("v v%d a90 dirty", startTime))
	}
	r := newRig(t, holdClears)
	r.remote(Accepted, startTime, older, Version(startTime), "k", "v")
	r.write()
	r.remote(Accepted, startTime, older, Version(startTime+1), "k", "-")
	r.remote(Accepted, startTime, older, Version(startTime+2), "k", "w")
	if keys := r.write(); keys != "k" {
		t.Errorf("written: got %q, want k", keys)
	}
}

// TestEntriesFromBeforeTheStopAreLeft: a collector has deleted entries while syncd was stopped. The others count as left: peers
// have records of them, although the load balancer may have changed them while syncd was stopped or after the start.
func TestEntriesFromBeforeTheStopAreLeft(t *testing.T) {
	for _, value := range []string{"v", "changed"} {
		for _, used := range []bool{false, true} {
			r := absentRig(t, 1000, func(r clearRig) {
				for i := range 100 {
					r.load(Accepted, fmt.Sprint("k", i), value)
				}
			})
			for i := 0; used && i < 100; i++ {
				r.local(Accepted, startTime+second+int64(i), fmt.Sprintf("update k%d used process 0", i))
			}
			r.decideAbsent(startTime + 2*second)
			r.wantLive(100, 0, 0)
		}
	}
}

// TestEntriesOfTheStopAreLeft: all nodes were stopped, and peers have not restored the records of all entries yet. Those of
// Options.Stop count as left, changed ones included.
func TestEntriesOfTheStopAreLeft(t *testing.T) {
	r := newLoaded(t, lastStop(t, older, older, peer), sameMap, holdClears)
	r.adopt()
	if n := r.tab.clears.found; n != 2 {
		t.Errorf("entries from before the stop: got %d, want 2", n)
	}
	r.remote(Accepted, int64(stopTime), older, restored(9), "k0", "v") // counts once
	if n := r.tab.clears.found; n != 2 {
		t.Errorf("after a record of one of them: got %d, want 2", n)
	}
}

// TestEntriesWithOlderRecordsAreLeft: the node was killed, and all nodes start again. A collector has deleted entries meanwhile.
// Peers restore the records after this node has adopted the other entries, or after the load balancer has used these. The records
// are older, and prove that the entries were there. Each entry counts once, although several peers have it.
func TestEntriesWithOlderRecordsAreLeft(t *testing.T) {
	for _, used := range []bool{false, true} {
		r := clearRig{newRig(t, restores, holdClears, sameMap)}
		r.tab.Update(func(tx *Tx) { tx.DelayAbsent(); tx.BeginLoad() })
		for i := range 20 {
			r.load(Accepted, fmt.Sprint("k", i), "v")
		}
		r.tab.Update(func(tx *Tx) { tx.EndLoad() })
		now := int64(stopTime)
		for i := 0; used && i < 20; i++ {
			r.local(Accepted, now+int64(i), fmt.Sprintf("update k%d used process 0", i))
		}
		r.adopt()
		for i := range 300 {
			for peers := range 3 {
				want := Accepted
				if i < 20 || peers > 0 {
					want = Stale
				}
				if i >= 20 && peers > 0 {
					want = Unchanged
				}
				r.remote(want, now+second, older, restored(i), fmt.Sprint("k", i), "v")
			}
		}
		if n := r.tab.clears.found; n != 20 {
			t.Errorf("used %t: entries from before the stop: got %d, want 20", used, n)
		}
		r.decideAbsent(now + 2*second)
		r.wantLive(20, 0, 0)
	}
}

// TestSkippedEntriesAreLeft: rereads find entries that the load has skipped. They count as left. Those with another value do not:
// the load balancer may have written them since it cleared the map.
func TestSkippedEntriesAreLeft(t *testing.T) {
	r := absentRig(t, 200, func(clearRig) {})
	for i := range 20 {
		r.local(Unchanged, startTime+second, fmt.Sprintf("update k%d v reread 0", i))
	}
	r.decideAbsent(startTime + 2*second)
	r.wantLive(20, 0, 0)

	r = absentRig(t, 200, func(clearRig) {})
	for i := range 20 {
		r.local(Accepted, startTime+second, fmt.Sprintf("update k%d w reread 0", i))
	}
	r.decideAbsent(startTime + 2*second)
	r.wantLive(200, 180, 1)
}

// TestAbsentEntriesOfADrainedNode: a node is drained before the decision about the entries that its map lacks since the start. Their
// absence ends no session then.
func TestAbsentEntriesOfADrainedNode(t *testing.T) {
	r := absentRig(t, 2, func(clearRig) {})
	r.adopt()
	r.beginHandover()
	r.decideAbsent(startTime + 2*second)
	r.wantLive(2, 0, 0)
	r.endHandover(startTime+3*second, 2)
}

// TestAbsenceInAnLRUMap: a reread confirms the absence of entries at the start, also in an LRU map where evictions are deletes.
// Absent entries wait for the decision.
func TestAbsenceInAnLRUMap(t *testing.T) {
	for _, isLRU := range []bool{false, true} {
		r := absentRig(t, 200, func(clearRig) {}, evictions, func(o *Options) { o.LRU, o.MaxEntries = isLRU, 4000 })
		r.rereadAbsent(startTime + second)
		r.decideAbsent(startTime + 2*second)
		r.wantLive(200, 200, 1)
	}
}

// TestRecordAheadHidesNoClearWhileStopped: the clock of another node has moved the versions of a few records ahead. The entries
// of all others do not count as idle because of these.
func TestRecordAheadHidesNoClearWhileStopped(t *testing.T) {
	for _, ahead := range []time.Duration{0, 50 * time.Second, time.Hour} {
		for _, start := range []time.Duration{time.Second, time.Minute, 2 * time.Hour} {
			r := absentRig(t, 200, func(clearRig) {}, visibleUse)
			r.remote(Accepted, startTime, older, Version(startTime+int64(ahead)), "ahead", "v")
			r.decideAbsent(startTime + int64(start))
			if s := r.tab.Stats(); s.Live != 201 {
				t.Errorf("one record %s ahead, start after %s: got %d of 201 entries, want all", ahead, start, s.Live)
			}
		}
	}
}

// steppedRig is a clearRig of 200 entries with visible uses, 10 minutes after a step of the wall clock.
func steppedRig(t *testing.T, step time.Duration) clearRig {
	r := newClearRig(t, 0, visibleUse, func(o *Options) { o.MaxSkew = 30 * time.Second })
	r.tab.Update(func(tx *Tx) {
		at := startTime - 600*second
		for more := tx.FollowClock(at, int64(step)); more; more = false {
			c := &Cursor{t: tx.t}
			c.moveTo(order)
			for tx.Withdraw(at, c, 100) {
			}
		}
	})
	r.create(0, 200, startTime)
	return r
}

// TestClearAfterAClockStep: versions follow the wall clock, and the times of events do not. After a step of the wall clock, a
// clear of entries in use is detected, and a collector's deletes of idle ones are entered.
func TestClearAfterAClockStep(t *testing.T) {
	for _, step := range []time.Duration{0, -time.Minute, -time.Hour, time.Minute, time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			r := steppedRig(t, step)
			r.clear(0, 200, later, young)
			r.settle(later+second, later+6*second, nil)
			r.wantLive(200, 200, 1)

			r = steppedRig(t, step)
			at := startTime + 300*second
			r.clear(0, 200, at, collector)
			r.settle(at+second, at+6*second, nil)
			r.wantLive(0, 0, 0)
		})
	}
}

// TestAdoptedEntriesAreLeft: all nodes were stopped, and this one was killed. It has adopted its entries when peers restore its
// records. These are older, and each entry counts once.
func TestAdoptedEntriesAreLeft(t *testing.T) {
	r := newLoaded(t, sameMap, holdClears, func(o *Options) { o.AdoptVersion = RestoredVersions })
	r.adopt()
	for range 2 {
		r.remote(Stale, int64(stopTime), older, restored(9), "k0", "v")
		r.remote(Stale, int64(stopTime), peer, restored(9), "k1", "v") // another node's
	}
	if n := r.tab.clears.found; n != 1 {
		t.Errorf("entries from before the stop: got %d, want 1", n)
	}
}

// TestAdoptedEntriesOfAKilledNodeAreLeft: all nodes were stopped, and this one was killed. Peers restore its records, but only send
// those of absent keys, because they have received the adopted entries before.
func TestAdoptedEntriesOfAKilledNodeAreLeft(t *testing.T) {
	for adopted, live := range map[int]int{100: 100, 2: 202} {
		r := absentRig(t, 0, func(r clearRig) {
			for i := range adopted {
				r.load(Accepted, fmt.Sprint("k", i), "v")
			}
		}, restores)
		r.adopt()
		for i := range 200 {
			r.remote(Accepted, int64(stopTime), older, restored(9), fmt.Sprint("a", i), "v")
		}
		r.decideAbsent(startTime + 2*second)
		if n := r.tab.Stats().Live; n != live {
			t.Errorf("%d adopted entries: got %d live records, want %d", adopted, n, live)
		}
	}
}
