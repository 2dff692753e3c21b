package table

import (
	"fmt"
	"testing"
	"time"
)

// TestCallerOfABatch: a process clears the map by batch deletes, of which hooks report the keys. Another process deletes an entry
// before the rereads arrive. The clear counts as that of the first process.
func TestCallerOfABatch(t *testing.T) {
	for _, between := range []bool{false, true} {
		r := newClearRig(t, 1000)
		r.tab.Update(func(tx *Tx) {
			tx.AdvanceClock(idle)
			tx.SetCaller(young)
			for i := range 999 {
				tx.RequestRereadOfDelete(pad(fmt.Sprintf("k%d", i), keySize))
			}
			if between {
				tx.SetCaller(collector)
				tx.Local(parseChange(r, "delete k999 - syscall 0", idle))
			}
		})
		r.rereadAbsent(idle + 1000)
		r.settle(idle+second, idle+6*second, nil)
		var latest Clear
		r.tab.View(func(tx *Tx) { latest = tx.LatestClear() })
		if s := r.tab.Stats(); s.Live != 1000 || latest.Caller != young {
			t.Errorf("other process between %t: got %d live, caller %+v, want 1000 and %+v", between, s.Live, latest.Caller, young)
		}
	}
}

// rereadAbsent finds the keys of all requested rereads absent.
func (r clearRig) rereadAbsent(at int64) {
	r.tab.Update(func(tx *Tx) {
		buf := make([]byte, keySize)
		for tx.TakeRereads(buf) == 1 {
			tx.Local(&Change{Key: buf, Op: OpDelete, Time: at, Context: ContextReread})
		}
	})
}

// TestCallerOfALateDelete: the event of a delete arrives late, and a reread decides. The delete counts as that of the process of
// the event. An absence that no hook has reported has no process.
func TestCallerOfALateDelete(t *testing.T) {
	r := newClearRig(t, 200)
	r.local(Accepted, idle, "update k0 w process 0")
	r.tab.Update(func(tx *Tx) { tx.SetCaller(young) })
	r.local(Stale, idle-second/10, "delete k0 - syscall 1")
	r.tab.Update(func(tx *Tx) { tx.SetCaller(collector) })
	r.rereadAbsent(idle + 1000)
	r.local(Ignored, idle, "delete k1 - reread 0")
	x := &r.tab.clears
	for _, want := range []Caller{young, {}} {
		if e := x.pop(); x.callers[e.caller].Caller != want {
			t.Errorf("process of a delete: got %+v, want %+v", x.callers[e.caller].Caller, want)
		}
	}
}

// TestSeenCallers: the table distinguishes the latest processes whose deletes a reread has yet to decide.
func TestSeenCallers(t *testing.T) {
	var x seenCallers
	by := func(id int) Caller { return Caller{Process: Process{ID: uint32(id), Start: 1}} }
	for round := range 2 {
		for i := range maxSeenCallers {
			if at := x.index(by(i + 1)); at != uint8(i+1) {
				t.Fatalf("round %d: index of process %d: got %d, want %d", round, i, at, i+1)
			}
		}
	}
	older := by(maxSeenCallers)
	older.Age = time.Hour
	if at := x.index(older); x.list[at-1].Age != time.Hour {
		t.Errorf("age of the latest process: got %s, want %s", x.list[at-1].Age, time.Hour)
	}
	if at := x.index(Caller{}); at != 0 {
		t.Errorf("unknown process: got %d, want 0", at)
	}
	if at, next := x.index(by(1000)), x.index(by(1001)); at != 1 || next != 2 || x.index(by(3)) != 3 {
		t.Errorf("further processes: got %d and %d, want 1 and 2, and the others as before", at, next)
	}
}

// TestLateDeleteBeforeAClear: the event of a packet's delete arrives after an entry was created again, and while the reread waits,
// a process clears the map. The entry is restored with the others, unless the delete may be the later one.
func TestLateDeleteBeforeAClear(t *testing.T) {
	for late, want := range map[int64]Outcome{2 * second: Ignored, second / 10: Accepted} {
		r := newClearRig(t, 200)
		r.local(Accepted, idle, "update k0 w packet 0")
		r.local(Stale, idle-late, "delete k0 - packet 1")
		r.clear(1, 200, idle+second, collector)
		r.local(want, idle+second+1000, "delete k0 - reread 0")
	}
}

// TestEarlyDeleteOfAPacket: two CPUs write and delete an entry at the same moment, and the event of the delete arrives first. In
// between, a reread finds no entry, or the table forgets the tombstone. After the event of the write, another reread finds no entry.
// The delete is that of the packet, also while deletes by bpf(2) may belong to a clear.
func TestEarlyDeleteOfAPacket(t *testing.T) {
	key := pad("k0", keySize)
	for name, between := range map[string]func(r clearRig){
		"reread": func(r clearRig) {
			r.tab.Update(func(tx *Tx) { tx.RequestReread(key) })
			r.rereadAbsent(idle + second)
		},
		"forgotten": func(r clearRig) {
			r.tab.Update(func(tx *Tx) {
				_, s := tx.t.find(key)
				tx.t.forget(s)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newClearRig(t, 200)
			r.clear(1, 2, idle, collector)
			r.local(Accepted, idle+second, "delete k0 - packet 0")
			between(r)
			r.local(Accepted, idle+second, "update k0 w packet 1")
			r.local(Accepted, idle+second+2_000_000, "delete k0 - reread 0")
		})
	}
}

// TestClearWaitsForALateDelete: the event of a packet's delete arrives after its absence has counted as a part of a clear. The
// clear restores no entry before the reread has decided.
func TestClearWaitsForALateDelete(t *testing.T) {
	r := newClearRig(t, 200)
	r.clear(0, 199, idle, young)
	r.local(Accepted, idle+second, "update k0 w process 0")
	r.local(Ignored, idle+2*second, "delete k0 - reread 0")
	r.local(Stale, idle+second-1, "delete k0 - packet 0")
	r.settle(idle+2*second, idle+10*second, nil)
	r.local(Accepted, idle+10*second, "delete k0 - reread 0")
	r.settle(idle+11*second, idle+12*second, nil)
	r.wantLive(199, 198, 1)
}

// TestClearAfterADeleteOfAPacket: a packet deletes an entry, and it is written again. A reread is still to come when the load balancer
// clears its map. The absence is that of the clear, because bpf(2) has found the entry.
func TestClearAfterADeleteOfAPacket(t *testing.T) {
	r := newClearRig(t, 200)
	r.local(Accepted, idle, "delete k0 - packet 0")
	r.local(Accepted, idle+500_000, "update k0 w packet 1")
	r.local(Unchanged, idle+second, "update k0 w reread 0")
	r.clear(0, 200, idle+3*second, young)
	r.local(Unchanged, idle+5*second, "delete k0 - reread 0")
	r.settle(idle+5*second, idle+15*second, nil)
	r.wantLive(200, 200, 1)
}
