package table

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"mapsync/internal/race"
)

// TestCompactTombstonesDoNotChangeOutcomes compares two tables under the same random changes. One of
// them compacts after each change. Both return the same outcomes, records, pending writes and pending
// rereads.
func TestCompactTombstonesDoNotChangeOutcomes(t *testing.T) {
	race.SkipSequential(t)
	compacted := 0
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		deletes, lru, settle := rnd.IntN(2) == 0, rnd.IntN(2) == 0, rnd.IntN(9)
		conf := func(o *Options) { o.EvictionDeletes, o.LRU, o.MaxEntries, o.SettleKeys = deletes, lru, 9, settle }
		plain, compact := newRig(t, sameMap, conf), newRig(t, sameMap, conf)
		compact.tab.log.shift = 1
		for step := range 200 {
			now := startTime + int64(step)*2*timestampMargin
			change := randomChange(rnd, now)
			a, b := change(plain), change(compact)
			keys := plain.write()
			if got := compact.write(); a != b || keys != got {
				t.Fatalf("seed %d, step %d: with compact tombstones: got outcome %s, writes %q, want %s, %q", seed, step, b, got, a, keys)
			}
			was := compact.tab.log.n
			compact.tab.Update(func(*Tx) { compact.tab.compact(now+compactAfter, 99) })
			compacted += max(0, compact.tab.log.n-was)
			for i := range 9 {
				if a, b := plain.state(fmt.Sprint(i)), compact.state(fmt.Sprint(i)); a != b {
					t.Fatalf("seed %d, step %d: key %d: %q, compact %q, want equal states", seed, step, i, a, b)
				}
			}
			if a, b := plain.takeRereads(), compact.takeRereads(); a != b {
				t.Fatalf("seed %d, step %d: rereads %q, compact %q, want equal keys", seed, step, a, b)
			}
		}
		checkInvariants(t, compact.tab)
		a, b := plain.tab.Stats(), compact.tab.Stats()
		a.MemoryBytes, a.Head, a.Applied = b.MemoryBytes, b.Head, b.Applied
		if a != b {
			t.Fatalf("seed %d: stats %+v, compact %+v, want equal stats", seed, a, b)
		}
	}
	if compacted < 5000 {
		t.Errorf("compacted tombstones: got %d, want at least 5000", compacted)
	}
}

// randomChange returns a change that can be entered into several tables.
func randomChange(rnd *rand.Rand, now int64) func(*rig) Outcome {
	key, value := pad(fmt.Sprint(rnd.IntN(9)), keySize), pad(fmt.Sprint(rnd.IntN(3)), valueSize)
	what, ctx, age := rnd.IntN(12), Context(rnd.IntN(3)), rnd.Int64N(3*timestampMargin)-timestampMargin
	owner, gone := []Owner{peer, other, older}[rnd.IntN(3)], rnd.IntN(8) == 0
	opt := RemoteOptions{Touch: rnd.IntN(2) == 0, Repair: rnd.IntN(4) == 0, Replace: Replace(rnd.IntN(3))}
	return func(r *rig) (o Outcome) {
		c := &Change{Key: key, Value: value, Time: now, Context: ctx}
		r.tab.Update(func(tx *Tx) {
			d := &Delta{Key: key, Value: append([]byte(nil), value...), Version: Version(now - age), Owner: tx.Intern(owner)}
			switch what {
			case 0, 1:
				o = tx.Local(c)
			case 2, 3:
				c.Op, c.Value = OpDelete, nil
				o = tx.Local(c)
			case 4:
				c.Op, c.Value = OpEvict, nil
				o = tx.Local(c)
			case 5:
				c.Context = ContextReread
				o = tx.Local(c)
			case 6:
				c.Context, c.Op, c.Value = ContextReread, OpDelete, nil
				o = tx.Local(c)
			case 7, 8:
				d.Delete = true
				o = tx.Remote(d, now, opt)
			case 9:
				d.Delete, d.Expired = true, true
				o = tx.Remote(d, now, opt)
			case 10:
				tx.SetGone(map[string]bool{owner.Node: gone})
				o = tx.Load(key, value)
			default:
				o = tx.Remote(d, now, opt)
			}
		})
		return o
	}
}

// TestRemoveDeletesExpiredCompactTombstones: Remove deletes expired compact tombstones. A peer may
// still have room for their entries.
func TestRemoveDeletesExpiredCompactTombstones(t *testing.T) {
	r := newRig(t)
	r.do(Accepted, func(tx *Tx) Outcome {
		return tx.Remote(&Delta{Key: pad("k", keySize), Version: 1000, Owner: tx.Intern(peer), Delete: true, Expired: true}, second, RemoteOptions{})
	})
	r.remote(Accepted, second, peer, 1000, "l", "-")
	r.write()
	r.compact(3*second, 2)
	c := r.tab.NewCursor(0)
	defer c.Close()
	r.tab.Update(func(tx *Tx) {
		if n, more := tx.Remove(&Selection{Owner: peer.Node}, 4*second, c, 9); n != 1 || more {
			t.Errorf("Remove: got %d removed, more %v, want 1 and false", n, more)
		}
	})
	r.want("k", "- v4000000000 a100 dirty")
	r.want("l", "- v1000 b100")
	r.wantOrder("lk")
}

// TestReadingIsStaleAfterCompaction: a value that a reading returns is stale if the key was deleted
// after the reading began. The table has released the slot of the key meanwhile.
func TestReadingIsStaleAfterCompaction(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k v packet 0")
	var old, late Reading
	r.tab.Update(func(tx *Tx) { tx.BeginReading(&old) })
	r.local(Accepted, second, "delete k - packet 0")
	r.write()
	r.compact(3*second, 1)
	r.local(Accepted, 3*second, "update m v packet 0") // in that slot
	r.tab.Update(func(tx *Tx) { tx.BeginReading(&late) })
	found := func(want Outcome, read *Reading) {
		t.Helper()
		r.do(want, func(tx *Tx) Outcome {
			return tx.Local(&Change{Key: pad("k", keySize), Value: pad("v", valueSize), Time: 4 * second, Context: ContextReread, Read: read})
		})
	}
	found(Stale, &old)
	r.wantRereads("k")
	found(Accepted, &late)
	r.want("k", "v v4000000000 a100")
	// An event without a new state leaves the tombstone unchanged, and makes the reading stale.
	r.deleteAndCompact(10*second, "l")
	r.tab.Update(func(tx *Tx) { tx.BeginReading(&late) })
	r.local(Unchanged, 9*second, "delete l - packet 0")
	r.compact(11*second, 1)
	r.local(Accepted, 11*second, "update n v packet 0")
	r.do(Stale, func(tx *Tx) Outcome {
		return tx.Local(&Change{Key: pad("l", keySize), Value: pad("v", valueSize), Time: 12 * second, Context: ContextReread, Read: &late})
	})
	r.wantRereads("l")
}

// TestReadingIsStaleAfterTombstoneIsForgotten: a value that was read before the table forgot the
// tombstone is stale. The key is reread after an event at the time of the delete.
func TestReadingIsStaleAfterTombstoneIsForgotten(t *testing.T) {
	r := newRig(t, shortLived)
	r.deleteAndCompact(second, "k")
	var read Reading
	r.tab.Update(func(tx *Tx) { tx.BeginReading(&read) })
	r.expire(3*second, 9)
	r.want("k", "unknown")
	r.do(Stale, func(tx *Tx) Outcome {
		return tx.Local(&Change{Key: pad("k", keySize), Value: pad("v", valueSize), Time: 4 * second, Context: ContextReread, Read: &read})
	})
	r.wantRereads("k")
	r.local(Accepted, second, "update k v packet 0")
	r.wantRereads("k")
}

// TestCompactTombstoneForgottenDuringLoad: the table rereads a key that the load has read, if it
// forgets the tombstone of the key.
func TestCompactTombstoneForgottenDuringLoad(t *testing.T) {
	r := newRig(t, func(o *Options) { o.TombstoneTTL = 5 * time.Second })
	r.deleteAndCompact(second, "k", "l")
	r.tab.Update((*Tx).BeginLoad)
	r.load(Stale, "k", "v") // the same outcome as for any tombstone
	r.wantRereads("k")
	r.expire(9*second, 9)
	r.want("l", "unknown")
	r.load(Accepted, "l", "v")
	r.want("l", "v v0 a100")
	r.wantRereads("kl") // the reread of k has not arrived
}

// TestSettlingIgnoresReusedSlot: a key is deleted before it has settled, and another key reuses its
// slot. The table does not read the other key in its place.
func TestSettlingIgnoresReusedSlot(t *testing.T) {
	r := newRig(t, func(o *Options) { o.SettleKeys = 9 })
	r.deleteAndCompact(second, "k")
	r.tab.Update(func(tx *Tx) { tx.Settle(second+settleFirst-1, 9) })
	r.local(Accepted, 2*second, "update l v packet 0")
	r.tab.Update(func(tx *Tx) { tx.Settle(2*second+settleFirst-1, 9) })
	r.wantRereads("")
	r.tab.Update(func(tx *Tx) { tx.Settle(2*second+settleFirst, 9) })
	r.wantRereads("l")
}

// TestConvertKeepsCompactTombstones: compact tombstones are compact in the converted table, at the
// same positions. A key that changes during the conversion is counted once.
func TestConvertKeepsCompactTombstones(t *testing.T) {
	r := newRig(t)
	r.deleteAndCompact(second, "a", "b")
	r.remote(Accepted, 3*second, peer, 3000, "c", "v")
	r.local(Accepted, 3*second, "update d v packet 0")
	r.local(Accepted, 3*second, "delete d - packet 0") // in its slot
	r.do(Accepted, func(tx *Tx) Outcome {
		return tx.Remote(&Delta{Key: pad("e", keySize), Version: 5000, Owner: tx.Intern(peer), Delete: true, Expired: true}, second, RemoteOptions{})
	})
	r.write()
	o := r.tab.opt
	same := func(dst, src []byte) error { copy(dst, src); return nil }
	tab, done, err := r.tab.Convert(o, Conversion{Key: same, Value: same})
	if err != nil || done.Records != 5 || done.Failed != 0 || tab.log.n != 2 || tab.stats.Tombstones != 4 {
		t.Fatalf("Convert: got %+v, error %v, %d compact, stats %+v, want 5 records, 0 failed, nil, 2 compact of 4 tombstones",
			done, err, tab.log.n, tab.stats)
	}
	checkInvariants(t, tab)
	to := &rig{T: t, tab: tab, writer: tab.NewCursor(0)}
	to.wantOrder("abcde")
	for _, k := range []string{"a", "b", "d", "e"} {
		to.want(k, r.state(k))
	}
	to.expire(2*second+int64(DefaultTombstoneTTL), 9)
	to.wantOrder("cd")
	tab.View((*Tx).ReclaimOwners)
	to.want("c", "v v3000 b100 dirty")
	// The new table has room for some of the records only.
	o.MaxRecords = 3
	if _, done, err = r.tab.Convert(o, Conversion{Key: same, Value: same}); err != nil || done.Records != 3 {
		t.Errorf("Convert: got %+v, error %v, want 3 records", done, err)
	}
	// Two keys convert to one key: the newer record stays.
	o.MaxRecords = 0
	one := func(dst, _ []byte) error { copy(dst, pad("k", keySize)); return nil }
	tab, done, err = r.tab.Convert(o, Conversion{Key: one, Value: same})
	if err != nil || done.Records != 1 {
		t.Fatalf("Convert: got %+v, error %v, want 1 record", done, err)
	}
	checkInvariants(t, tab)
	(&rig{T: t, tab: tab}).want("k", r.state("d"))
}

// TestUnheldKeyOfACompactTombstone: this incarnation has deleted the key, so that its absence is evidence, also once the tombstone is
// compact.
func TestUnheldKeyOfACompactTombstone(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k v packet 0")
	r.local(Accepted, 2*second, "delete k - packet 0")
	r.write()
	r.compact(9*second, 1)
	r.tab.Update(func(tx *Tx) {
		tx.NoteUnheld(pad("k", keySize), 10)
		if _, some := tx.UnheldSerial(); some {
			t.Error("unheld keys: got one, want none")
		}
	})
}
