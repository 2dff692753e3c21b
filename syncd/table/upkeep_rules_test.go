package table

import (
	"testing"
	"time"
)

// TestUpkeepOfCompactTombstones: Touch moves those of the node alone, Sweep deletes none, and a reread takes
// one back into a slot.
func TestUpkeepOfCompactTombstones(t *testing.T) {
	r := newRig(t)
	r.bury(second, "own")
	r.remote(Accepted, 2*second, peer, 10, "theirs", "-")
	r.remote(Accepted, 2*second, peer, 10, "live", "v")
	r.write()
	r.compact(9*second, 2)
	c := r.tab.NewCursor(0)
	defer c.Close()
	r.tab.Update(func(tx *Tx) {
		for tx.Sweep("b", tx.Head()+1, 9*second, c, 1) {
		}
	})
	r.wantOrder("owntheirslive")
	r.want("theirs", "- v10 b100")
	r.want("live", "- v10 b100 dirty")
	touch := r.tab.NewCursor(0)
	defer touch.Close()
	r.tab.Update(func(tx *Tx) {
		for tx.Touch("a", touch, 1) {
		}
	})
	r.wantOrder("theirsliveown")
	r.tab.Update(func(tx *Tx) { tx.Reread(pad("theirs", simKey)) })
	checkInvariants(t, r.tab)
	r.wantRechecks("theirs")
	r.wantOrder("liveowntheirs")
}

// queued makes a tombstone that waits in its slot: a reread of it has no answer.
func (r *rig) queued(at int64, key string) {
	r.Helper()
	r.tab.Update(func(tx *Tx) { tx.Reread(pad(key, simKey)) })
	r.wantRechecks(key)
	r.write()
	n := r.tab.tombs.len()
	r.compact(at+6*second, r.tab.log.n)
	if r.tab.tombs.len() != n+1 {
		r.Fatalf("%d tombstones in the queue, want %d", r.tab.tombs.len(), n+1)
	}
}

// TestQueuedKeyLivesAgain: its next tombstone waits for its end like any other.
func TestQueuedKeyLivesAgain(t *testing.T) {
	r := newRig(t, func(o *Options) { o.TombstoneTTL = time.Minute })
	r.local(Accepted, second, "update k v packet 0")
	r.local(Accepted, second, "delete k - packet 0")
	r.queued(second, "k")
	r.local(Accepted, 9*second, "update k v packet 0")
	r.rechecks()
	r.expire(70*second, 9)
	r.wantOrder("k")
	r.local(Accepted, 71*second, "delete k - packet 0")
	r.rechecks()
	r.local(Unchanged, 72*second, "delete k - reread 0")
	r.write()
	r.expire(132*second-1, 9)
	r.want("k", "- v71000000000 a100")
	r.expire(132*second, 9)
	r.want("k", "unknown")
}

// TestQueuedTombstoneIsForgotten: at its end, and while the map is loaded, too. Then what the load reads of
// the key is read again. Its owner's id is free.
func TestQueuedTombstoneIsForgotten(t *testing.T) {
	r := newRig(t, func(o *Options) { o.TombstoneTTL = time.Minute })
	r.remote(Accepted, second, peer, 10, "k", "-")
	r.queued(second, "k")
	r.tab.Update((*Tx).BeginLoad)
	r.expire(61*second-1, 9)
	r.want("k", "- v10 b100")
	r.expire(61*second, 9)
	r.want("k", "unknown")
	r.load(Accepted, "k", "v")
	r.want("k", "v v0 a100")
	r.wantRechecks("k")
	r.tab.View((*Tx).ReclaimOwners)
	r.tab.View(func(tx *Tx) {
		tx.Owners(func(o Owner) {
			if o == peer {
				t.Error("the owner of no record has an id")
			}
		})
	})
}

// TestReleasedTombstoneStays: beyond its end, until the map no longer holds the entry.
func TestReleasedTombstoneStays(t *testing.T) {
	r := newRig(t, lru(8, 8), func(o *Options) { o.TombstoneTTL = time.Minute })
	r.remote(Accepted, second, peer, 10, "k", "v")
	r.write()
	r.expired(Accepted, 2*second, peer, 10, "k")
	for _, now := range []int64{10, 100, 200, 300} {
		if r.expire(now*second, 1) && now > 10 {
			t.Errorf("there is more to expire at %d s", now)
		}
		r.isExpired("k", true)
	}
	r.rechecks()
	r.scan(301 * second)
	r.wantRechecks("k")
	r.local(Unchanged, 302*second, "delete k - reread 0")
	r.isExpired("k", false)
	r.expire(500*second, 9)
	r.want("k", "unknown")
}
