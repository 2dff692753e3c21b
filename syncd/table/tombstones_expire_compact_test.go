package table

import (
	"testing"
	"time"
)

// queueTombstone creates a tombstone with a pending reread, which therefore waits in its slot.
func (r *rig) queueTombstone(at int64, key string) {
	r.Helper()
	r.tab.Update(func(tx *Tx) { tx.RequestReread(pad(key, keySize)) })
	r.wantRereads(key)
	r.write()
	n := r.tab.tombs.len()
	r.compact(at+6*second, r.tab.log.n)
	if r.tab.tombs.len() != n+1 {
		r.Fatalf("%d tombstones in the queue, want %d", r.tab.tombs.len(), n+1)
	}
}

// TestQueuedKeyIsRecreated: the next tombstone of the key has a full lifetime like any other.
func TestQueuedKeyIsRecreated(t *testing.T) {
	r := newRig(t, func(o *Options) { o.TombstoneTTL = time.Minute })
	r.local(Accepted, second, "update k v packet 0")
	r.local(Accepted, second, "delete k - packet 0")
	r.queueTombstone(second, "k")
	r.local(Accepted, 9*second, "update k v packet 0")
	r.takeRereads()
	r.expire(70*second, 9)
	r.wantOrder("k")
	r.local(Accepted, 71*second, "delete k - packet 0")
	r.takeRereads()
	r.local(Unchanged, 72*second, "delete k - reread 0")
	r.write()
	r.expire(132*second-1, 9)
	r.want("k", "- v71000000000 a100")
	r.expire(132*second, 9)
	r.want("k", "unknown")
}

// TestQueuedTombstoneIsForgotten: the table forgets the tombstone at the end of its lifetime, also
// while the map is loaded. In that case it rereads the key after the load has read it. The id of the
// owner is free.
func TestQueuedTombstoneIsForgotten(t *testing.T) {
	r := newRig(t, func(o *Options) { o.TombstoneTTL = time.Minute })
	r.remote(Accepted, second, peer, 10, "k", "-")
	r.queueTombstone(second, "k")
	r.tab.Update((*Tx).BeginLoad)
	r.expire(61*second-1, 9)
	r.want("k", "- v10 b100")
	r.expire(61*second, 9)
	r.want("k", "unknown")
	r.load(Accepted, "k", "v")
	r.want("k", "v v0 a100")
	r.wantRereads("kk") // of the tombstone, and of the new record
	r.tab.View((*Tx).ReclaimOwners)
	r.tab.View(func(tx *Tx) {
		tx.Owners(func(o Owner) {
			if o == peer {
				t.Error("id of an owner without records: got one, want none")
			}
		})
	})
}

// TestReleasedTombstoneStays: a released tombstone stays beyond its lifetime, until the map no longer
// holds the entry.
func TestReleasedTombstoneStays(t *testing.T) {
	r := newRig(t, lru(8, 8), func(o *Options) { o.TombstoneTTL = time.Minute })
	r.remote(Accepted, second, peer, 10, "k", "v")
	r.write()
	r.expired(Accepted, 2*second, peer, 10, "k")
	for _, now := range []int64{10, 100, 200, 300} {
		if r.expire(now*second, 1) && now > 10 {
			t.Errorf("Expire at %d s: got more true, want false", now)
		}
		r.wantExpired("k", true)
	}
	r.takeRereads()
	r.scan(301 * second)
	r.wantRereads("k")
	r.local(Unchanged, 302*second, "delete k - reread 0")
	r.wantExpired("k", false)
	r.expire(500*second, 9)
	r.want("k", "unknown")
}

// TestRequeuedKeyFreesNoElement: a full table takes the element of a key that is live again from the queue. This makes no
// room, and the table forgets the next tombstone of the key at the end of its lifetime.
func TestRequeuedKeyFreesNoElement(t *testing.T) {
	r := newRig(t, room(1), func(o *Options) { o.TombstoneTTL = time.Minute })
	r.local(Accepted, second, "update k v packet 0")
	r.local(Accepted, second, "delete k - packet 0")
	r.queueTombstone(second, "k")
	r.local(Accepted, 9*second, "update k v packet 0")
	r.takeRereads()
	r.remote(Refused, 10*second, peer, Version(10*second), "l", "v")
	if st := r.tab.Stats(); st.ExpiredEarly != 0 || r.tab.tombs.len() != 0 {
		t.Errorf("tombstones: got %d forgotten early, %d queued, want 0 and 0", st.ExpiredEarly, r.tab.tombs.len())
	}
	r.local(Accepted, 71*second, "delete k - packet 0")
	r.takeRereads()
	r.local(Unchanged, 72*second, "delete k - reread 0")
	r.write()
	r.expire(140*second, 9)
	r.want("k", "unknown")
}
