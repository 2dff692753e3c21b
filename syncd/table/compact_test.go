package table

import (
	"runtime"
	"testing"
	"time"
)

// compact has the hand pass all that it can pass at a time, and demands a number of compact tombstones.
func (r *rig) compact(now int64, want int) {
	r.Helper()
	r.tab.Update(func(*Tx) {
		for r.tab.compact(now, 9) {
		}
	})
	if n := r.tab.log.n; n != want {
		r.Fatalf("%d compact tombstones, want %d", n, want)
	}
	checkInvariants(r, r.tab)
}

// bury makes compact tombstones of keys: written and deleted by the data plane at a second each,
// from the first on.
func (r *rig) bury(at int64, keys ...string) {
	r.Helper()
	for i, k := range keys {
		now := at + int64(i)*second
		r.local(Accepted, now, "update "+k+" v packet 0")
		r.local(Accepted, now, "delete "+k+" - packet 0")
	}
	r.write()
	r.compact(at+int64(len(keys))*second, r.tab.log.n+len(keys))
}

// TestCompactTombstoneSize: a settled tombstone costs its key and 24 bytes, index and chunks
// included, and its slot is free for another record.
func TestCompactTombstoneSize(t *testing.T) {
	const n = 200_000
	tab := newFlows(t)
	writer := tab.NewCursor(0)
	var f flows
	now := int64(1)
	bury := func(from, to int) {
		for i := from; i < to; i += 100 {
			tab.Update(func(tx *Tx) {
				for k := i; k < i+100; k++ {
					now += 1000
					f.local(tx, k, k, now)
					tx.Local(&Change{Key: f.key[:], Op: OpDelete, Time: now + 1})
				}
				var rec Record
				for tx.NextDirty(writer, &rec) {
					tx.Applied(rec.Ref, rec.Version, nil)
				}
				tx.SetApplied(writer.Position())
				for tx.Expire(now+compactAfter+1, 1000) {
				}
			})
		}
	}
	bury(0, 1000)
	before, used := heap(), tab.Stats()
	bury(1000, 1000+n)
	st := tab.Stats()
	if st.Tombstones != n+1000 || tab.used != 0 || tab.allocated > 200 {
		t.Fatalf("%d tombstones, %d slots of %d in use", st.Tombstones, tab.used, tab.allocated)
	}
	each, said := float64(heap()-before)/n, float64(st.MemoryBytes-used.MemoryBytes)/n
	t.Logf("%.1f bytes a tombstone, %.1f above its key; said %.1f", each, each-flowKey, said)
	if each > flowKey+24 || said > flowKey+24 || said < each-1 || said > each+1 {
		t.Errorf("%.1f bytes a tombstone, said %.1f, want at most %d", each, said, flowKey+24)
	}
	// The log gives back what it does not need.
	tab.Update(func(tx *Tx) {
		for tx.Expire(now+int64(DefaultTombstoneTTL)+second, 1000) {
		}
	})
	if st = tab.Stats(); st.Tombstones != 0 || st.MemoryBytes > used.MemoryBytes+n {
		t.Errorf("%d tombstones, %d bytes, %d at the beginning", st.Tombstones, st.MemoryBytes, used.MemoryBytes)
	}
	checkInvariants(t, tab)
	runtime.KeepAlive(tab)
}

// TestCompactTombstonesAreRead: readers from each position meet compact tombstones in their place,
// and Touch, Remove and a repeated delete move them to the tail.
func TestCompactTombstonesAreRead(t *testing.T) {
	r := newRig(t)
	r.tab.log.shift = 1
	r.local(Accepted, second, "update a v packet 0")
	r.bury(second, "b", "c", "d")
	r.local(Accepted, 4*second, "update e v packet 0")
	r.bury(5*second, "f")
	r.local(Accepted, 6*second, "update c w packet 0")
	r.want("c", "w v6000000000 a100")
	r.wantOrder("abdefc")
	var rec Record
	for from := range r.tab.Stats().Head + 1 {
		c := r.tab.NewCursor(from)
		last := from
		r.tab.View(func(tx *Tx) {
			for _, k := range []string{"a", "b", "d", "e", "f", "c"} {
				var want Record
				if tx.Get(pad(k, simKey), &want); want.Position <= from {
					continue
				}
				if !tx.Next(c, &rec) || text(rec.Key) != k || rec.Position != want.Position || rec.Delete != want.Delete ||
					rec.Version != want.Version || c.Position() != rec.Position || rec.Position <= last {
					t.Fatalf("from %d: %+v, want %+v", from, rec, want)
				}
				last = rec.Position
			}
			if tx.Next(c, &rec) || c.Position() != tx.Head() {
				t.Fatalf("from %d: %+v at the end", from, rec)
			}
		})
		c.Close()
	}
	// A delete that comes late says that the key was there once more.
	r.local(Unchanged, 8*second, "delete d - packet 0")
	r.wantOrder("abefcd")
	c := r.tab.NewCursor(0)
	defer c.Close()
	r.tab.Update(func(tx *Tx) {
		for tx.Touch("a", c, 2) {
		}
	})
	r.wantOrder("abefcd")
	if r.tab.log.n != 0 {
		t.Errorf("%d compact tombstones after Touch", r.tab.log.n)
	}
}

// TestCompactTombstonesAreForgotten: at the end of their lifetime, when they are acknowledged,
// and for room. The floor is that of the forgotten ones.
func TestCompactTombstonesAreForgotten(t *testing.T) {
	r := newRig(t, func(o *Options) { o.TombstoneGrace, o.TombstoneTTL, o.MaxTombstones = 5*time.Second, time.Minute, 4 })
	r.tab.log.shift = 1
	r.bury(second, "a", "b", "c", "d") // tombstones at 2, 4, 6 and 8
	r.expire(59*second, 9)
	r.acknowledge(4)
	r.expire(7*second-1, 9)
	r.wantOrder("bcd")
	r.expire(7*second, 9)
	r.wantOrder("cd")
	r.expire(100*second-40*second-1, 1)
	r.wantOrder("cd")
	r.tab.Update((*Tx).BeginLoad)
	r.acknowledge(9)
	r.expire(62*second, 9)
	r.wantOrder("cd") // while the map is read
	r.tab.Update((*Tx).EndLoad)
	r.tab.Update(func(tx *Tx) { tx.BeginScan(); tx.EndScan(99) })
	r.acknowledge(7)
	r.expire(62*second, 9)
	r.wantOrder("d")
	if st := r.tab.Stats(); st.Floor != 6 || st.Acknowledged != 3 || st.Expired != 0 || st.Tombstones != 1 {
		t.Errorf("%+v", st)
	}
	r.acknowledge(0)
	r.expire(64*second-1, 9)
	r.wantOrder("d")
	r.expire(64*second, 9)
	r.wantOrder("")
	if st := r.tab.Stats(); st.Floor != 8 || st.Expired != 1 || st.Tombstones != 0 {
		t.Errorf("%+v", st)
	}
	// The oldest make room, compact or not.
	r.bury(100*second, "e", "f", "g")
	for i, want := range []string{"efgh", "fghi", "ghij", "hijk"} {
		k := string(rune('h' + i))
		r.local(Accepted, 110*second, "update "+k+" v packet 0")
		r.local(Accepted, 110*second, "delete "+k+" - packet 0")
		r.wantOrder(want)
	}
	if st := r.tab.Stats(); st.Floor != 14 || st.ExpiredEarly != 3 {
		t.Errorf("%+v", st)
	}
}

// TestHandWaits: a tombstone is compact once it is settled. A tombstone that is still open after the time for
// which acknowledged ones are kept stays in its slot.
func TestHandWaits(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k v packet 0")
	r.local(Accepted, second, "delete k - packet 0")
	r.remote(Accepted, second, peer, 1000, "l", "v")
	r.remote(Accepted, second, peer, 2000, "l", "-") // to be written
	r.local(Accepted, second, "update m v packet 0")
	r.local(Accepted, second, "delete m - packet 0")
	r.compact(2*second-1, 0)
	r.compact(2*second, 0) // the writer has not been there
	r.tab.Update(func(tx *Tx) { tx.Reread(pad("m", simKey)) })
	r.write()
	r.compact(2*second-1, 0)
	r.compact(2*second, 2)
	r.compact(6*second-1, 2)
	r.compact(6*second, 2)
	r.want("m", "- v1000000001 a100")
	if m := r.tab.stats; m.Tombstones != 3 || r.tab.tombs.len() != 1 {
		t.Errorf("%d tombstones, %d in the queue", m.Tombstones, r.tab.tombs.len())
	}
	r.rechecks()
	r.local(Unchanged, 7*second, "delete m - reread 0")
	r.compact(9*second, 2) // the hand has passed it
	r.expire(7*second+int64(DefaultTombstoneTTL), 9)
	r.wantOrder("")
}

// TestCompactTombstoneHasNoCPU: events of the moment of the delete have no order with it.
func TestCompactTombstoneHasNoCPU(t *testing.T) {
	r := newRig(t)
	r.bury(second, "k")
	r.local(Accepted, second+sameMoment, "update k v packet 0")
	r.wantRechecks("k")
	r.bury(5*second, "l")
	r.local(Accepted, 5*second+sameMoment+1, "update l v packet 0")
	r.wantRechecks("")
}

// TestCompactTombstonesFill: they count as records, keep their owners' ids, and make room.
func TestCompactTombstonesFill(t *testing.T) {
	r := newRig(t, room(3))
	r.remote(Accepted, second, peer, 1000, "k", "v")
	r.remote(Accepted, second, peer, 2000, "k", "-")
	r.write()
	r.compact(3*second, 1)
	r.tab.View((*Tx).ReclaimOwners)
	r.want("k", "- v2000 b100")
	r.local(Accepted, 3*second, "update l v packet 0")
	r.local(Accepted, 3*second, "update m v packet 0")
	r.want("k", "- v2000 b100")
	r.local(Accepted, 3*second, "update n v packet 0")
	r.want("k", "unknown")
	r.local(Refused, 3*second, "update o v packet 0")
	r.tab.View((*Tx).ReclaimOwners)
	r.tab.View(func(tx *Tx) {
		tx.Owners(func(o Owner) {
			if o == peer {
				t.Error("the owner of no record has an id")
			}
		})
	})
}
