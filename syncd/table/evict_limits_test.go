package table

import (
	"fmt"
	"strings"
	"testing"
)

func (r *rig) expireEvictedOnce(now int64, limit int) (more bool) {
	r.tab.Update(func(tx *Tx) { more = tx.ExpireEvicted(now, limit) })
	return more
}

// evict writes keys, and simulates the eviction of each key by the kernel one second later.
func (r *rig) evict(at int64, keys ...string) {
	r.Helper()
	for i, k := range keys {
		now := at + int64(i)*second
		r.local(Accepted, now, "update "+k+" v packet 0")
		r.local(Ignored, now, "evict "+k+" - packet 0")
		r.takeRereads()
	}
}

// live returns those of the given keys that are live.
func (r *rig) live(keys string) (live string) {
	for _, k := range strings.Split(keys, "") {
		if s := r.state(k); s != "unknown" && s[0] != '-' {
			live += k
		}
	}
	return live
}

func (r *rig) wantLive(keys, want string) {
	r.Helper()
	if got := r.live(keys); got != want {
		r.Fatalf("live keys: got %q, want %q", got, want)
	}
}

// TestOldestEvictedRecordsExpire: above Options.MaxEvicted the oldest evicted records expire before
// the end of their lifetime.
func TestOldestEvictedRecordsExpire(t *testing.T) {
	r := newRig(t, lru(8, 2))
	r.evict(second, "a", "b", "c", "d")
	r.expireEvicted(5 * second)
	r.wantLive("abcd", "cd")
	r.expireEvicted(6 * second)
	r.evict(7*second, "e")
	r.expireEvicted(8 * second)
	r.wantLive("abcde", "de")
}

// TestExpireEvictedInParts: ExpireEvicted examines at most limit records. It returns true as long as
// there may be more to expire.
func TestExpireEvictedInParts(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.evict(second, "a", "b", "c")
	r.tab.Update(func(tx *Tx) { tx.RequestReread(pad("b", keySize)) })
	for i, want := range []struct {
		live  string
		limit int
		more  bool
	}{{"bc", 2, true}, {"bc", 0, false}, {"b", 3, false}, {"b", 1, false}} {
		if more := r.expireEvictedOnce(int64(100+i)*second, want.limit); more != want.more {
			t.Errorf("part %d: got more %v, want %v", i, more, want.more)
		}
		r.wantLive("abc", want.live)
	}
	// The expiry waited for the result of the reread.
	r.takeRereads()
	r.local(Unchanged, 110*second, "delete b - reread 0")
	r.expireEvicted(200 * second)
	r.wantLive("abc", "")
}

// TestExpireAboveLimitInParts: a table above its limit expires evicted records, at most limit at a
// time.
func TestExpireAboveLimitInParts(t *testing.T) {
	r := newRig(t, lru(8, 8), func(o *Options) { o.MaxLive = 2 })
	r.evict(second, "a", "b", "c", "d", "e")
	for i, want := range []struct {
		live string
		more bool
	}{{"cde", true}, {"de", false}, {"de", false}} {
		if more := r.expireEvictedOnce(7*second, 2); more != want.more {
			t.Errorf("part %d: got more %v, want %v", i, more, want.more)
		}
		r.wantLive("abcde", want.live)
	}
}

// TestEvictedAgain: a key that is created and evicted again expires one lifetime after the second
// eviction.
func TestEvictedAgain(t *testing.T) {
	r := newRig(t, lru(8, 8))
	for _, expire := range []bool{false, true, true} {
		now := r.tab.now + 100*second
		r.evict(now, "k")
		r.expireEvicted(now + 60*second - 1)
		r.wantLive("k", "k")
		if !expire {
			r.local(Unchanged, now+60*second-1, "update k v packet 0")
		}
		r.expireEvicted(now + 70*second)
		if is := r.live("k") == ""; is != expire {
			t.Fatalf("expired: got %v, want %v", is, expire)
		}
		r.tab.Update(func(tx *Tx) { tx.AdvanceClock(now + 70*second) })
		if !expire {
			r.local(Accepted, now+71*second, "delete k - packet 0")
		}
	}
}

// TestEvictedRecordLifetimeRestarts: the lifetime of an evicted record begins with its last use.
func TestEvictedRecordLifetimeRestarts(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.evict(second, "k")
	r.local(Unchanged, 30*second, "update k v packet 0")
	r.local(Ignored, 40*second, "evict k - packet 0")
	r.expireEvicted(100*second - 1)
	r.wantLive("k", "k")
	r.expireEvicted(100 * second)
	r.wantLive("k", "")
}

// TestDeleteOfAnEvictedRecord: the tombstone of a departed node does not become an expired one.
func TestDeleteOfAnEvictedRecord(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.evict(second, "k")
	r.remote(Accepted, 2*second, peer, Version(2*second), "k", "-")
	r.setGone("b", true)
	r.expireEvicted(100 * second)
	r.want("k", "- v2000000000 b100")
	var rec Record
	r.tab.View(func(tx *Tx) { tx.Get(pad("k", keySize), &rec) })
	if rec.Expired {
		t.Error("expiry of a deleted record: got expired, want deleted")
	}
}

// TestOwnerReturnsBeforeTheExpiry: only the owner expires a record after the owner has returned.
func TestOwnerReturnsBeforeTheExpiry(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.remote(Accepted, second, peer, 5, "p", "v")
	r.write()
	r.setGone("b", true)
	r.local(Ignored, 2*second, "evict p - packet 0")
	r.takeRereads()
	r.local(Unchanged, 3*second, "delete p - reread 0")
	r.setGone("b", false)
	r.expireEvicted(1000 * second)
	r.want("p", "v v5 b100")
}

// TestExpiryDeletesOlderEntry: the map may hold an older entry of the key. The expiry deletes it.
func TestExpiryDeletesOlderEntry(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.remote(Accepted, second, peer, 10, "k", "v")
	r.refuse()
	r.expired(Accepted, 2*second, peer, 10, "k")
	r.want("k", "- v10 b100 dirty")
	r.wantExpired("k", false)
}

// TestExpiryOfADeletedRecord: the writer still writes the pending delete.
func TestExpiryOfADeletedRecord(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.remote(Accepted, second, peer, 10, "k", "v")
	r.write()
	r.remote(Accepted, second, peer, 11, "k", "-")
	r.expired(Accepted, 2*second, peer, 12, "k")
	r.want("k", "- v12 b100 dirty")
	r.wantExpired("k", false)
}

// TestExpiryOfADisplacedRecord: the writer removed the entry from the map, so the record is not dirty.
func TestExpiryOfADisplacedRecord(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, 10, "k", "v")
	r.write()
	r.remote(Accepted, second, peer, 11, "l", "v")
	victim, key := r.displace(r.refuse()[0])
	if key != "k" {
		t.Fatalf("Displace: got victim %q, want k", key)
	}
	r.tab.Update(func(tx *Tx) { tx.Displaced(victim.Ref, 2*second) })
	r.tab.Update(func(tx *Tx) { tx.RequestReread(pad("k", keySize)) })
	r.expired(Accepted, 3*second, peer, 10, "k")
	r.want("k", "- v10 b100")
	r.wantExpired("k", false)
}

// TestReleasedEntryIsScanned: a scan that does not find a released entry requests a reread. An earlier
// report of an eviction does not change this.
func TestReleasedEntryIsScanned(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.remote(Accepted, 2*second, peer, 10, "k", "v")
	r.write()
	r.local(Ignored, second, "evict k - packet 0")
	r.wantRereads("k")
	r.expired(Accepted, 3*second, peer, 10, "k")
	r.scan(9 * second)
	r.wantRereads("k")
}

// TestReleasedEntriesAreRereadInTurn: if there are more released entries than the map holds, the table
// rereads all of them in turn. This includes an entry that left the map and was released again.
func TestReleasedEntriesAreRereadInTurn(t *testing.T) {
	r := newRig(t, lru(2, 8))
	release := func(v Version, keys ...string) {
		for _, k := range keys {
			r.remote(Accepted, second, peer, v, k, "v")
			r.write()
			r.takeRereads()
			r.expired(Accepted, 2*second, peer, v, k)
		}
	}
	turns := func(n int) (keys string) {
		for range n {
			r.expireEvictedOnce(3*second, 1)
			keys += r.takeRereads()
		}
		return keys
	}
	release(10, "a", "b")
	if got := turns(2); got != "" {
		t.Errorf("rereads: got %q, want none: the map holds as many entries", got)
	}
	release(10, "c")
	if got := turns(4); got != "abca" {
		t.Errorf("rereads: got %q, want abca", got)
	}
	r.local(Unchanged, 4*second, "delete b - reread 0")
	if got := turns(2); got != "" {
		t.Errorf("rereads after b left the map: got %q, want none", got)
	}
	release(11, "b")
	if got := turns(3); len(got) != 3 {
		t.Errorf("rereads: got %q, want three", got)
	}
}

// TestOwnRecordReceivedFromPeer: a peer sends a record of this incarnation that this node does not
// hold. This node had released it before.
func TestOwnRecordReceivedFromPeer(t *testing.T) {
	r := newRig(t, lru(8, 8), room(1))
	r.tab.Update((*Tx).BeginLoad)
	r.remote(Accepted, second, self, 2000, "k", "v")
	r.want("k", "- v2000 a100")
	r.wantExpired("k", false)
	r.wantRereads("")
	r = newRig(t, room(1))
	r.local(Accepted, second, "update l v packet 0")
	r.remote(Refused, second, self, 2000, "k", "v")
}

// TestReleasedEntryThatIsBeingWritten: the writer may write the entry after it was evicted or deleted.
// After an eviction the table rereads the key after the write. After a delete by the data plane the
// writer deletes the entry.
func TestReleasedEntryThatIsBeingWritten(t *testing.T) {
	for _, c := range []struct {
		event, rereads, writes string
		outcome                Outcome
	}{
		{"evict k - own 0", "k", "", Ignored},
		{"delete k - packet 0", "", "k", Unchanged},
	} {
		r := newRig(t)
		r.remote(Accepted, second, peer, 10, "k", "v")
		r.expired(Accepted, 2*second, peer, 10, "k")
		rec := r.take()
		if rec.Delete {
			t.Fatalf("%s: NextDirty of a released entry: got a delete, want the value", c.event)
		}
		r.local(c.outcome, 3*second, c.event)
		r.applied(rec, nil)
		r.wantRereads(c.rereads)
		if got := r.write(); got != c.writes {
			t.Errorf("%s: written keys: got %q, want %q", c.event, got, c.writes)
		}
	}
}

// TestReleasedEntriesAboveTheLimit: far above the size of the map, the oldest released entry loses its mark
// unless the writer has yet to write it. If it is released again, it has another turn.
func TestReleasedEntriesAboveTheLimit(t *testing.T) {
	const n = 2*minReleased + 3
	r := newRig(t, lru(2, 8))
	release := func(v Version, key string, write bool) {
		r.remote(Accepted, second, peer, v, key, "v")
		if write {
			r.write()
		}
		r.expired(Accepted, 2*second, peer, v, key)
	}
	for i := range n {
		release(10, fmt.Sprint(i), i > 0)
		if i == 0 {
			r.take() // the writer is about to write the first entry
		}
	}
	r.expireEvictedOnce(3*second, 2)
	r.wantExpired("0", true)
	r.wantExpired("1", false)
	r.wantExpired("2", true)
	release(11, "1", true)
	if got := r.tab.released.len(); got != n {
		t.Errorf("released entries that are reread in turn: got %d, want %d", got, n)
	}
}
