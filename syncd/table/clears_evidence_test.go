package table

import (
	"fmt"
	"testing"
	"time"
)

// ownedByOther creates n records of another node that has left. The kernel map has their entries.
func (r clearRig) ownedByOther(n int) {
	r.Helper()
	for i := range n {
		r.remote(Accepted, startTime, other, Version(startTime+int64(i)), fmt.Sprintf("k%d", i), "v")
	}
	r.write()
	r.setGone("c", true)
	r.takeRereads()
}

// smallLRU makes the map an LRU map with room for all records.
func smallLRU(o *Options) { o.LRU, o.MaxEntries = true, 4000 }

// TestClearAfterAHandover: deletes of entries that a drained node has handed over do not replicate, so these entries do not
// count as left. A clear of the entries that were written since is detected.
func TestClearAfterAHandover(t *testing.T) {
	for _, old := range []int{0, 1000} {
		r := newClearRig(t, old)
		r.beginHandover()
		r.create(old, old+150, idle)
		r.clear(0, old+150, idle+second, young)
		r.settle(idle+2*second, idle+7*second, nil)
		r.wantLive(old+150, 150, 1)
	}
}

// TestHandoverWhileDeletesWait: a delete waits while the node completes a drain. Its record is kept from then on, whether the
// waiting ends, or a reread or a further event shows that the entry is absent.
func TestHandoverWhileDeletesWait(t *testing.T) {
	r := newClearRig(t, 1000)
	r.clear(0, 3, idle, collector)
	r.beginHandover()
	r.local(Unchanged, idle+second, "delete k0 - reread 0")
	r.local(Unchanged, idle+second, "delete k1 - syscall 0")
	r.settle(idle+second, idle+6*second, nil)
	r.wantLive(1000, 0, 0)
	r.endHandover(idle+7*second, 3)
}

// TestClearWhileDeletesAreHeld: while deletes of other nodes' entries are undone in spite of Options.DeletesAny, these entries
// do not count as left.
func TestClearWhileDeletesAreHeld(t *testing.T) {
	for _, held := range []bool{false, true} {
		r := newClearRig(t, 200, deletesAny)
		for i := 200; i < 1200; i++ {
			r.remote(Accepted, startTime, peer, Version(startTime+int64(i)), fmt.Sprintf("k%d", i), "v")
		}
		r.write()
		r.takeRereads()
		r.tab.Update(func(tx *Tx) { tx.HoldDeletes(held); tx.SetCaller(young); tx.AdvanceClock(idle) })
		for i := range 1200 {
			r.tab.Update(func(tx *Tx) { tx.Local(parseChange(r, fmt.Sprintf("delete k%d - syscall 0", i), idle+int64(i))) })
		}
		r.settle(idle+second, idle+6*second, nil)
		if s := r.tab.Stats(); s.Live != 1200 {
			t.Errorf("deletes held %t: got %d live, want 1200", held, s.Live)
		}
	}
}

// TestRereadOfAWaitingDelete: in an LRU map, a reread finds an entry absent whose delete waits. The entry does not count as
// evicted: it counts once, and with Options.EvictionDeletes its delete waits on.
func TestRereadOfAWaitingDelete(t *testing.T) {
	for name, c := range map[string]struct {
		opt                 []func(*Options)
		records             int
		live, dirty, clears int
	}{
		"a half":                          {records: 1000, live: 500},
		"a half, LRU":                     {opt: []func(*Options){smallLRU}, records: 1000, live: 500},
		"all, eviction deletes":           {opt: []func(*Options){evictions}, records: 500, live: 500, dirty: 500, clears: 1},
		"all, eviction deletes, LRU":      {opt: []func(*Options){evictions, smallLRU}, records: 500, live: 500, dirty: 500, clears: 1},
		"a third, eviction deletes, LRU ": {opt: []func(*Options){evictions, smallLRU}, records: 1500, live: 1000},
	} {
		t.Run(name, func(t *testing.T) {
			r := newClearRig(t, 0, c.opt...)
			r.ownedByOther(c.records)
			r.clear(0, 500, idle, young)
			r.rereadAbsent(idle + 1000)
			r.settle(idle+second, idle+6*second, nil)
			r.wantLive(c.live, c.dirty, uint64(c.clears))
		})
	}
}

// TestEvictionOfAWaitingDelete: an eviction after a delete shows that the entry was written meanwhile. The delete does not wait
// on. An eviction before it has no meaning.
func TestEvictionOfAWaitingDelete(t *testing.T) {
	r := newClearRig(t, 200, smallLRU)
	r.clear(0, 2, idle, collector)
	r.local(Ignored, idle-second, "evict k0 - packet 0")
	r.local(Ignored, idle+second, "evict k1 - packet 0")
	if s := r.tab.Stats(); s.HeldDeletes != 1 {
		t.Errorf("deletes that wait: got %d, want 1", s.HeldDeletes)
	}
	r.settle(idle+second, idle+6*second, nil)
	r.want("k0", fmt.Sprintf("- v%d a100", idle))
	r.want("k1", fmt.Sprintf("v v%d a100", startTime+1))
}

// TestDeleteOfAnEvictedEntry: a scan may find that an entry is absent before the event of the delete arrives. It then counts as
// deleted only.
func TestDeleteOfAnEvictedEntry(t *testing.T) {
	r := newClearRig(t, 200, smallLRU)
	for i := range 200 {
		r.local(Ignored, idle+second, fmt.Sprintf("delete k%d - reread 0", i))
	}
	r.clear(0, 200, idle+2*second, young)
	r.settle(idle+3*second, idle+8*second, nil)
	r.wantLive(200, 200, 1)
}

// TestEntriesWrittenAgainHideNoClear: entries of a clear that the load balancer writes again at once do not count as left.
func TestEntriesWrittenAgainHideNoClear(t *testing.T) {
	r := newClearRig(t, 200)
	r.clear(0, 200, idle, young)
	for i := range 40 {
		r.local(Accepted, idle+second/2+int64(i), fmt.Sprintf("update k%d w process 0", i))
	}
	r.settle(idle+second, idle+5*second, nil)
	r.wantLive(200, 160, 1)
}

// TestAbsentEntriesAreNoDeletes: entries that the map lacked at the start, and about which syncd has yet to decide, do not count
// as deletes of a process.
func TestAbsentEntriesAreNoDeletes(t *testing.T) {
	r := newClearRig(t, 0, sameMap)
	r.tab.Update(func(tx *Tx) { tx.DelayAbsent(); tx.BeginLoad() })
	for i := range 5 {
		r.load(Accepted, fmt.Sprint("k", i), "v")
	}
	r.tab.Update(func(tx *Tx) { tx.EndLoad() })
	for i := range 200 {
		r.remote(Accepted, startTime, older, Version(startTime-int64(time.Hour)-int64(i)), fmt.Sprint("k", i), "v")
	}
	r.adopt()
	r.clear(0, 1, startTime+second, young)
	r.settle(startTime+2*second, startTime+6*second, nil)
	if s := r.tab.Stats(); s.Live != 199 || s.Clears != 0 || s.HeldDeletes != 195 {
		t.Fatalf("got %d live, %d clears, %d waiting, want 199, 0 and 195", s.Live, s.Clears, s.HeldDeletes)
	}
	r.tab.Update(func(tx *Tx) { tx.DecideAbsent() })
	r.settle(startTime+7*second, startTime+7*second, nil)
	r.wantLive(199, 195, 1)
}

// TestAbsentEntryIsDeletedLater: a reread finds an entry that the load has skipped. A later delete of it is one of the process,
// and does not wait for the decision about absent entries.
func TestAbsentEntryIsDeletedLater(t *testing.T) {
	r := newClearRig(t, 200, sameMap)
	r.tab.Update(func(tx *Tx) { tx.DelayAbsent(); tx.BeginLoad(); tx.EndLoad() })
	r.remote(Accepted, startTime, older, Version(startTime), "k", "v")
	r.local(Unchanged, startTime+second, "update k v reread 0")
	r.local(Ignored, idle, "delete k - syscall 0")
	r.settle(idle+second, idle+6*second, nil)
	r.want("k", fmt.Sprintf("- v%d a100", idle))
	r.wantLive(200, 0, 0)
}
