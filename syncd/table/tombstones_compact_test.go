package table

import (
	"runtime"
	"testing"
	"time"

	"mapsync/internal/race"
)

// compact compacts all settled tombstones and checks the number of compact tombstones.
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

// deleteAndCompact creates compact tombstones. The data plane writes and deletes one key per second,
// starting at the given time.
func (r *rig) deleteAndCompact(at int64, keys ...string) {
	r.Helper()
	for i, k := range keys {
		now := at + int64(i)*second
		r.local(Accepted, now, "update "+k+" v packet 0")
		r.local(Accepted, now, "delete "+k+" - packet 0")
	}
	r.write()
	r.compact(at+int64(len(keys))*second, r.tab.log.n+len(keys))
}

// TestCompactTombstoneSize: a settled tombstone uses the size of its key and 24 bytes, including index
// and chunks. Its slot is free for another record.
func TestCompactTombstoneSize(t *testing.T) {
	race.SkipSequential(t)
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
		t.Fatalf("tombstones: got %d, with %d slots of %d in use, want none in use", st.Tombstones, tab.used, tab.allocated)
	}
	each, reported := float64(heap()-before)/n, float64(st.MemoryBytes-used.MemoryBytes)/n
	t.Logf("%.1f bytes a tombstone, %.1f above its key; reported %.1f", each, each-flowKey, reported)
	if each > flowKey+24 || reported > flowKey+24 || reported < each-1 || reported > each+1 {
		t.Errorf("%.1f bytes a tombstone, reported %.1f, want at most %d", each, reported, flowKey+24)
	}
	// The log frees the memory that it does not need.
	tab.Update(func(tx *Tx) {
		for tx.Expire(now+int64(DefaultTombstoneTTL)+second, 1000) {
		}
	})
	if st = tab.Stats(); st.Tombstones != 0 || st.MemoryBytes > used.MemoryBytes+n {
		t.Errorf("tombstones: got %d, %d bytes, want 0 and about %d bytes", st.Tombstones, st.MemoryBytes, used.MemoryBytes)
	}
	checkInvariants(t, tab)
	runtime.KeepAlive(tab)
}

// TestCompactTombstonesAreRead: cursors from each position return compact tombstones at their
// positions. Touch, Remove and a repeated delete move them to the tail.
func TestCompactTombstonesAreRead(t *testing.T) {
	r := newRig(t)
	r.tab.log.shift = 1
	r.local(Accepted, second, "update a v packet 0")
	r.deleteAndCompact(second, "b", "c", "d")
	r.local(Accepted, 4*second, "update e v packet 0")
	r.deleteAndCompact(5*second, "f")
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
				if tx.Get(pad(k, keySize), &want); want.Position <= from {
					continue
				}
				if !tx.Next(c, &rec) || text(rec.Key) != k || rec.Position != want.Position || rec.Delete != want.Delete ||
					rec.Version != want.Version || c.Position() != rec.Position || rec.Position <= last {
					t.Fatalf("from %d: %+v, want %+v", from, rec, want)
				}
				last = rec.Position
			}
			if tx.Next(c, &rec) || c.Position() != tx.Head() {
				t.Fatalf("from %d: got %+v at the end, want no record", from, rec)
			}
		})
		c.Close()
	}
	// A late delete event shows that the key existed again.
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
		t.Errorf("compact tombstones after Touch: got %d, want 0", r.tab.log.n)
	}
}

// TestCompactTombstonesAreForgotten: the table forgets compact tombstones at the end of their
// lifetime, when they are acknowledged, and to make room. The floor is the highest position of the
// forgotten tombstones.
func TestCompactTombstonesAreForgotten(t *testing.T) {
	r := newRig(t, func(o *Options) { o.TombstoneGrace, o.TombstoneTTL, o.MaxTombstones = 5*time.Second, time.Minute, 4 })
	r.tab.log.shift = 1
	r.deleteAndCompact(second, "a", "b", "c", "d") // tombstones at 2, 4, 6 and 8
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
	r.wantOrder("cd") // while the map is being read
	r.tab.Update((*Tx).EndLoad)
	r.tab.Update(func(tx *Tx) { tx.BeginScan(0); tx.EndScan(99) })
	r.acknowledge(7)
	r.expire(62*second, 9)
	r.wantOrder("d")
	if st := r.tab.Stats(); st.Floor != 6 || st.Acknowledged != 3 || st.Expired != 0 || st.Tombstones != 1 {
		t.Errorf("stats: got %+v, want Floor 6, Acknowledged 3, Expired 0, Tombstones 1", st)
	}
	r.acknowledge(0)
	r.expire(64*second-1, 9)
	r.wantOrder("d")
	r.expire(64*second, 9)
	r.wantOrder("")
	if st := r.tab.Stats(); st.Floor != 8 || st.Expired != 1 || st.Tombstones != 0 {
		t.Errorf("stats: got %+v, want Floor 8, Expired 1, Tombstones 0", st)
	}
	// The oldest tombstones make room, whether they are compact or not.
	r.deleteAndCompact(100*second, "e", "f", "g")
	for i, want := range []string{"efgh", "fghi", "ghij", "hijk"} {
		k := string(rune('h' + i))
		r.local(Accepted, 110*second, "update "+k+" v packet 0")
		r.local(Accepted, 110*second, "delete "+k+" - packet 0")
		r.wantOrder(want)
	}
	if st := r.tab.Stats(); st.Floor != 14 || st.ExpiredEarly != 3 {
		t.Errorf("stats: got %+v, want Floor 14, ExpiredEarly 3", st)
	}
}

// TestTombstoneIsCompactedOnceSettled: a tombstone is compacted once it is settled. A tombstone that
// is not settled after the grace for acknowledged tombstones stays in its slot.
func TestTombstoneIsCompactedOnceSettled(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k v packet 0")
	r.local(Accepted, second, "delete k - packet 0")
	r.remote(Accepted, second, peer, 1000, "l", "v")
	r.remote(Accepted, second, peer, 2000, "l", "-") // dirty
	r.local(Accepted, second, "update m v packet 0")
	r.local(Accepted, second, "delete m - packet 0")
	r.compact(2*second-1, 0)
	r.compact(2*second, 0) // the writer has not written them yet
	r.tab.Update(func(tx *Tx) { tx.RequestReread(pad("m", keySize)) })
	r.write()
	r.compact(2*second-1, 0)
	r.compact(2*second, 2)
	r.compact(6*second-1, 2)
	r.compact(6*second, 2)
	r.want("m", "- v1000000001 a100")
	if m := r.tab.stats; m.Tombstones != 3 || r.tab.tombs.len() != 1 {
		t.Errorf("tombstones: got %d, %d in the queue, want 3 and 1", m.Tombstones, r.tab.tombs.len())
	}
	r.takeRereads()
	r.local(Unchanged, 7*second, "delete m - reread 0")
	r.compact(9*second, 2) // the compaction has left it in its slot
	r.expire(7*second+int64(DefaultTombstoneTTL), 9)
	r.wantOrder("")
}

// TestEventNearCompactTombstoneIsReread: the order of the delete and of events near the time of the
// delete is unknown.
func TestEventNearCompactTombstoneIsReread(t *testing.T) {
	r := newRig(t)
	r.deleteAndCompact(second, "k")
	r.local(Accepted, second+timestampMargin, "update k v packet 0")
	r.wantRereads("k")
	r.deleteAndCompact(5*second, "l")
	r.local(Accepted, 5*second+timestampMargin+1, "update l v packet 0")
	r.wantRereads("")
}

// TestCompactTombstoneOfAPacketDelete: the event of a write arrives after the tombstone of a delete by the data plane, at about the
// same time on another CPU, is compact. The absence that the reread finds is that delete, and does not wait.
func TestCompactTombstoneOfAPacketDelete(t *testing.T) {
	for context, want := range map[string]Outcome{"packet": Accepted, "syscall": Ignored} {
		r := clearRig{newRig(t, holdClears)}
		r.tab.clears.least = 1
		r.local(Accepted, second, "update other v packet 0")
		r.local(Accepted, second, "update k v packet 0")
		r.local(want, 3*second, "delete k - "+context+" 1")
		if want == Ignored {
			r.settle(9*second, 9*second, nil)
		}
		r.write()
		r.compact(15*second, 1)
		r.local(Accepted, 3*second+1000, "update k w syscall 2")
		r.wantRereads("k")
		r.local(want, 16*second, "delete k - reread 0")
	}
}

// TestCompactTombstonesCountAsRecords: compact tombstones count as records, keep the ids of their
// owners, and make room.
func TestCompactTombstonesCountAsRecords(t *testing.T) {
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
				t.Error("id of an owner without records: got one, want none")
			}
		})
	})
}

// TestCompactionSkipsLiveRecords: the compaction passes all changed records but tombstones at once. Reading each of them
// would cost a cache miss per change.
func TestCompactionSkipsLiveRecords(t *testing.T) {
	const n = 10 * compactSteps
	tab := newFlows(t)
	var f flows
	tab.Update(func(tx *Tx) {
		for k := range n {
			f.local(tx, k, k, int64(k+1))
		}
		more := tx.Expire(n, 1)
		if more {
			t.Errorf("compaction after %d changes: got more to do, want nothing", n)
		}
		for k := range n {
			f.local(tx, k, k+1, int64(n+k+1))
		}
		f.set(0, 0)
		tx.Local(&Change{Key: f.key[:], Op: OpDelete, Time: 2*n + 1, Context: ContextPacket})
		more = tx.Expire(2*n+2+int64(tab.opt.TombstoneGrace), 1)
		if got := tab.newTombs.len(); more || got != 0 {
			t.Errorf("compaction of the tombstone behind them: got %d tombstones left, more %t; want none, nothing more", got, more)
		}
	})
	checkInvariants(t, tab)
}

// TestNewTombsAreBounded: a key that is deleted and written again without end leaves a bounded number of outdated elements
// in the queue for compaction, although nothing is compacted.
func TestNewTombsAreBounded(t *testing.T) {
	race.SkipSequential(t)
	tab := newFlows(t)
	var f flows
	f.set(0, 0)
	tab.Update(func(tx *Tx) {
		f.local(tx, 1, 1, 1)
		tx.Local(&Change{Key: f.key[:], Op: OpDelete, Time: 2, Context: ContextPacket}) // stays a tombstone
		for i := range int64(3 * staleNewTombs) {
			f.local(tx, 0, int(i), 2*i+3)
			tx.Local(&Change{Key: f.key[:], Op: OpDelete, Time: 2*i + 4, Context: ContextPacket})
		}
	})
	if n, limit := tab.newTombs.len(), staleNewTombs+8; n > limit {
		t.Errorf("elements of the queue: got %d, want at most %d", n, limit)
	}
	checkInvariants(t, tab)
}

// TestResendOfACompactTombstone: a delete that could not be sent is sent again, also once its tombstone is compact.
func TestResendOfACompactTombstone(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update l v packet 0")
	r.deleteAndCompact(2*second, "k")
	r.local(Accepted, 10*second, "update l w packet 0")
	r.wantOrder("kl")
	state := r.state("k")
	r.tab.Update(func(tx *Tx) { tx.Resend(pad("k", keySize)) })
	r.wantOrder("lk")
	r.want("k", state)
	r.tab.Update(func(tx *Tx) { tx.Resend(pad("unknown", keySize)) })
	r.wantOrder("lk")
}
