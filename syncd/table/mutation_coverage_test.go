package table

import (
	"errors"
	"fmt"
	"math"
	"testing"
)

// The tests of this file cover lines whose mutations no other test detects (make mutate).

// A tombstone that is still dirty is forgotten after one with a higher position.
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

// A reread after syncd's write makes the next scan uncertain. The next write ends the uncertainty.
func TestWriteEndsUncertaintyOfScan(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 1*second, peer, 1000, "k", "v")
	r.write()
	r.local(Stale, 2*second, "update k w reread 0") // the read may be older than that write
	r.wantRereads("k")
	r.remote(Accepted, 3*second, peer, 2000, "k", "x")
	r.write()
	r.tab.Update(func(tx *Tx) { tx.BeginScan(0) })
	r.do(Stale, func(tx *Tx) Outcome { return tx.Scanned(parseChange(r, "update k y reread 0", 4*second)) })
	r.wantRereads("k")
}

// A scan does not expect keys that an LRU map evicted, and finds keys that are there again.
func TestScanOfEvictedRecords(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 1*second, peer, 1000, "k", "v")
	r.write()
	r.local(Ignored, 20*second, "evict k - packet 0")
	r.wantRereads("k")
	r.local(Unchanged, 21*second, "delete k - reread 0")
	scan := func(at int64, keys ...string) {
		t.Helper()
		r.tab.Update(func(tx *Tx) {
			tx.BeginScan(0)
			for _, key := range keys {
				tx.ScannedAll(nil, at, pad(key, keySize), pad("v", valueSize))
			}
			for tx.EndScan(1) {
			}
		})
	}
	scan(30 * second)
	r.wantRereads("")
	scan(40*second, "k") // written again by the data plane without an event
	scan(50 * second)
	r.wantRereads("k")
	r.takeRereads()
	r.local(Restored, 60*second, "delete k - reread 0") // an eviction would be Unchanged
	r.want("k", "v v1000 b100 dirty")
}

// EndScan examines a few records at a time, and returns whether there are more.
func TestScanEndsInParts(t *testing.T) {
	r := newRig(t)
	for i := range 5 {
		r.local(Accepted, second, fmt.Sprintf("update k%d v packet 0", i))
	}
	r.tab.Update(func(tx *Tx) {
		tx.BeginScan(0)
		calls := 1
		for tx.EndScan(2) {
			calls++
		}
		if calls < 3 {
			t.Errorf("EndScan: got %d calls for 5 records, 2 at a time, want at least 3", calls)
		}
	})
	if keys := r.takeRereads(); len(keys) != 10 {
		t.Errorf("rereads: got %q, want 5 keys", keys)
	}
}

// A write barrier covers slots that came into use after it was created.
func TestBarrierCoversNewSlots(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	d := r.addBarrier()
	for i := range 300 {
		r.remote(Accepted, 0, peer, 2000, fmt.Sprintf("n%d", i), "v")
	}
	if refused := r.refuse(); len(refused) != 301 {
		t.Fatalf("refused records: got %d, want 301", len(refused))
	}
	r.wantPendingWrites(d, 301) // the barrier waits for refused records, whenever they arrived
	r.tab.Update(func(tx *Tx) { tx.RequeueFailed(1000) })
	rec := r.take()
	r.applied(rec, nil)
	r.wantPendingWrites(d, 301) // the barrier ends only with the applied position
	r.wantBarrierDone(d, 0, 300)
}

// A record that changed while it was displaced is written again, at a position after all written
// records.
func TestDisplacedRecordThatChangedMovesToTheTail(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	r.remote(Accepted, 0, other, 1001, "l", "v")
	r.write()
	r.remote(Accepted, 0, peer, 2000, "m", "v")
	victim, key := r.displace(r.refuse()[0])
	if key != "k" {
		t.Fatalf("Displace: got victim %q, want k", key)
	}
	r.local(Accepted, 5*second, "update k w packet 0") // the update makes the record clean
	r.remote(Accepted, 0, other, 3000, "n", "v")
	r.wantOrder("lmkn")
	r.tab.Update(func(tx *Tx) { tx.Displaced(victim.Ref, 6*second) })
	r.wantOrder("lmnk")
	if keys := r.write(); keys != "mnk" {
		t.Errorf("written keys: got %q, want mnk", keys)
	}
}

// The fields that a delta keeps are not taken from the value of a deleted entry.
func TestDeltaKeepIgnoresTombstone(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "old")
	r.remote(Accepted, 0, peer, 2000, "k", "-")
	d := &Delta{Key: pad("k", keySize), Value: pad("new", valueSize), Version: 3000, Keep: []Range{{1, 2}}}
	r.do(Accepted, func(tx *Tx) Outcome {
		d.Owner = tx.Intern(peer)
		return tx.Remote(d, 0, RemoteOptions{})
	})
	r.want("k", "new v3000 b100 dirty")
}

// A reread does not find an unversioned key. The key is read once more if the reread may be older than
// the state of the table.
func TestRereadOlderThanAnUnversionedRecord(t *testing.T) {
	r := newRig(t)
	r.load(Accepted, "u", "v")
	r.local(Unchanged, 3*second, "update u v reread 0")
	r.local(Stale, 2*second, "delete u - reread 0")
	r.wantRereads("u")
	r.local(Accepted, 4*second, "delete u - reread 0")
	r.want("u", "- v0 a100")
}

func TestRefreshIsNotNegative(t *testing.T) {
	if _, err := New(Options{Self: self, KeySize: keySize, ValueSize: valueSize, Refresh: -1}); !errors.Is(err, ErrOptions) {
		t.Errorf("New with a negative refresh: got error %v, want %v", err, ErrOptions)
	}
}

// A cursor that is created at any position returns the records after it, wherever other cursors are.
func TestNewCursorAtAnyPosition(t *testing.T) {
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
					t.Fatalf("cursor from %d, with another at %d: got %v, want the positions %d to 10 without 4", pos, other, got, pos+1)
				}
				n++
			}
			if n != len(got) {
				t.Fatalf("cursor from %d, with another at %d: got %v, want the positions %d to 10 without 4", pos, other, got, pos+1)
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
			t.Errorf("owners: got %v and %v, want the peer and none", tx.Owner(id), tx.Owner(id+1))
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
			tx.Displaced(ref, 8)
		}
	})
	r.wantRereads("")
	if after := r.tab.Stats(); after.Dirty != before.Dirty || after.Head != before.Head {
		t.Errorf("stats: want %+v\ngot %+v", before, after)
	}
}

// Stats counts only forgotten tombstones as expired.
func TestExpiredCountsTombstonesOnly(t *testing.T) {
	r := newRig(t, func(o *Options) { o.TombstoneTTL = 1000 })
	r.remote(Accepted, 1000, peer, 1000, "k", "-")
	r.remote(Accepted, 1000, peer, 1000, "l", "-")
	r.write()
	r.remote(Accepted, 1500, peer, 2000, "k", "v")
	r.tab.Update(func(tx *Tx) { tx.Expire(9000, 9) })
	if n := r.tab.Stats().Expired; n != 1 {
		t.Errorf("expired tombstones: got %d, want 1", n)
	}
	r.wantOrder("k")
}

// If there are too many deletes during the load, the table rereads each loaded key.
func TestManyDeletesDuringTheLoad(t *testing.T) {
	r := newRig(t)
	r.tab.Update(func(tx *Tx) { tx.BeginLoad() })
	for i := range loadDeletes {
		r.local(Unchanged, 1*second, fmt.Sprintf("delete %x - syscall 0", i))
	}
	r.load(Accepted, "k", "v")
	r.wantRereads("")
	r.local(Unchanged, 1*second, "delete one - syscall 0")
	r.load(Accepted, "l", "v")
	r.wantRereads("l")
	if n := len(r.tab.loading.deleted); n != loadDeletes {
		t.Errorf("deletes that the load stores: got %d, want %d", n, loadDeletes)
	}
}

// A write barrier does not count records that the writer takes and that it does not cover.
func TestBarrierIgnoresOtherWrites(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 0, peer, 1000, "k", "v")
	d := r.addBarrier()
	r.remote(Accepted, 0, peer, 1001, "l", "v")
	r.applied(r.take(), nil)
	r.wantPendingWrites(d, 1) // the writer has taken k and has not reported it
	if rec := r.take(); text(rec.Key) != "l" {
		t.Fatalf("take: got %q, want \"l\"", rec.Key)
	}
	r.wantPendingWrites(d, 1)
}

// Sweep and Expire return whether there is more to do.
func TestSweepAndExpireInParts(t *testing.T) {
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
	if n := parts(func(tx *Tx) (more bool) {
		_, more = tx.Sweep(&Absence{Peer: peer, Acknowledged: math.MaxUint64, Before: 9}, 5000, c, 1)
		return more
	}); n != 4 {
		t.Errorf("Sweep of 3 records one by one: got %d calls, want 4", n)
	}
	if st := r.tab.Stats(); st.Swept != 3 || st.Live != 0 {
		t.Errorf("stats: got %+v, want Swept 3, Live 0", st)
	}
	r.write()
	if n := parts(func(tx *Tx) bool { return tx.Expire(5500, 1) }); n != 1 {
		t.Errorf("Expire of no tombstone: got %d calls, want 1", n)
	}
	if n := parts(func(tx *Tx) bool { return tx.Expire(9000, 1) }); n < 3 || n > 4 {
		t.Errorf("Expire of 3 tombstones one by one: got %d calls, want 3 or 4", n)
	}
	r.wantOrder("")
}

// A key that expired and is used again is a live record.
func TestExpiredKeyIsRecreated(t *testing.T) {
	r := newRig(t)
	r.do(Accepted, func(tx *Tx) Outcome {
		d := &Delta{Key: pad("k", keySize), Version: 1000, Owner: tx.Intern(peer), Delete: true, Expired: true}
		return tx.Remote(d, 1000, RemoteOptions{})
	})
	expired := func() (is bool) {
		r.tab.View(func(tx *Tx) {
			var rec Record
			if !tx.Get(pad("k", keySize), &rec) {
				t.Fatal("Get: got no record, want one")
			}
			is = rec.Expired
		})
		return is
	}
	if !expired() {
		t.Error("expired record: got Expired false, want true")
	}
	r.local(Accepted, 2*second, "update k v packet 0")
	if expired() {
		t.Error("live record: got Expired true, want false")
	}
	r.local(Accepted, 3*second, "delete k - packet 0")
	if expired() {
		t.Error("deleted record: got Expired true, want false")
	}
}
