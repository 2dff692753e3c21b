package table

import (
	"fmt"
	"testing"
)

// TestHeldDeleteEnds: a change of the key by the data plane, or a newer record of a peer, decides about a delete that waits.
func TestHeldDeleteEnds(t *testing.T) {
	r := newClearRig(t, 1000)
	r.clear(0, 8, idle, collector)
	r.local(Unchanged, idle+second, "update k0 v process 0")
	r.local(Accepted, idle+second, "update k1 w process 0")
	r.local(Accepted, idle+second, "delete k2 - packet 0")
	r.remote(Accepted, idle+second, peer, Version(idle+second), "k3", "p")
	r.remote(Accepted, idle+second, peer, Version(idle+second), "k4", "-")
	r.remote(Stale, idle+second, peer, 5, "k5", "old")
	r.local(Stale, idle, "update k6 w process 1") // older than the delete
	r.want("k3", fmt.Sprintf("p v%d b100 dirty", idle+second))
	r.settle(idle+second, idle+4*second, nil)
	r.want("k0", fmt.Sprintf("v v%d a100", startTime))
	r.want("k1", fmt.Sprintf("w v%d a100", idle+second))
	r.want("k2", fmt.Sprintf("- v%d a100", idle+second))
	r.want("k4", fmt.Sprintf("- v%d b100", idle+second))
	r.want("k5", fmt.Sprintf("- v%d a100", idle+5))
	r.want("k6", fmt.Sprintf("- v%d a100", idle+6))
	r.want("k7", fmt.Sprintf("- v%d a100", idle+7))
}

// TestDeleteAfterReread: a scan may find that a key is absent before the event of the data plane's delete arrives. The delete
// does not wait then, although its event is older than the reread.
func TestDeleteAfterReread(t *testing.T) {
	r := newClearRig(t, 1000)
	r.local(Ignored, idle, "delete k0 - reread 0")
	r.local(Ignored, idle, "delete k1 - reread 0")
	r.local(Accepted, idle-second/10, "delete k0 - packet 0")
	r.want("k0", fmt.Sprintf("- v%d a100", idle-second/10))
	r.local(Stale, startTime-second, "delete k1 - packet 0") // older than the entry
	r.want("k1", fmt.Sprintf("v v%d a100", startTime+1))
	if s := r.tab.Stats(); s.HeldDeletes != 1 {
		t.Fatalf("waiting deletes: got %d, want 1", s.HeldDeletes)
	}
}

// TestDeleteWaitsOnWithAnotherVersion: a record may get another version while its delete waits, by Withdraw or because the table
// defends it. The delete is entered above that version.
func TestDeleteWaitsOnWithAnotherVersion(t *testing.T) {
	r := newClearRig(t, 200)
	r.clear(0, 1, later, collector)
	r.tab.Update(func(tx *Tx) {
		_, s := tx.t.find(pad("k0", keySize))
		tx.t.stamp(s, Version(later+second), selfID)
	})
	if s := r.tab.Stats(); s.HeldDeletes != 1 {
		t.Fatalf("deletes that wait: got %d, want 1", s.HeldDeletes)
	}
	r.settle(later+second, later+5*second, nil)
	r.wantLive(199, 0, 0)
	r.want("k0", fmt.Sprintf("- v%d a100", later+second+1))
}

// TestWriteAboutTheTimeOfAClear: the load balancer writes an entry of its clear again. The event of the write has an earlier
// time than that of the delete, within the margin. The entry is not restored before a reread has decided.
func TestWriteAboutTheTimeOfAClear(t *testing.T) {
	r := newClearRig(t, 200)
	r.clear(0, 200, later, young)
	r.local(Stale, later, "update k7 w packet 1")
	r.local(Stale, later, "update k8 w packet 1")
	r.settle(later+second, later+5*second, nil)
	if s := r.tab.Stats(); s.HeldDeletes != 193 || s.Dirty != 7 {
		t.Fatalf("before the reread: got %d waiting, %d dirty, want 193 and 7", s.HeldDeletes, s.Dirty)
	}
	r.local(Stale, later, "delete k7 - reread 0") // from before the write
	r.settle(later+6*second, later+6*second, nil)
	r.wantRereads("k7k8")
	r.local(Accepted, later+7*second, "update k7 w reread 0")
	r.local(Unchanged, later+7*second, "delete k8 - reread 0")
	r.settle(later+8*second, later+8*second, nil)
	r.wantLive(200, 199, 1)
	r.want("k7", fmt.Sprintf("w v%d a100", later+7*second))
}

// TestPacketDeleteBeforeTheCreate: a packet deletes an entry that another CPU has just created. The event of the delete arrives
// first. The reread does not find the key. This delete is not part of a clear and does not wait.
func TestPacketDeleteBeforeTheCreate(t *testing.T) {
	for context, want := range map[string]string{"packet": fmt.Sprintf("- v%d a100", later+1000), "syscall": fmt.Sprintf("v v%d a100", later)} {
		r := newClearRig(t, 300)
		r.local(Unchanged, later+100, "delete new - "+context+" 1")
		r.local(Accepted, later, "update new v packet 0")
		r.wantRereads("new")
		r.tab.Update(func(tx *Tx) {
			tx.Local(&Change{Key: pad("new", keySize), Op: OpDelete, Time: later + 1000, Context: ContextReread})
		})
		r.want("new", want)
	}
}

// TestPacketDeleteBeforeAChange: a packet deletes an entry that another CPU has just changed. The event of the delete arrives
// first. The reread does not find the key. This delete does not wait either, but a later one by bpf(2) does.
func TestPacketDeleteBeforeAChange(t *testing.T) {
	for _, again := range []bool{false, true} {
		r := newClearRig(t, 300)
		r.local(Accepted, later, "delete k0 - packet 1")
		r.local(Accepted, later+100, "update k0 w packet 0")
		r.wantRereads("k0")
		want := fmt.Sprintf("- v%d a100", later+1000)
		if again {
			r.local(Accepted, later+second, "update k0 x packet 0")
			want = fmt.Sprintf("x v%d a100", later+second)
		}
		at := later + 1000
		if again {
			at += second
		}
		r.tab.Update(func(tx *Tx) {
			tx.Local(&Change{Key: pad("k0", keySize), Op: OpDelete, Time: at, Context: ContextReread})
		})
		r.want("k0", want)
	}
}

// TestPacketDeleteAfterTheRestore: a scan finds that a packet has deleted an entry during a clear. The event of the delete
// arrives after syncd has decided to restore the entries of the clear, or after it has restored them.
func TestPacketDeleteAfterTheRestore(t *testing.T) {
	for _, written := range []bool{false, true} {
		r := newClearRig(t, 300)
		r.create(300, 301, later)
		r.clear(0, 299, later+second, young)
		r.tab.Update(func(tx *Tx) {
			tx.Local(&Change{Key: pad("k300", keySize), Op: OpDelete, Time: later + 2*second, Context: ContextReread})
		})
		r.settle(later+2*second, later+10*second, nil)
		r.wantLive(301, 300, 1)
		if written {
			r.write()
			r.takeRereads()
		}
		at := later + 2*second - second/100
		r.local(Accepted, at, "delete k300 - packet 0")
		r.wantRereads("k300")
		want := fmt.Sprintf("- v%d a100", at)
		if written {
			want += " dirty" // the map has the entry that syncd wrote
			r.tab.Update(func(tx *Tx) {
				tx.Local(&Change{Key: pad("k300", keySize), Value: pad("v", valueSize), Time: later + 11*second, Context: ContextReread})
			})
		}
		r.want("k300", want)
	}
}

// TestPacketDeleteBeforeAPeersRecord: the event of a packet's delete arrives late, so that a reread decides. A record of a peer
// replaces the entry first. A collector then deletes the new entry by bpf(2), which does not end the session of the peer.
func TestPacketDeleteBeforeAPeersRecord(t *testing.T) {
	r := newClearRig(t, 200)
	r.local(Accepted, later, "update k v packet 0")
	r.local(Stale, later-second/2000, "delete k - packet 1")
	r.remote(Accepted, later+second, peer, Version(later+second), "k", "p")
	r.write()
	r.wantRereads("k")
	r.local(Restored, later+2*second, "delete k - reread 0")
	r.want("k", fmt.Sprintf("p v%d b100 dirty", later+second))
}

// TestPacketDeleteBeforeANewMap: the load balancer replaces its map before a reread has decided about such a delete. The new map
// then evicts the entry.
func TestPacketDeleteBeforeANewMap(t *testing.T) {
	r := newClearRig(t, 200, lru(8, 8))
	r.local(Accepted, later, "update k v packet 0")
	r.local(Stale, later-second/2000, "delete k - packet 1")
	r.refill()
	r.write()
	r.takeRereads()
	r.local(Ignored, later+2*second, "delete k - reread 0")
	r.want("k", fmt.Sprintf("v v%d a100", later))
}

// TestReleaseIsOfOneClear: the release of a clear that was restored does not concern the next one, of which the deletes wait.
func TestReleaseIsOfOneClear(t *testing.T) {
	r := newClearRig(t, 300)
	r.clear(0, 300, later, young)
	r.settle(later+second, later+40*second, nil)
	r.create(300, 600, later+50*second)
	r.clear(300, 600, later+90*second, young)
	r.tab.Update(func(tx *Tx) { tx.DecideClear(true, later+91*second, 0, 1000) })
	r.settle(later+91*second, later+130*second, nil)
	r.wantLive(300, 600, 2)
}

// TestReleaseOfTheLatestClear: a release concerns the latest clear only. The entries of the one before stay, whether an operator has
// decided that, before or after the identity of the map was removed, or not.
func TestReleaseOfTheLatestClear(t *testing.T) {
	seen := func(t *testing.T) clearRig {
		r := newClearRig(t, 200)
		r.clear(0, 200, later, young)
		return r
	}
	atStart := func(t *testing.T) clearRig {
		r := clearRig{newRig(t, holdClears, sameMap)}
		for i := range 200 {
			r.remote(Accepted, startTime, older, Version(startTime), fmt.Sprint("k", i), "v")
		}
		return r
	}
	keep := func(r clearRig) { r.tab.Update(func(tx *Tx) { tx.DecideClear(false, later+6*second, 0, 10000) }) }
	nothing := func(clearRig) {}
	for name, c := range map[string]struct {
		begin         func(*testing.T) clearRig
		before, after func(clearRig)
	}{
		"seen, kept before":         {seen, keep, nothing},
		"seen, kept after":          {seen, nothing, keep},
		"seen, undecided":           {seen, nothing, nothing},
		"at the start, kept before": {atStart, keep, nothing},
		"at the start, undecided":   {atStart, nothing, nothing},
	} {
		t.Run(name, func(t *testing.T) {
			r := c.begin(t)
			r.tab.Update(func(tx *Tx) {
				for tx.SettleDeletes(later+5*second, nil, 10) {
				}
				if _, awaited := tx.RestoresClear(); !awaited {
					t.Fatal("clear: got none that waits for the identity, want one")
				}
			})
			c.before(r)
			r.settle(later+6*second, later+6*second, nil)
			c.after(r)
			r.wantLive(200, 200, 1)
			r.write()
			r.takeRereads()
			n := 4600 // 95 % of the entries
			r.create(300, n, later+10*second)
			r.clear(300, n, later+100*second, young)
			r.settle(later+101*second, later+106*second, nil)
			r.tab.Update(func(tx *Tx) { tx.DecideClear(true, later+110*second, 0, 100_000) })
			if s := r.tab.Stats(); s.Live != 200 || s.Clears != 2 {
				t.Errorf("after the release: got %d live, %d clears, want the 200 entries of the first one, and 2", s.Live, s.Clears)
			}
		})
	}
}

// TestReleaseOfTwoClears: a second clear begins soon after the end of the first one, and no operator has decided about it. A release
// deletes the entries of both: an entry that the second one has left was restored after a delete, too.
func TestReleaseOfTwoClears(t *testing.T) {
	r := newClearRig(t, 200)
	r.clear(0, 200, later, young)
	r.settle(later+second, later+6*second, nil)
	r.wantLive(200, 200, 1)
	r.write()
	r.takeRereads()
	n := 4600 // 95 % of the entries
	r.create(300, n, later+10*second)
	r.clear(300, n, later+12*second, young)
	r.settle(later+13*second, later+16*second, nil)
	r.tab.Update(func(tx *Tx) { tx.DecideClear(true, later+17*second, 0, 100_000) })
	if s := r.tab.Stats(); s.Live != 0 || s.Clears != 2 {
		t.Errorf("after the release: got %d live, %d clears, want 0 and 2", s.Live, s.Clears)
	}
}

// TestReleaseAfterAPeersChange: a peer has taken over an entry of a clear, and this node receives that after the release. The entry
// stays.
func TestReleaseAfterAPeersChange(t *testing.T) {
	r := newClearRig(t, 200)
	r.clear(0, 200, later, young)
	r.settle(later+second, later+6*second, nil)
	r.write()
	r.tab.Update(func(tx *Tx) { tx.DecideClear(true, later+100*second, 0, 100_000) })
	r.want("k7", fmt.Sprintf("- v%d a100 dirty", startTime+8))
	r.remote(Accepted, later+101*second, peer, Version(later+50*second), "k7", "use")
}

// TestReleaseDeletesNoNewEntry: an operator releases a clear. The load balancer has written some entries again, which a reread
// has yet to decide, or a scan to find. The release does not delete them from the map.
func TestReleaseDeletesNoNewEntry(t *testing.T) {
	r := newClearRig(t, 200)
	r.clear(0, 200, later, young)
	r.local(Stale, later, "update k7 w packet 1")
	r.settle(later+second, later+2*second, nil)
	r.tab.Update(func(tx *Tx) { tx.DecideClear(true, later+3*second, 0, 1000) })
	r.wantLive(0, 0, 1)
	r.wantRereads("k7")
	r.local(Accepted, later+4*second, "update k7 w reread 0")
	r.local(Accepted, later+4*second, "update k8 v reread 0")
	r.want("k7", fmt.Sprintf("w v%d a100", later+4*second))
	r.want("k8", fmt.Sprintf("v v%d a100", later+4*second))
	r.want("k9", fmt.Sprintf("- v%d a100", later+9))
}

// TestWriteBeforeAbsenceIsDecided: an event shows a write before the merge of a record whose entry the map lacked at the start. The entry is
// not restored before a reread has decided.
func TestWriteBeforeAbsenceIsDecided(t *testing.T) {
	r := clearRig{newRig(t, holdClears, sameMap)}
	r.tab.Update(func(tx *Tx) { tx.BeginLoad(); tx.EndLoad() })
	for i := range 200 {
		r.remote(Accepted, startTime, older, Version(startTime-int64(200-i)), fmt.Sprintf("k%d", i), "v")
	}
	r.local(Stale, startTime-1, "update k7 w packet 1")
	r.adopt()
	r.settle(startTime+second, startTime+second, nil)
	r.local(Accepted, startTime+2*second, "update k7 w reread 0")
	r.settle(startTime+3*second, startTime+3*second, nil)
	r.wantLive(200, 199, 1)
	r.want("k7", fmt.Sprintf("w v%d a100", startTime+2*second))
}

// TestTwoRestores: the end of one clear does not end the restore of another one, which the start has found.
func TestTwoRestores(t *testing.T) {
	x := clears{active: true, ending: true, absentCleared: true, restoring: true, allowed: true}
	if x.endClear(); !x.restoring || !x.allowed {
		t.Errorf("after the clear: got restoring %t, allowed %t, want true and true", x.restoring, x.allowed)
	}
	x.absentCleared = false
	if x.endRestore(); x.restoring || x.allowed {
		t.Errorf("after both: got restoring %t, allowed %t, want false and false", x.restoring, x.allowed)
	}
}
