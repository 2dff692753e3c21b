package table

import (
	"encoding/binary"
	"strconv"
	"testing"
	"time"
)

func lru(entries, evicted int) func(*Options) {
	return func(o *Options) {
		o.LRU, o.MaxEntries, o.MaxEvicted, o.EvictedTTL = true, entries, evicted, time.Minute
	}
}

func (r *rig) expireEvicted(now int64) {
	r.tab.Update(func(tx *Tx) {
		for tx.ExpireEvicted(now, 4) {
		}
	})
}

func (r *rig) expired(want Outcome, now int64, o Owner, v Version, key string) {
	r.Helper()
	r.do(want, func(tx *Tx) Outcome {
		return tx.Remote(&Delta{Key: pad(key, simKey), Version: v, Owner: tx.Intern(o), Delete: true, Expired: true}, now, RemoteOptions{})
	})
}

// isExpired demands that a key is an expired tombstone, released or not.
func (r *rig) isExpired(key string, released bool) {
	r.Helper()
	_, s := r.tab.find(pad(key, simKey))
	if s == 0 || !r.tab.meta(s).is(flagExpired) || r.tab.meta(s).is(flagReleased) != released {
		r.Fatalf("%s is not an expired tombstone (released: %v)", key, released)
	}
}

func TestEvictedRecordsExpire(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.local(Accepted, 1*second, "update k v packet 0")
	r.local(Ignored, 2*second, "evict k - packet 0")
	r.expireEvicted(61 * second)
	r.want("k", "v v1000000000 a100")
	r.expireEvicted(62 * second)
	r.want("k", "- v1000000000 a100") // nothing is left to be written
	r.isExpired("k", false)
	// The same key can come back.
	r.local(Accepted, 70*second, "update k w packet 0")
	r.want("k", "w v70000000000 a100")
	r.rechecks()
	// One that came back before its time does not expire.
	r.local(Ignored, 71*second, "evict k - packet 0")
	r.local(Unchanged, 72*second, "update k w packet 0")
	r.expireEvicted(1000 * second)
	r.want("k", "w v70000000000 a100")
	// A live owner expires its records itself. An orphaned record is for any node to expire.
	r.remote(Accepted, 80*second, peer, 5, "p", "v")
	r.write()
	r.rechecks()
	r.local(Ignored, 81*second, "evict p - packet 0")
	r.rechecks()
	r.local(Unchanged, 82*second, "delete p - reread 0")
	r.expireEvicted(1000 * second)
	r.want("p", "v v5 b100")
	r.setGone("b", true)
	r.tab.Update(func(tx *Tx) {
		tx.BeginScan()
		for tx.EndScan(10) {
		}
	})
	r.rechecks()
	r.expireEvicted(1000 * second)
	r.want("p", "- v5 b100")
}

// TestEvictedRecordsAreBounded: 300,000 flows go through an LRU map of 1,024 entries.
func TestEvictedRecordsAreBounded(t *testing.T) {
	r := newRig(t, lru(1024, 0), func(o *Options) { o.TombstoneTTL = 10 * time.Second })
	const flows, room = 300_000, 1024
	key := func(i int) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(i)) }
	now, most := simStart, 0
	for i := range flows {
		now += 20_000
		r.tab.Update(func(tx *Tx) {
			tx.Local(&Change{Key: key(i), Value: pad("v", simValue), Time: now})
			if i >= room {
				tx.Local(&Change{Key: key(i - room), Time: now, Op: OpEvict})
			}
			if i%500 == 0 {
				for tx.ExpireEvicted(now, 100) {
				}
			}
		})
		most = max(most, r.tab.Stats().Live)
	}
	if most > 2*room+500 {
		t.Errorf("table of an LRU map of %d entries had %d live records", room, most)
	}
	r.expireEvicted(now + int64(time.Hour))
	if st := r.tab.Stats(); st.Live != room || st.EvictionsExpired != flows-room {
		t.Errorf("%d live records, %d expired", st.Live, st.EvictionsExpired)
	}
}

// TestExpiryDeletesNoEntry: a peer's expiry leaves the entry of the kernel map alone, and what
// the data plane does with the entry later counts.
func TestExpiryDeletesNoEntry(t *testing.T) {
	r := newRig(t, lru(8, 8))
	for _, k := range []string{"left", "used", "gone", "evicted"} {
		r.remote(Accepted, 1*second, peer, 10, k, "v")
	}
	r.write()
	r.rechecks()
	r.local(Ignored, 2*second, "evict evicted - packet 0")
	r.rechecks()
	r.local(Unchanged, 3*second, "delete evicted - reread 0")
	// It applies to the record that the peer gave up, and to no newer one.
	r.local(Accepted, 4*second, "update used w packet 0")
	r.rechecks()
	for _, k := range []string{"left", "gone", "evicted"} {
		r.expired(Accepted, 5*second, peer, 10, k)
	}
	r.expired(Stale, 5*second, peer, 10, "used")
	r.want("used", "w v4000000000 a100")
	if keys := r.write(); keys != "" {
		t.Fatalf("wrote %s", keys)
	}
	r.isExpired("left", true)
	r.isExpired("gone", true)
	r.isExpired("evicted", false)
	// A scan finds it there, which changes nothing.
	scan := func(at int64, what ...string) {
		r.tab.Update(func(tx *Tx) {
			tx.BeginScan()
			for _, w := range what {
				tx.Scanned(parseChange(t, w, at))
			}
			for tx.EndScan(10) {
			}
		})
	}
	scan(6*second, "update left v reread 0", "update gone v reread 0", "update used w reread 0")
	scan(7*second, "update left v reread 0", "update gone v reread 0", "update used w reread 0")
	r.isExpired("left", true)
	// Nothing forgets it as long as the map holds it.
	r.tab.Update(func(tx *Tx) { tx.Expire(simStart, 100) })
	r.want("left", "- v10 b100")
	// Once the map no longer holds it, it is a tombstone like any other.
	scan(8*second, "update left v reread 0", "update used w reread 0")
	r.wantRechecks("gone")
	r.local(Unchanged, 9*second, "delete gone - reread 0")
	r.isExpired("gone", false)
	// What the data plane changes is this node's.
	scan(10*second, "update left x reread 0", "update used w reread 0")
	r.wantRechecks("left")
	r.local(Accepted, 11*second, "update left x reread 0")
	r.want("left", "x v11000000000 a100")
}

// TestWriteOfReleasedEntry: a value that is on its way to the kernel map when the owner gives the
// record up is written, and not turned into a delete.
func TestWriteOfReleasedEntry(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.remote(Accepted, 1*second, peer, 10, "k", "v")
	r.expired(Accepted, 2*second, peer, 10, "k")
	rec := r.take()
	if rec.Delete || text(rec.Value) != "v" {
		t.Fatalf("the writer got %+v", rec)
	}
	r.applied(rec, nil)
	r.isExpired("k", true)
	// A real delete of it reaches the kernel map.
	r.remote(Accepted, 3*second, peer, 11, "k", "-")
	if rec = r.take(); !rec.Delete {
		t.Fatalf("the writer got %+v", rec)
	}
	r.applied(rec, nil)
}

// TestExpiryDuringDoubt: an eviction may be older than the last write of the entry. The expiry of
// the record does not make the entry this node's: the pending reread decides.
func TestExpiryDuringDoubt(t *testing.T) {
	r := newRig(t, lru(8, 8))
	for _, k := range []string{"left", "gone"} {
		r.remote(Accepted, 2*second, peer, 10, k, "v")
		r.write()
		r.local(Ignored, 1*second, "evict "+k+" - packet 0")
		r.wantRechecks(k)
		r.expired(Accepted, 3*second, peer, 10, k)
		r.isExpired(k, true)
	}
	r.local(Unchanged, 4*second, "update left v reread 0")
	r.isExpired("left", true)
	r.local(Unchanged, 4*second, "delete gone - reread 0")
	r.isExpired("gone", false)
}

// TestReleasedEntriesAreBounded: entries that the map cannot hold any more are read again, and at
// last forgotten.
func TestReleasedEntriesAreBounded(t *testing.T) {
	r := newRig(t, lru(10, 8))
	for i := range 3 * minReleased {
		k := string(rune('A' + i))
		r.remote(Accepted, 1*second, peer, 10, k, "v")
		r.write()
		r.expired(Accepted, 2*second, peer, 10, k)
		r.expireEvicted(3 * second)
		if n := r.tab.Stats().Released; n > 2*minReleased+2 {
			t.Fatalf("%d released entries of a map of 10", n)
		}
	}
	if r.tab.Stats().Released < minReleased {
		t.Error("entries of a small map are forgotten before the table can learn of evictions")
	}
	if r.rechecks() == "" {
		t.Error("nothing was read again")
	}
}

// TestReleasedEntryStays: entries that left the map, or were released before, do not make the
// table forget an entry that the map still holds.
func TestReleasedEntryStays(t *testing.T) {
	r := newRig(t, lru(10, 8))
	release := func(k string, v Version) {
		r.remote(Accepted, 1*second, peer, v, k, "v")
		r.write()
		r.rechecks()
		r.expired(Accepted, 2*second, peer, v, k)
	}
	release("left", 10)
	for i := range 3 * minReleased {
		k := strconv.Itoa(i)
		release(k, 10)
		r.local(Ignored, 4*second, "evict "+k+" - packet 0")
		r.rechecks()
		r.local(Unchanged, 5*second, "delete "+k+" - reread 0")
	}
	r.expireEvicted(6 * second)
	r.isExpired("left", true)
	r = newRig(t, lru(10, 8))
	for i := range Version(100) {
		release("left", 10+i)
	}
	if n := r.tab.released.len(); n != 1 {
		t.Errorf("one entry is in the queue %d times", n)
	}
}

// TestRestartDoesNotDeleteEvictions: what an LRU map evicted before syncd restarted is not there,
// which is not a delete. It expires.
func TestRestartDoesNotDeleteEvictions(t *testing.T) {
	r := newRig(t, sameMap, lru(8, 8))
	r.remote(Accepted, 1*second, older, 10, "k", "v")
	r.want("k", "v v10 a90")
	r.remote(Accepted, 1*second, older, 11, "gone", "-")
	r.want("gone", "- v11 a90")
	r.expireEvicted(61 * second)
	r.want("k", "- v10 a90")
	r.isExpired("k", false)
	// With eviction-deletes it is a delete, and so it is of a map that evicts nothing.
	for _, change := range []func(*Options){evictions, func(o *Options) { o.LRU = false }} {
		r := newRig(t, sameMap, lru(8, 8), change)
		r.remote(Accepted, 1*second, older, 10, "k", "v")
		r.want("k", "- v11 a100")
	}
}
