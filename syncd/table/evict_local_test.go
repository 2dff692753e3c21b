package table

import "testing"

// TestEvictionOfAnUnknownKey: Stats counts the eviction, and no record expires.
func TestEvictionOfAnUnknownKey(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.local(Ignored, second, "evict k - packet 0")
	r.expireEvicted(1000 * second)
	if st := r.tab.Stats(); st.Evictions != 1 || st.EvictionsExpired != 0 || r.tab.evicted.len() != 0 {
		t.Errorf("evictions: got %d, %d expired, %d pending, want 1 and 0 and 0", st.Evictions, st.EvictionsExpired, r.tab.evicted.len())
	}
	r.want("k", "unknown")
}

// TestEvictedRecordIsQueuedOnce: a record that is evicted twice is queued once, and only on a node
// that may expire it.
func TestEvictedRecordIsQueuedOnce(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.local(Accepted, second, "update k v packet 0")
	r.remote(Accepted, second, peer, 10, "p", "v")
	r.remote(Accepted, second, other, 10, "q", "v")
	r.setGone("c", true)
	r.write()
	for i, want := range []int{1, 1, 2, 2} {
		r.local(Ignored, 2*second+int64(i), "evict "+[]string{"k", "k", "q", "p"}[i]+" - packet 0")
		if n := r.tab.evicted.len(); n != want {
			t.Errorf("queued records: got %d after eviction %d, want %d", n, i, want)
		}
	}
}

// TestUpdateAtEvictionTime: an update with the time of the eviction ends it. A much earlier update does
// not.
func TestUpdateAtEvictionTime(t *testing.T) {
	for before, want := range map[int64]string{0: "k", timestampMargin + 1: ""} {
		r := newRig(t, lru(8, 8))
		r.local(Accepted, second, "update k v packet 0")
		r.local(Ignored, 9*second, "evict k - packet 0")
		r.local(Unchanged, 9*second-before, "update k v packet 0")
		r.takeRereads()
		r.expireEvicted(1000 * second)
		r.wantLive("k", want)
	}
}

// TestDeleteAfterLateUpdate: a reread finds that a key is not in the map, before the events of an update and
// a delete arrive. The delete is not older than the update. The record would otherwise stay as an evicted one.
func TestDeleteAfterLateUpdate(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.local(Accepted, second, "update k v packet 0")
	r.local(Ignored, 2*second, "evict k - packet 0")
	r.local(Unchanged, 9*second, "delete k - reread 0")
	r.local(Accepted, 5*second, "update k w packet 0")
	r.local(Accepted, 5*second+1, "delete k - packet 0")
	r.want("k", "- v5000000001 a100")
}

// TestExpiryMovesToTheTail: peers that have read the record also read its expiry.
func TestExpiryMovesToTheTail(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.evict(second, "k")
	r.local(Accepted, second, "update l v packet 0")
	r.wantOrder("kl")
	r.expireEvicted(100 * second)
	r.wantOrder("lk")
}

// TestEvictionThatDeletes: EvictionDeletes turns an eviction into a delete, which may be stale. The
// record of a peer stays.
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

// TestEvictionOfATombstone: an older eviction does not request a reread of a deleted key.
func TestEvictionOfATombstone(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.local(Accepted, second, "update k v packet 0")
	r.local(Accepted, 5*second, "delete k - packet 0")
	r.takeRereads()
	r.local(Ignored, 2*second, "evict k - packet 0")
	r.wantRereads("")
}

// TestExpiryInAFullTable: an expired record of an unknown key needs room like any other record.
func TestExpiryInAFullTable(t *testing.T) {
	r := newRig(t, lru(8, 8), room(1))
	r.local(Accepted, second, "update k v packet 0")
	r.expired(Refused, second, peer, 10, "p")
	r.want("p", "unknown")
	if st := r.tab.Stats(); st.Refused != 1 || st.Live != 1 {
		t.Errorf("stats: got %+v, want Refused 1, Live 1", st)
	}
}

// TestExpiryOfARefusedRecord: the writer writes the delete as a new write. The delete does not count
// as failed.
func TestExpiryOfARefusedRecord(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.remote(Accepted, second, peer, 10, "k", "v")
	r.refuse()
	r.expired(Accepted, 2*second, peer, 10, "k")
	if st := r.tab.Stats(); st.Failed != 0 || st.Dirty != 1 {
		t.Errorf("records: got %d failed, %d dirty, want 0 and 1", st.Failed, st.Dirty)
	}
	if keys := r.write(); keys != "k" {
		t.Errorf("written keys: got %q, want k", keys)
	}
}

// TestUnversionedKeyDeletedByCollector: a collector's delete of an unversioned key leaves no record.
// The event may arrive after a later reread.
func TestUnversionedKeyDeletedByCollector(t *testing.T) {
	r := newRig(t, sameMap)
	r.load(Accepted, "k", "v")
	r.local(Unchanged, 5*second, "update k v reread 0")
	r.local(Accepted, 3*second, "delete k - syscall 0")
	r.wantRereads("")
	r.adopt()
	r.want("k", "unknown")
}

// TestUnversionedKeyDeletedDuringRefill: the writer does not write an unversioned key that was
// deleted.
func TestUnversionedKeyDeletedDuringRefill(t *testing.T) {
	r := newRig(t)
	r.load(Accepted, "k", "v")
	r.tab.Update((*Tx).Refill)
	if n := r.tab.Stats().Dirty; n != 1 {
		t.Fatalf("dirty records: got %d, want 1", n)
	}
	r.local(Accepted, 2*second, "delete k - syscall 0")
	if n := r.tab.Stats().Dirty; n != 0 {
		t.Errorf("dirty records: got %d, want 0", n)
	}
}

// TestDeletedUnversionedKeyReturns: a new key is later than the delete if both events come from one
// CPU. An event of another CPU may be older.
func TestDeletedUnversionedKeyReturns(t *testing.T) {
	for cpu, reread := range map[string]string{"0": "", "1": "k"} {
		r := newRig(t, sameMap)
		r.load(Accepted, "k", "v")
		r.local(Accepted, 5*second, "delete k - syscall 0")
		r.adopt()
		r.local(Accepted, 5*second+1, "update k v packet "+cpu)
		r.wantRereads(reread)
	}
}

// TestUnseenEviction: a record whose key a reread does not find counts as evicted, and expires.
func TestUnseenEviction(t *testing.T) {
	r := newRig(t, lru(8, 8), func(o *Options) { o.LRU = true })
	r.local(Accepted, second, "update k v packet 0")
	r.tab.Update(func(tx *Tx) { tx.RequestReread(pad("k", keySize)) })
	r.wantRereads("k")
	r.local(Stale, second-1, "delete k - reread 0")
	r.wantRereads("k")
	r.local(Ignored, 2*second, "delete k - reread 0")
	r.expireEvicted(62*second - 1)
	r.wantLive("k", "k")
	r.expireEvicted(62 * second)
	r.wantLive("k", "")
}

// TestDeleteByCallIsNoEviction: without hooks on evictions, an absent key was deleted if a call of bpf(2) has reported
// its delete, and evicted otherwise.
func TestDeleteByCallIsNoEviction(t *testing.T) {
	r := newRig(t, lru(8, 8), func(o *Options) { o.LRU = true })
	deleted := func(key string) {
		r.tab.Update(func(tx *Tx) { tx.RequestRereadOfDelete(pad(key, keySize)) })
		r.wantRereads(key)
	}
	r.local(Accepted, second, "update k v packet 0")
	deleted("k")
	r.local(Stale, second-1, "delete k - reread 0") // the read may be older than the write
	r.wantRereads("k")
	r.local(Accepted, 2*second, "delete k - reread 0")
	r.want("k", "- v2000000000 a100")

	// The entry of a peer is restored, as after any delete by a call.
	r.remote(Accepted, 3*second, peer, 3_000_000_000, "p", "v")
	r.write()
	deleted("p")
	r.local(Restored, 4*second, "delete p - reread 0")

	// A call that did not delete the key, or that was before another reread, says nothing about its later absence.
	r.local(Accepted, 5*second, "update l v packet 0")
	deleted("l")
	r.local(Unchanged, 6*second, "update l v reread 0")
	r.local(Ignored, 7*second, "delete l - reread 0")
	r.want("l", "v v5000000000 a100")

	// A scan has found the absence before the event of the call arrives.
	r.local(Accepted, 7*second, "update n v packet 0")
	r.local(Ignored, 7*second+timestampMargin, "delete n - reread 0")
	deleted("n")
	r.local(Accepted, 8*second, "delete n - reread 0")

	// A reread that began before the call says nothing either.
	r.local(Accepted, 8*second, "update m v packet 0")
	early := r.read(9 * second)
	r.tab.Update(func(tx *Tx) { tx.RequestRereadOfDelete(pad("m", keySize)) })
	early.found(Unchanged, "m", "v")
	r.wantRereads("m")
	r.local(Accepted, 10*second, "delete m - reread 0")
	r.tab.Update(func(tx *Tx) {
		tx.RequestRereadOfDelete([]byte("short"))
		tx.RequestRereadOfDelete(pad("unknown", keySize))
	})
	r.wantRereads("unknown")
	r.local(Unchanged, 11*second, "delete unknown - reread 0")
}

// CPU 1 creates an evicted entry again. By their times, the eviction came later. A reread that begins after
// both events finds the entry: it is not evicted, so a delete by its owner deletes it from the map.
func TestRereadFindsAnEvictedEntry(t *testing.T) {
	r := newRig(t, func(o *Options) { o.LRU = true })
	r.local(Accepted, 2*second, "update k v packet 1")
	r.local(Ignored, 2*second+50_000, "evict k - packet 0")
	r.wantRereads("k")
	r.read(2*second+40_000).found(Unchanged, "k", "v") // by a clock that is slightly behind
	r.remote(Accepted, 2*second+60_000, peer, 3_000_000_000, "k", "-")
	if got := r.write(); got != "k" {
		t.Errorf("deleted keys: got %q, want k", got)
	}
	// A reread that began before the eviction proves nothing.
	r.local(Accepted, 4*second, "update k v packet 0")
	early := r.read(4*second + 10)
	r.local(Ignored, 4*second+20, "evict k - packet 0")
	early.found(Stale, "k", "v")
	r.wantRereads("k")
}

// The value that a table loaded from the map was written at about the time of an eviction. The event of the
// write arrives after that of the eviction and does not show which came last.
func TestWriteOfALoadedValueAtEvictionTime(t *testing.T) {
	for at, rereads := range map[int64]string{
		2*second - 400_000:             "k",
		2*second - timestampMargin:     "k",
		2*second - timestampMargin - 1: "",
		2*second - 10*timestampMargin:  "",
	} {
		r := newRig(t, func(o *Options) { o.LRU = true })
		r.tab.Update(func(tx *Tx) { tx.BeginLoad() })
		r.load(Accepted, "k", "v")
		r.adopt()
		r.local(Ignored, 2*second, "evict k - packet 0")
		r.local(Unchanged, at, "update k v packet 1")
		r.wantRereads(rereads)
	}
}
