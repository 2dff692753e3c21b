package table

import (
	"encoding/binary"
	"strconv"
	"testing"
	"time"

	"mapsync/internal/race"
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
		return tx.Remote(&Delta{Key: pad(key, keySize), Version: v, Owner: tx.Intern(o), Delete: true, Expired: true}, now, RemoteOptions{})
	})
}

// wantExpired checks that a key is an expired tombstone, and whether it is released.
func (r *rig) wantExpired(key string, released bool) {
	r.Helper()
	_, s := r.tab.find(pad(key, keySize))
	if s == 0 || !r.tab.meta(s).is(flagExpired) || r.tab.meta(s).is(flagReleased) != released {
		r.Fatalf("%s: got no expired tombstone (want released %v)", key, released)
	}
}

func TestEvictedRecordsExpire(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.local(Accepted, 1*second, "update k v packet 0")
	r.local(Ignored, 2*second, "evict k - packet 0")
	r.expireEvicted(61 * second)
	r.want("k", "v v1000000000 a100")
	r.expireEvicted(62 * second)
	r.want("k", "- v1000000000 a100") // the writer has nothing to write
	r.wantExpired("k", false)
	// The same key can be created again.
	r.local(Accepted, 70*second, "update k w packet 0")
	r.want("k", "w v70000000000 a100")
	r.takeRereads()
	// A key that was created again before the end of its lifetime does not expire.
	r.local(Ignored, 71*second, "evict k - packet 0")
	r.local(Unchanged, 72*second, "update k w packet 0")
	r.expireEvicted(1000 * second)
	r.want("k", "w v70000000000 a100")
	// A live owner expires its records itself. Any node may expire an orphaned record.
	r.remote(Accepted, 80*second, peer, 5, "p", "v")
	r.write()
	r.takeRereads()
	r.local(Ignored, 81*second, "evict p - packet 0")
	r.takeRereads()
	r.local(Unchanged, 82*second, "delete p - reread 0")
	r.expireEvicted(1000 * second)
	r.want("p", "v v5 b100")
	r.setGone("b", true)
	r.tab.Update(func(tx *Tx) {
		tx.BeginScan(0)
		for tx.EndScan(10) {
		}
	})
	r.takeRereads()
	r.expireEvicted(1000 * second)
	r.want("p", "- v5 b100")
}

// TestEvictedRecordsAreBounded: 300,000 flows go through an LRU map of 1,024 entries.
func TestEvictedRecordsAreBounded(t *testing.T) {
	race.SkipSequential(t)
	r := newRig(t, lru(1024, 0), func(o *Options) { o.TombstoneTTL = 10 * time.Second })
	const flows, room = 300_000, 1024
	key := func(i int) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(i)) }
	now, most := startTime, 0
	for i := range flows {
		now += 20_000
		r.tab.Update(func(tx *Tx) {
			tx.Local(&Change{Key: key(i), Value: pad("v", valueSize), Time: now})
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
		t.Errorf("live records for an LRU map of %d entries: got up to %d, want at most %d", room, most, 2*room+500)
	}
	r.expireEvicted(now + int64(time.Hour))
	if st := r.tab.Stats(); st.Live != room || st.EvictionsExpired != flows-room {
		t.Errorf("live records: got %d, %d expired, want %d and %d", st.Live, st.EvictionsExpired, room, flows-room)
	}
}

// TestExpiryDeletesNoEntry: the expiry of a peer leaves the entry in the kernel map. Later changes of
// the entry by the data plane are accepted.
func TestExpiryDeletesNoEntry(t *testing.T) {
	r := newRig(t, lru(8, 8))
	for _, k := range []string{"left", "used", "gone", "evicted"} {
		r.remote(Accepted, 1*second, peer, 10, k, "v")
	}
	r.write()
	r.takeRereads()
	r.local(Ignored, 2*second, "evict evicted - packet 0")
	r.takeRereads()
	r.local(Unchanged, 3*second, "delete evicted - reread 0")
	// The expiry applies to the record that the peer released, and not to a newer one.
	r.local(Accepted, 4*second, "update used w packet 0")
	r.takeRereads()
	for _, k := range []string{"left", "gone", "evicted"} {
		r.expired(Accepted, 5*second, peer, 10, k)
	}
	r.expired(Stale, 5*second, peer, 10, "used")
	r.want("used", "w v4000000000 a100")
	if keys := r.write(); keys != "" {
		t.Fatalf("written keys: got %q, want none", keys)
	}
	r.wantExpired("left", true)
	r.wantExpired("gone", true)
	r.wantExpired("evicted", false)
	// A scan finds the entry, which changes nothing.
	scan := func(at int64, what ...string) {
		r.tab.Update(func(tx *Tx) {
			tx.BeginScan(0)
			for _, w := range what {
				tx.Scanned(parseChange(t, w, at))
			}
			for tx.EndScan(10) {
			}
		})
	}
	scan(6*second, "update left v reread 0", "update gone v reread 0", "update used w reread 0")
	scan(7*second, "update left v reread 0", "update gone v reread 0", "update used w reread 0")
	r.wantExpired("left", true)
	// The table keeps the tombstone as long as the map holds the entry.
	r.tab.Update(func(tx *Tx) { tx.Expire(startTime, 100) })
	r.want("left", "- v10 b100")
	// It becomes an ordinary tombstone when the map no longer holds the entry.
	scan(8*second, "update left v reread 0", "update used w reread 0")
	r.wantRereads("gone")
	r.local(Unchanged, 9*second, "delete gone - reread 0")
	r.wantExpired("gone", false)
	// This node owns an entry that the data plane has changed.
	scan(10*second, "update left x reread 0", "update used w reread 0")
	r.wantRereads("left")
	r.local(Accepted, 11*second, "update left x reread 0")
	r.want("left", "x v11000000000 a100")
}

// TestWriteOfReleasedEntry: the owner releases a record while its value is on the way to the kernel
// map. The writer writes the value and does not delete the entry.
func TestWriteOfReleasedEntry(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.remote(Accepted, 1*second, peer, 10, "k", "v")
	r.expired(Accepted, 2*second, peer, 10, "k")
	rec := r.take()
	if rec.Delete || text(rec.Value) != "v" {
		t.Fatalf("NextDirty: got %+v, want value v and no delete", rec)
	}
	r.applied(rec, nil)
	r.wantExpired("k", true)
	// The kernel map receives a real delete of the key.
	r.remote(Accepted, 3*second, peer, 11, "k", "-")
	if rec = r.take(); !rec.Delete {
		t.Fatalf("NextDirty: got %+v, want a delete", rec)
	}
	r.applied(rec, nil)
}

// TestExpiryDuringPendingReread: an eviction may be older than the last write of the entry. The expiry
// of the record does not change the owner of the entry: the pending reread decides.
func TestExpiryDuringPendingReread(t *testing.T) {
	r := newRig(t, lru(8, 8))
	for _, k := range []string{"left", "gone"} {
		r.remote(Accepted, 2*second, peer, 10, k, "v")
		r.write()
		r.local(Ignored, 1*second, "evict "+k+" - packet 0")
		r.wantRereads(k)
		r.expired(Accepted, 3*second, peer, 10, k)
		r.wantExpired(k, true)
	}
	r.local(Unchanged, 4*second, "update left v reread 0")
	r.wantExpired("left", true)
	r.local(Unchanged, 4*second, "delete gone - reread 0")
	r.wantExpired("gone", false)
}

// TestReleasedEntriesAreBounded: the table rereads released entries that exceed the size of the map,
// and finally forgets them.
func TestReleasedEntriesAreBounded(t *testing.T) {
	r := newRig(t, lru(10, 8))
	for i := range 3 * minReleased {
		k := string(rune('A' + i))
		r.remote(Accepted, 1*second, peer, 10, k, "v")
		r.write()
		r.expired(Accepted, 2*second, peer, 10, k)
		r.expireEvicted(3 * second)
		if n := r.tab.Stats().Released; n > 2*minReleased+2 {
			t.Fatalf("released entries: got %d for a map of 10 entries, want at most %d", n, 2*minReleased+2)
		}
	}
	if r.tab.Stats().Released < minReleased {
		t.Error("released entries of a small map: got forgotten, want kept until evictions are reported")
	}
	if r.takeRereads() == "" {
		t.Error("rereads: got none, want some")
	}
}

// TestReleasedEntryInMapIsKept: entries that left the map, or were released before, do not displace a
// released entry that the map still holds.
func TestReleasedEntryInMapIsKept(t *testing.T) {
	r := newRig(t, lru(10, 8))
	release := func(k string, v Version) {
		r.remote(Accepted, 1*second, peer, v, k, "v")
		r.write()
		r.takeRereads()
		r.expired(Accepted, 2*second, peer, v, k)
	}
	release("left", 10)
	for i := range 3 * minReleased {
		k := strconv.Itoa(i)
		release(k, 10)
		r.local(Ignored, 4*second, "evict "+k+" - packet 0")
		r.takeRereads()
		r.local(Unchanged, 5*second, "delete "+k+" - reread 0")
	}
	r.expireEvicted(6 * second)
	r.wantExpired("left", true)
	r = newRig(t, lru(10, 8))
	for i := range Version(100) {
		release("left", 10+i)
	}
	if n := r.tab.released.len(); n != 1 {
		t.Errorf("queue of released entries: got one entry %d times, want 1", n)
	}
}

// TestRestartDoesNotDeleteEvictions: an LRU map evicted an entry before syncd restarted. The missing
// entry expires and does not count as deleted.
func TestRestartDoesNotDeleteEvictions(t *testing.T) {
	r := newRig(t, sameMap, lru(8, 8))
	r.remote(Accepted, 1*second, older, 10, "k", "v")
	r.want("k", "v v10 a90")
	r.remote(Accepted, 1*second, older, 11, "gone", "-")
	r.want("gone", "- v11 a90")
	r.expireEvicted(61 * second)
	r.want("k", "- v10 a90")
	r.wantExpired("k", false)
	// The missing entry counts as deleted with EvictionDeletes, and also in a map without LRU
	// eviction.
	for _, change := range []func(*Options){evictions, func(o *Options) { o.LRU = false }} {
		r := newRig(t, sameMap, lru(8, 8), change)
		r.remote(Accepted, 1*second, older, 10, "k", "v")
		r.want("k", "- v11 a100")
	}
}
