package table

import (
	"errors"
	"fmt"
	"testing"
)

// The tests of this file cover lines whose change no other test found: make mutate.

// A tombstone that is still to be written is forgotten after one with a higher position.
func TestFloorOnlyGrows(t *testing.T) {
	r := newRig(t, func(o *Options) { o.TombstoneTTL = 1000 })
	r.remote(Accepted, 1000, other, 1000, "l", "v")
	r.remote(Accepted, 1000, other, 2000, "l", "-")
	r.remote(Accepted, 1000, peer, 1000, "k", "-")
	r.wantOrder("lk")
	for _, now := range []int64{2500, 3500} {
		r.tab.Update(func(tx *Tx) {
			tx.Expire(now, 9)
			if floor := tx.Floor(); floor != 3 {
				t.Errorf("at %d: floor %d, want 3", now, floor)
			}
		})
		r.write()
	}
	r.wantOrder("")
}

// A reread after syncd's write makes the next scan doubtful. The next write ends that.
func TestWriteEndsTheDoubtOfAScan(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 1*second, peer, 1000, "k", "v")
	r.write()
	r.local(Stale, 2*second, "update k w reread 0") // read before that write, perhaps
	r.wantRechecks("k")
	r.remote(Accepted, 3*second, peer, 2000, "k", "x")
	r.write()
	r.tab.Update(func(tx *Tx) { tx.BeginScan() })
	r.do(Stale, func(tx *Tx) Outcome { return tx.Scanned(parseChange(r, "update k y reread 0", 4*second)) })
	r.wantRechecks("k")
}

// A scan does not look for what an LRU map threw out, and finds what is there again.
func TestScanOfEvictedRecords(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 1*second, peer, 1000, "k", "v")
	r.write()
	r.local(Ignored, 20*second, "evict k - packet 0")
	r.wantRechecks("k")
	r.local(Unchanged, 21*second, "delete k - reread 0")
	scan := func(at int64, keys ...string) {
		t.Helper()
		r.tab.Update(func(tx *Tx) {
			tx.BeginScan()
			for _, key := range keys {
				tx.ScannedAll(nil, at, pad(key, simKey), pad("v", simValue))
			}
			for tx.EndScan(1) {
			}
		})
	}
	scan(30 * second)
	r.wantRechecks("")
	scan(40*second, "k") // put back by the data plane, and no hook saw it
	scan(50 * second)
	r.wantRechecks("k")
	r.rechecks()
	r.local(Restored, 60*second, "delete k - reread 0") // an eviction would be Unchanged
	r.want("k", "v v1000 b100 dirty")
}

// EndScan looks at a few records at a time, and says whether there are more.
func TestScanEndsInParts(t *testing.T) {
	r := newRig(t)
	for i := range 5 {
		r.local(Accepted, second, fmt.Sprintf("update k%d v packet 0", i))
	}
	r.tab.Update(func(tx *Tx) {
		tx.BeginScan()
		calls := 1
		for tx.EndScan(2) {
			calls++
		}
		if calls < 3 {
			t.Errorf("%d calls for 5 records, 2 at a time", calls)
		}
	})
	if keys := r.rechecks(); len(keys) != 10 {
		t.Errorf("rechecks %q, want 5 keys", keys)
	}
}

// A write barrier covers slots that came into use after it was made.
func TestDebtOfNewSlots(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	d := r.owe()
	for i := range 300 {
		r.remote(Accepted, 0, peer, 2000, fmt.Sprintf("n%d", i), "v")
	}
	if refused := r.refuse(); len(refused) != 301 {
		t.Fatalf("%d records refused, want 301", len(refused))
	}
	r.wantOwed(d, 301) // what the map refuses is owed, whenever it came
	r.tab.Update(func(tx *Tx) { tx.RequeueFailed(1000) })
	rec := r.take()
	r.applied(rec, nil)
	r.wantOwed(d, 301) // not delivered before the applied position says so
	r.wantPaid(d, 0, 300)
}

// A record that changed while it was displaced is written again, beyond what the map has.
func TestDisplacedRecordThatChangedMovesToTheTail(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.remote(Accepted, 0, other, 1001, "l", "v")
	r.write()
	r.remote(Accepted, 0, peer, 2000, "m", "v")
	victim, key := r.displace(r.refuse()[0])
	if key != "k" {
		t.Fatalf("%q is displaced", key)
	}
	r.local(Accepted, 5*second, "update k w packet 0") // not dirty any more
	r.remote(Accepted, 0, other, 3000, "n", "v")
	r.wantOrder("lmkn")
	r.tab.Update(func(tx *Tx) { tx.Displaced(victim.Ref, victim.Version, 6*second) })
	r.wantOrder("lmnk")
	if keys := r.write(); keys != "mnk" {
		t.Errorf("wrote %q", keys)
	}
}

// What a delta leaves out of a deleted entry is not the deleted value.
func TestKeepTakesNothingFromATombstone(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "old")
	r.remote(Accepted, 0, peer, 2000, "k", "-")
	d := &Delta{Key: pad("k", simKey), Value: pad("new", simValue), Version: 3000, Keep: []Range{{1, 2}}}
	r.do(Accepted, func(tx *Tx) Outcome {
		d.Owner = tx.Intern(peer)
		return tx.Remote(d, 0, RemoteOptions{})
	})
	r.want("k", "new v3000 b100 dirty")
}

// An unclaimed key that a reread does not find is read once more if the
// reread may be older than what the table knows.
func TestRereadOlderThanAnUnversionedRecord(t *testing.T) {
	r := newRig(t)
	r.load(Accepted, "u", "v")
	r.local(Unchanged, 3*second, "update u v reread 0")
	r.local(Stale, 2*second, "delete u - reread 0")
	r.wantRechecks("u")
	r.local(Accepted, 4*second, "delete u - reread 0")
	r.want("u", "- v0 a100")
}

func TestRefreshIsNotNegative(t *testing.T) {
	if _, err := New(Options{Self: self, KeySize: simKey, ValueSize: simValue, Refresh: -1}); !errors.Is(err, ErrOptions) {
		t.Errorf("got %v, want %v", err, ErrOptions)
	}
}

// A cursor made at any position returns just the records beyond it, wherever other
// cursors are.
func TestCursorsFindTheirPlace(t *testing.T) {
	r := newRig(t)
	for i := range 9 {
		r.local(Accepted, int64(i+1)*second, fmt.Sprintf("update k%d v packet 0", i))
	}
	r.local(Accepted, 20*second, "update k3 w packet 0") // a gap at position 4
	for other := range uint64(11) {
		o := r.tab.NewCursor(other)
		for pos := range uint64(11) {
			c := r.tab.NewCursor(pos)
			var got []uint64
			r.tab.View(func(tx *Tx) {
				var rec Record
				for tx.Next(c, &rec) {
					got = append(got, rec.Position)
				}
			})
			c.Close()
			n := 0
			for p := pos + 1; p <= 10; p++ {
				if p == 4 {
					continue
				}
				if n >= len(got) || got[n] != p {
					t.Fatalf("from %d, with another at %d: %v", pos, other, got)
				}
				n++
			}
			if n != len(got) {
				t.Fatalf("from %d, with another at %d: %v", pos, other, got)
			}
		}
		o.Close()
	}
}

func TestOwnerOfAnUnknownID(t *testing.T) {
	r := newRig(t)
	r.tab.View(func(tx *Tx) {
		id := tx.Intern(peer)
		if tx.Owner(id) != peer || tx.Owner(id+1) != (Owner{}) {
			t.Errorf("%v, %v", tx.Owner(id), tx.Owner(id+1))
		}
	})
}

// The writer reports a record that the table does not have.
func TestAppliedOfAnUnknownRecord(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.write()
	before := r.tab.Stats()
	r.tab.Update(func(tx *Tx) {
		for _, ref := range []Ref{0, Ref(firstSlot) - 1, Ref(r.tab.allocated), Ref(r.tab.allocated) + 1000} {
			tx.Applied(ref, 7, nil)
			tx.Displaced(ref, 7, 8)
		}
	})
	r.wantRechecks("")
	if after := r.tab.Stats(); after.Dirty != before.Dirty || after.Head != before.Head {
		t.Errorf("was %+v\nis  %+v", before, after)
	}
}

// Only what is forgotten counts as expired.
func TestExpiredCountsTombstonesOnly(t *testing.T) {
	r := newRig(t, func(o *Options) { o.TombstoneTTL = 1000 })
	r.remote(Accepted, 1000, peer, 1000, "k", "-")
	r.remote(Accepted, 1000, peer, 1000, "l", "-")
	r.write()
	r.remote(Accepted, 1500, peer, 2000, "k", "v")
	r.tab.Update(func(tx *Tx) { tx.Expire(9000, 9) })
	if n := r.tab.Stats().Expired; n != 1 {
		t.Errorf("%d expired, want 1", n)
	}
	r.wantOrder("k")
}

// Beyond a number of deletes during the load, each loaded key is read again.
func TestManyDeletesDuringTheLoad(t *testing.T) {
	r := newRig(t)
	r.tab.Update(func(tx *Tx) { tx.BeginLoad() })
	for i := range loadDeletes {
		r.local(Unchanged, 1*second, fmt.Sprintf("delete %x - syscall 0", i))
	}
	r.load(Accepted, "k", "v")
	r.wantRechecks("")
	r.local(Unchanged, 1*second, "delete one - syscall 0")
	r.load(Accepted, "l", "v")
	r.wantRechecks("l")
}

// Records that the writer takes and that are not owed do not count as under way.
func TestDebtCountsOnlyWhatIsOwed(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	d := r.owe()
	r.remote(Accepted, 0, peer, 1001, "l", "v")
	r.applied(r.take(), nil)
	r.wantOwed(d, 1) // k is taken, and not delivered
	if rec := r.take(); text(rec.Key) != "l" {
		t.Fatalf("took %q", rec.Key)
	}
	r.wantOwed(d, 1)
}

// Sweep and Expire say whether there is more to do.
func TestWorkInParts(t *testing.T) {
	r := newRig(t, func(o *Options) { o.TombstoneTTL = 1000 })
	for i := range 3 {
		r.remote(Accepted, 0, peer, 1000, fmt.Sprintf("k%d", i), "v")
	}
	parts := func(step func(tx *Tx) bool) (calls int) {
		for more := true; more && calls < 99; calls++ {
			r.tab.Update(func(tx *Tx) { more = step(tx) })
		}
		return calls
	}
	c := r.tab.NewCursor(0)
	defer c.Close()
	if n := parts(func(tx *Tx) bool { return tx.Sweep(peer.Node, 9, 5000, c, 1) }); n != 4 {
		t.Errorf("%d calls sweep 3 records one by one, want 4", n)
	}
	if st := r.tab.Stats(); st.Swept != 3 || st.Live != 0 {
		t.Errorf("%+v", st)
	}
	r.write()
	if n := parts(func(tx *Tx) bool { return tx.Expire(5500, 1) }); n != 1 {
		t.Errorf("%d calls expire nothing, want 1", n)
	}
	if n := parts(func(tx *Tx) bool { return tx.Expire(9000, 1) }); n < 3 || n > 4 {
		t.Errorf("%d calls expire 3 tombstones one by one", n)
	}
	r.wantOrder("")
}

// A key that expired and is used again is a live record.
func TestExpiredKeyLivesAgain(t *testing.T) {
	r := newRig(t)
	r.do(Accepted, func(tx *Tx) Outcome {
		d := &Delta{Key: pad("k", simKey), Version: 1000, Owner: tx.Intern(peer), Delete: true, Expired: true}
		return tx.Remote(d, 1000, RemoteOptions{})
	})
	expired := func() (is bool) {
		r.tab.View(func(tx *Tx) {
			var rec Record
			if !tx.Get(pad("k", simKey), &rec) {
				t.Fatal("no record")
			}
			is = rec.Expired
		})
		return is
	}
	if !expired() {
		t.Error("an expired record is not marked")
	}
	r.local(Accepted, 2*second, "update k v packet 0")
	if expired() {
		t.Error("a live record is marked as expired")
	}
	r.local(Accepted, 3*second, "delete k - packet 0")
	if expired() {
		t.Error("a deleted record is marked as expired")
	}
}
