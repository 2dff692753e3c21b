package table

import (
	"strings"
	"testing"
)

func (r *rig) expireEvictedOnce(now int64, limit int) (more bool) {
	r.tab.Update(func(tx *Tx) { more = tx.ExpireEvicted(now, limit) })
	return more
}

// evict writes keys and has the kernel evict them, a second later each.
func (r *rig) evict(at int64, keys ...string) {
	r.Helper()
	for i, k := range keys {
		now := at + int64(i)*second
		r.local(Accepted, now, "update "+k+" v packet 0")
		r.local(Ignored, now, "evict "+k+" - packet 0")
		r.rechecks()
	}
}

// live returns which of some keys are live.
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
		r.Fatalf("%q are live, want %q", got, want)
	}
}

// TestOldestEvictedRecordsExpire: above Options.MaxEvicted the oldest expire before their time.
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

// TestExpireEvictedInParts: it looks at no more records than the limit, and returns true as long as there may
// be more to expire.
func TestExpireEvictedInParts(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.evict(second, "a", "b", "c")
	r.tab.Update(func(tx *Tx) { tx.Reread(pad("b", simKey)) })
	for i, want := range []struct {
		live  string
		limit int
		more  bool
	}{{"bc", 2, true}, {"bc", 0, false}, {"b", 3, false}, {"b", 1, false}} {
		if more := r.expireEvictedOnce(int64(100+i)*second, want.limit); more != want.more {
			t.Errorf("part %d: more %v", i, more)
		}
		r.wantLive("abc", want.live)
	}
	// The answer of the reread is what it waited for.
	r.rechecks()
	r.local(Unchanged, 110*second, "delete b - reread 0")
	r.expireEvicted(200 * second)
	r.wantLive("abc", "")
}

// TestMakeWayInParts: a table above its limit expires evicted records, no more than the limit at a time.
func TestMakeWayInParts(t *testing.T) {
	r := newRig(t, lru(8, 8), func(o *Options) { o.MaxLive = 2 })
	r.evict(second, "a", "b", "c", "d", "e")
	for i, want := range []struct {
		live string
		more bool
	}{{"cde", true}, {"de", false}, {"de", false}} {
		if more := r.expireEvictedOnce(7*second, 2); more != want.more {
			t.Errorf("part %d: more %v", i, more)
		}
		r.wantLive("abcde", want.live)
	}
}

// TestEvictedAgain: a key that comes back and is evicted again expires again, a lifetime after that.
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
			t.Fatalf("expired: %v, want %v", is, expire)
		}
		r.tab.Update(func(tx *Tx) { tx.Now(now + 70*second) })
		if !expire {
			r.local(Accepted, now+71*second, "delete k - packet 0")
		}
	}
}

// TestEvictedTwice: the lifetime of an evicted record begins with its last use.
func TestEvictedTwice(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.evict(second, "k")
	r.local(Unchanged, 30*second, "update k v packet 0")
	r.local(Ignored, 40*second, "evict k - packet 0")
	r.expireEvicted(100*second - 1)
	r.wantLive("k", "k")
	r.expireEvicted(100 * second)
	r.wantLive("k", "")
}

// TestDeleteOfAnEvictedRecord: the tombstone of a node that has left does not become an expired one.
func TestDeleteOfAnEvictedRecord(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.evict(second, "k")
	r.remote(Accepted, 2*second, peer, Version(2*second), "k", "-")
	r.setGone("b", true)
	r.expireEvicted(100 * second)
	r.want("k", "- v2000000000 b100")
	var rec Record
	r.tab.View(func(tx *Tx) { tx.Get(pad("k", simKey), &rec) })
	if rec.Expired {
		t.Error("a deleted record expired")
	}
}

// TestOwnerReturnsBeforeTheExpiry: a record whose owner is live again is the owner's to expire.
func TestOwnerReturnsBeforeTheExpiry(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.remote(Accepted, second, peer, 5, "p", "v")
	r.write()
	r.setGone("b", true)
	r.local(Ignored, 2*second, "evict p - packet 0")
	r.rechecks()
	r.local(Unchanged, 3*second, "delete p - reread 0")
	r.setGone("b", false)
	r.expireEvicted(1000 * second)
	r.want("p", "v v5 b100")
}

// TestExpiryOfWhatTheMapRefused: the entry that the map may hold instead is older, and is deleted.
func TestExpiryOfWhatTheMapRefused(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.remote(Accepted, second, peer, 10, "k", "v")
	r.refuse()
	r.expired(Accepted, 2*second, peer, 10, "k")
	r.want("k", "- v10 b100 dirty")
	r.isExpired("k", false)
}

// TestExpiryOfADeletedRecord: a delete that is still to be written is written.
func TestExpiryOfADeletedRecord(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.remote(Accepted, second, peer, 10, "k", "v")
	r.write()
	r.remote(Accepted, second, peer, 11, "k", "-")
	r.expired(Accepted, 2*second, peer, 12, "k")
	r.want("k", "- v12 b100 dirty")
	r.isExpired("k", false)
}

// TestExpiryOfADisplacedRecord: the writer took it out of the map, so nothing is to be written.
func TestExpiryOfADisplacedRecord(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, 10, "k", "v")
	r.write()
	r.remote(Accepted, second, peer, 11, "l", "v")
	victim, key := r.displace(r.refuse()[0])
	if key != "k" {
		t.Fatalf("%q is displaced", key)
	}
	r.tab.Update(func(tx *Tx) { tx.Displaced(victim.Ref, victim.Version, 2*second) })
	r.tab.Update(func(tx *Tx) { tx.Reread(pad("k", simKey)) })
	r.expired(Accepted, 3*second, peer, 10, "k")
	r.want("k", "- v10 b100")
	r.isExpired("k", false)
}

// TestReleasedEntryIsScanned: a scan that does not find a released entry has it read again, also if an
// eviction was reported before.
func TestReleasedEntryIsScanned(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.remote(Accepted, 2*second, peer, 10, "k", "v")
	r.write()
	r.local(Ignored, second, "evict k - packet 0")
	r.wantRechecks("k")
	r.expired(Accepted, 3*second, peer, 10, "k")
	r.scan(9 * second)
	r.wantRechecks("k")
}

// TestReleasedEntriesTakeTurns: while there are more released entries than the map holds, all are read again
// in turn. An entry that left the map and is released again takes part.
func TestReleasedEntriesTakeTurns(t *testing.T) {
	r := newRig(t, lru(2, 8))
	release := func(v Version, keys ...string) {
		for _, k := range keys {
			r.remote(Accepted, second, peer, v, k, "v")
			r.write()
			r.rechecks()
			r.expired(Accepted, 2*second, peer, v, k)
		}
	}
	turns := func(n int) (keys string) {
		for range n {
			r.expireEvictedOnce(3*second, 1)
			keys += r.rechecks()
		}
		return keys
	}
	release(10, "a", "b")
	if got := turns(2); got != "" {
		t.Errorf("%q are read again, the map holds as many", got)
	}
	release(10, "c")
	if got := turns(4); got != "abca" {
		t.Errorf("%q are read again", got)
	}
	r.local(Unchanged, 4*second, "delete b - reread 0")
	if got := turns(2); got != "" {
		t.Errorf("%q are read again, b has left the map", got)
	}
	release(11, "b")
	if got := turns(3); len(got) != 3 {
		t.Errorf("%q are read again", got)
	}
}

// TestOwnRecordThatAPeerHolds: a record of this incarnation that this node does not have was given up before.
func TestOwnRecordThatAPeerHolds(t *testing.T) {
	r := newRig(t, lru(8, 8), room(1))
	r.tab.Update((*Tx).BeginLoad)
	r.remote(Accepted, second, self, 2000, "k", "v")
	r.want("k", "- v2000 a100")
	r.isExpired("k", false)
	r.wantRechecks("")
	r = newRig(t, room(1))
	r.local(Accepted, second, "update l v packet 0")
	r.remote(Refused, second, self, 2000, "k", "v")
}

// TestReleasedEntryThatIsBeingWritten: the writer may write the entry after it was evicted or deleted. If it
// was evicted, the key is read again after the write; if the data plane deleted it, the writer deletes it.
func TestReleasedEntryThatIsBeingWritten(t *testing.T) {
	for _, c := range []struct {
		event, rechecks, writes string
		outcome                 Outcome
	}{
		{"evict k - own 0", "k", "", Ignored},
		{"delete k - packet 0", "", "k", Unchanged},
	} {
		r := newRig(t)
		r.remote(Accepted, second, peer, 10, "k", "v")
		r.expired(Accepted, 2*second, peer, 10, "k")
		rec := r.take()
		if rec.Delete {
			t.Fatalf("%s: the writer deletes a released entry", c.event)
		}
		r.local(c.outcome, 3*second, c.event)
		r.applied(rec, nil)
		r.wantRechecks(c.rechecks)
		if got := r.write(); got != c.writes {
			t.Errorf("%s: the writer writes %q, want %q", c.event, got, c.writes)
		}
	}
}
