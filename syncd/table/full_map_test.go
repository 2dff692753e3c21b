package table

import (
	"fmt"
	"testing"
)

// retried lets the writer retry the failed writes, and simulates that the kernel accepts them.
func (r *rig) retried(keys string) {
	r.Helper()
	r.requeue(9, len(keys))
	if got := r.write(); got != keys {
		r.Fatalf("wrote %q, want %q", got, keys)
	}
}

// TestVictimsAfterARetry: a record whose retry succeeds is displaced after older ones. A victim that
// the map accepts again is again the oldest entry.
func TestVictimsAfterARetry(t *testing.T) {
	for name, test := range map[string]struct {
		retry func(*rig)
		want  string
	}{
		"none":       {func(*rig) {}, "l"},
		"the victim": {func(r *rig) { r.retried("k") }, "k"},
		"a later one": {func(r *rig) {
			r.remote(Accepted, 0, peer, 4000, "o", "v")
			r.refuse()
			r.requeue(9, 2)
			r.applied(r.take(), errFull) // the victim
			if keys := r.write(); keys != "o" {
				r.Fatalf("written keys: got %q, want o", keys)
			}
		}, "l"},
	} {
		r := newRig(t)
		for i, k := range []string{"k", "l", "m"} {
			r.remote(Accepted, 0, peer, Version(1000+i), k, "v")
		}
		r.write()
		r.remote(Accepted, 0, peer, 2000, "n", "v")
		victim, key := r.displace(r.refuse()[0])
		if key != "k" {
			t.Fatalf("first Displace: got victim %q, want k", key)
		}
		r.tab.Update(func(tx *Tx) { tx.Displaced(victim.Ref, 3000) })
		r.write()
		test.retry(r)
		r.remote(Accepted, 0, peer, 5000, "p", "v")
		if _, key := r.displace(r.refuse()[0]); key != test.want {
			t.Errorf("retry of %s: got victim %q, want %q", name, key, test.want)
		}
	}
}

// TestRetryOfAnOwnRecord: the writer retries a record of this node, which belongs to no owner group.
func TestRetryOfAnOwnRecord(t *testing.T) {
	r := newRig(t)
	r.local(Accepted, second, "update k v packet 0")
	r.tab.Update((*Tx).Refill)
	r.refuse()
	r.retried("k")
	r.want("k", "v v1000000000 a100")
}

// TestReleasedEntriesOfASmallMap: the table rereads released entries that exceed the size of the map.
// If the size is unknown, the limit is DefaultMaxEvicted.
func TestReleasedEntriesOfASmallMap(t *testing.T) {
	for entries, want := range map[int]string{0: "", 1: "kl", 2: ""} {
		r := newRig(t, lru(entries, 8))
		for _, k := range []string{"k", "l"} {
			r.remote(Accepted, second, peer, 10, k, "v")
			r.write()
			r.expired(Accepted, second, peer, 10, k)
		}
		r.expireEvictedOnce(2*second, 9)
		if got := r.takeRereads(); got != want {
			t.Errorf("%d entries: got rereads %q, want %q", entries, got, want)
		}
	}
}

// TestReleasedEntriesAreForgotten: a table for a small map keeps at most twice minReleased released
// entries.
func TestReleasedEntriesAreForgotten(t *testing.T) {
	r := newRig(t, lru(2, 8))
	for i := range 2*minReleased + 1 {
		if i == 2*minReleased {
			r.expireEvictedOnce(2*second, 1)
			if n := r.tab.Stats().Released; n != 2*minReleased {
				t.Errorf("released entries: got %d, want %d", n, 2*minReleased)
			}
		}
		k := fmt.Sprint(i)
		r.remote(Accepted, second, peer, 10, k, "v")
		r.write()
		r.expired(Accepted, second, peer, 10, k)
	}
	r.expireEvictedOnce(2*second, 1)
	if n := r.tab.Stats().Released; n != 2*minReleased {
		t.Errorf("released entries above the limit: got %d, want %d", n, 2*minReleased)
	}
}

// TestEvictedWhileStopped: a load did not find the key of an earlier incarnation's record. The table
// rereads the key, because the load may have skipped it.
func TestEvictedWhileStopped(t *testing.T) {
	for _, loaded := range []bool{true, false} {
		r := newRig(t, sameMap, lru(8, 8))
		if loaded {
			r.tab.Update(func(tx *Tx) { tx.BeginLoad(); tx.EndLoad() })
		}
		r.remote(Accepted, second, older, 10, "k", "v")
		r.want("k", "v v10 a90")
		want := ""
		if loaded {
			want = "k"
		}
		r.wantRereads(want)
		if n := r.tab.evicted.len(); n != 1 {
			t.Errorf("records that wait for their expiry: got %d, want 1", n)
		}
	}
}

// TestRecordsInUseDoNotExpire: a table above its limit expires only evicted records.
func TestRecordsInUseDoNotExpire(t *testing.T) {
	r := newRig(t, lru(8, 8), func(o *Options) { o.MaxLive = 1 })
	for _, k := range []string{"k", "l", "m"} {
		r.local(Accepted, second, "update "+k+" v packet 0")
	}
	if r.expireEvictedOnce(100*second, 2) {
		t.Error("ExpireEvicted: got more true, want false")
	}
	r.wantLive("klm", "klm")
}

// TestReadingBeginsAnewAfterChanges: changes and deletes from before BeginReading do not make the
// values of the reading stale.
func TestReadingBeginsAnewAfterChanges(t *testing.T) {
	r := newRig(t)
	for i := range 70 {
		r.local(Accepted, second, fmt.Sprintf("update k%d v packet 0", i))
	}
	d := r.read(second)
	r.local(Accepted, 2*second, "update k63 w packet 0") // the record in slot 65
	r.local(Unchanged, 2*second, "delete x - packet 0")
	r.tab.View(func(tx *Tx) { tx.BeginReading(&d.Reading) })
	d.at = 3 * second
	for s := range r.tab.allocated {
		if d.isStale(s) {
			t.Errorf("slot %d: got changed since BeginReading, want unchanged", s)
		}
	}
	d.found(Accepted, "x", "v")
	d.found(Accepted, "k63", "x")
}

// TestFailedWriteAfterOwnerChange: a record whose write failed counts for its new owner.
func TestFailedWriteAfterOwnerChange(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, older, 10, "k", "v")
	r.refuse()
	r.remote(Accepted, 2*second, self, 20, "k", "w")
	r.want("k", "v v21 a100 dirty")
	checkInvariants(t, r.tab)
	if st := r.tab.Stats(); st.Failed != 1 || st.RemoteConflictOwn != 1 {
		t.Errorf("records: got %d failed, %d conflicts, want 1 and 1", st.Failed, st.RemoteConflictOwn)
	}
	if n := r.tab.kernelEntries("a"); n != 0 {
		t.Errorf("records of this node in the map: got %d, want 0", n)
	}
}
