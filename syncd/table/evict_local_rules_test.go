package table

import "testing"

// TestEvictionOfAnUnknownKey: Stats counts the eviction, and no record expires.
func TestEvictionOfAnUnknownKey(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.local(Ignored, second, "evict k - packet 0")
	r.expireEvicted(1000 * second)
	if st := r.tab.Stats(); st.Evictions != 1 || st.EvictionsExpired != 0 || r.tab.evicted.len() != 0 {
		t.Errorf("%d evictions, %d expired, %d wait", st.Evictions, st.EvictionsExpired, r.tab.evicted.len())
	}
	r.want("k", "unknown")
}

// TestEvictedRecordsWaitOnce: a record that is evicted twice waits once, and only on a node that may expire it.
func TestEvictedRecordsWaitOnce(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.local(Accepted, second, "update k v packet 0")
	r.remote(Accepted, second, peer, 10, "p", "v")
	r.remote(Accepted, second, other, 10, "q", "v")
	r.setGone("c", true)
	r.write()
	for i, want := range []int{1, 1, 2, 2} {
		r.local(Ignored, 2*second+int64(i), "evict "+[]string{"k", "k", "q", "p"}[i]+" - packet 0")
		if n := r.tab.evicted.len(); n != want {
			t.Errorf("%d records wait after eviction %d, want %d", n, i, want)
		}
	}
}

// TestUseAtTheMomentOfAnEviction: an update with the time of the eviction ends it, an earlier one does not.
func TestUseAtTheMomentOfAnEviction(t *testing.T) {
	for before, want := range map[int64]string{0: "k", 1: ""} {
		r := newRig(t, lru(8, 8))
		r.local(Accepted, second, "update k v packet 0")
		r.local(Ignored, 9*second, "evict k - packet 0")
		r.local(Unchanged, 9*second-before, "update k v packet 0")
		r.rechecks()
		r.expireEvicted(1000 * second)
		r.wantLive("k", want)
	}
}

// TestExpiryMovesToTheTail: peers that have read the record read that it expired.
func TestExpiryMovesToTheTail(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.evict(second, "k")
	r.local(Accepted, second, "update l v packet 0")
	r.wantOrder("kl")
	r.expireEvicted(100 * second)
	r.wantOrder("lk")
}

// TestEvictionThatDeletes: EvictionDeletes makes an eviction a delete, which may be stale. A peer's record stays.
func TestEvictionThatDeletes(t *testing.T) {
	r := newRig(t, evictions)
	r.local(Accepted, 5*second, "update k v packet 0")
	r.local(Stale, second, "evict k - packet 0")
	r.want("k", "v v5000000000 a100")
	r.local(Accepted, 6*second, "evict k - packet 0")
	r.want("k", "- v6000000000 a100")
	r.remote(Accepted, second, peer, 10, "p", "v")
	r.write()
	r.local(Ignored, 6*second, "evict p - packet 0")
	r.want("p", "v v10 b100")
}

// TestEvictionOfATombstone: an older eviction does not have a deleted key read again.
func TestEvictionOfATombstone(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.local(Accepted, second, "update k v packet 0")
	r.local(Accepted, 5*second, "delete k - packet 0")
	r.rechecks()
	r.local(Ignored, 2*second, "evict k - packet 0")
	r.wantRechecks("")
}

// TestExpiryInAFullTable: an expired record that is unknown here needs room like any other.
func TestExpiryInAFullTable(t *testing.T) {
	r := newRig(t, lru(8, 8), room(1))
	r.local(Accepted, second, "update k v packet 0")
	r.expired(Refused, second, peer, 10, "p")
	r.want("p", "unknown")
	if st := r.tab.Stats(); st.Refused != 1 || st.Live != 1 {
		t.Errorf("%+v", st)
	}
}

// TestExpiryOfARefusedRecord: the writer writes the delete as a new write. It does not count as failed.
func TestExpiryOfARefusedRecord(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.remote(Accepted, second, peer, 10, "k", "v")
	r.refuse()
	r.expired(Accepted, 2*second, peer, 10, "k")
	if st := r.tab.Stats(); st.Failed != 0 || st.Dirty != 1 {
		t.Errorf("%d failed, %d dirty", st.Failed, st.Dirty)
	}
	if keys := r.write(); keys != "k" {
		t.Errorf("wrote %q", keys)
	}
}

// TestVanishedUnclaimedKey: a collector's delete of an unclaimed key leaves no record. The event may arrive
// after a later reread.
func TestVanishedUnclaimedKey(t *testing.T) {
	r := newRig(t, sameMap)
	r.load(Accepted, "k", "v")
	r.local(Unchanged, 5*second, "update k v reread 0")
	r.local(Accepted, 3*second, "delete k - syscall 0")
	r.wantRechecks("")
	r.claim()
	r.want("k", "unknown")
}

// TestVanishedDuringRefill: the writer does not write an unclaimed key that was deleted.
func TestVanishedDuringRefill(t *testing.T) {
	r := newRig(t)
	r.load(Accepted, "k", "v")
	r.tab.Update((*Tx).Refill)
	if n := r.tab.Stats().Dirty; n != 1 {
		t.Fatalf("%d dirty", n)
	}
	r.local(Accepted, 2*second, "delete k - syscall 0")
	if n := r.tab.Stats().Dirty; n != 0 {
		t.Errorf("%d dirty", n)
	}
}

// TestVanishedKeyReturns: a new key on the CPU of the delete is in order after it. On another CPU it may be older.
func TestVanishedKeyReturns(t *testing.T) {
	for cpu, reread := range map[string]string{"0": "", "1": "k"} {
		r := newRig(t, sameMap)
		r.load(Accepted, "k", "v")
		r.local(Accepted, 5*second, "delete k - syscall 0")
		r.claim()
		r.local(Accepted, 5*second+1, "update k v packet "+cpu)
		r.wantRechecks(reread)
	}
}

// TestUnseenEviction: a record that a reread does not find counts as evicted, and expires.
func TestUnseenEviction(t *testing.T) {
	r := newRig(t, lru(8, 8), func(o *Options) { o.EvictionsUnseen = true })
	r.local(Accepted, second, "update k v packet 0")
	r.tab.Update(func(tx *Tx) { tx.Reread(pad("k", simKey)) })
	r.wantRechecks("k")
	r.local(Stale, second-1, "delete k - reread 0")
	r.wantRechecks("k")
	r.local(Ignored, 2*second, "delete k - reread 0")
	r.expireEvicted(62*second - 1)
	r.wantLive("k", "k")
	r.expireEvicted(62 * second)
	r.wantLive("k", "")
}
