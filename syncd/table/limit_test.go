package table

import (
	"fmt"
	"testing"
)

// flood merges live records of an owner and returns how many entered.
func (r *rig) flood(o Owner, prefix string, n int) (entered int) {
	r.tab.Update(func(tx *Tx) {
		for i := range n {
			d := &Delta{Key: pad(fmt.Sprint(prefix, i), simKey), Value: pad("v", simValue), Version: 5, Owner: tx.Intern(o)}
			if tx.Remote(d, 5, RemoteOptions{}) == Accepted {
				entered++
			}
		}
	})
	return entered
}

// TestRecordsAreBounded: one peer sends more records than there may be. Other peers keep their
// share, and this node's records enter in any case.
func TestRecordsAreBounded(t *testing.T) {
	const limit = 2000
	r := newRig(t, func(o *Options) { o.MaxLive = limit })
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"b", "c"}, nil) })
	const share = limit / 2 / 3
	n := r.flood(peer, "b", 10*limit)
	if n > limit-2*share || n < limit-2*share-limit/8 {
		t.Errorf("%d records of one peer entered a table of %d", n, limit)
	}
	if st := r.tab.Stats(); st.Rejected != uint64(10*limit-n) || st.Live != n {
		t.Errorf("%d rejected, %d live", st.Rejected, st.Live)
	}
	// Owners that membership has not proven have no share.
	if n := r.flood(Owner{"departed", 1}, "d", limit); n > limit/8 {
		t.Errorf("%d records of an unknown owner entered", n)
	}
	if n := r.flood(other, "c", limit); n < share {
		t.Errorf("%d records of a second peer entered, its share is %d", n, share)
	}
	if n := r.tab.Stats().Live; n > limit {
		t.Errorf("%d live records, limit %d", n, limit)
	}
	for i := range limit {
		r.local(Accepted, second, fmt.Sprint("update a", i, " v packet 0"))
	}
	// What is in the table is still changed and deleted, and a delete makes room.
	r.remote(Accepted, 5, peer, 6, "b1", "w")
	r.remote(Accepted, 5, peer, 6, "b2", "-")
	r.remote(Refused, 5, peer, 7, "b2", "v")
	r.want("b2", "- v6 b100 dirty")
	// Without a limit everything enters.
	if n := newRig(t).flood(peer, "b", 10*limit); n != 10*limit {
		t.Errorf("%d of %d records entered without a limit", n, 10*limit)
	}
}

// TestEvictedRecordsMakeWay: a table of an LRU map is full, also with records that the map has
// evicted. These expire in favour of what peers send, down to this node's share.
func TestEvictedRecordsMakeWay(t *testing.T) {
	const limit, share = 120, 30
	r := newRig(t, lru(60, 60), func(o *Options) { o.MaxLive = limit })
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"b"}, nil) })
	own := func(i int) string { return fmt.Sprint("a", i) }
	for i := range 80 {
		r.local(Accepted, int64(i+1)*second, fmt.Sprint("update ", own(i), " v packet 0"))
	}
	for i := range 40 {
		r.local(Ignored, int64(i+81)*second, fmt.Sprint("evict ", own(i), " - packet 0"))
	}
	// Of the first, the kernel map may hold the entry after all.
	r.tab.Update(func(tx *Tx) { tx.t.recheck(firstSlot) })
	if n := r.flood(peer, "b", limit); n != limit-41 {
		t.Errorf("%d records of a peer entered, 41 own ones are in use", n)
	}
	r.want(own(0), "v v1000000000 a100")
	r.isExpired(own(1), false)
	r.isExpired(own(39), false)
	r.want(own(40), "v v41000000000 a100")
	// This node's share stays, evicted or not.
	for i := range 40 {
		r.local(Ignored, int64(i+121)*second, fmt.Sprint("evict ", own(40+i), " - packet 0"))
	}
	r.flood(peer, "c", limit)
	if n := r.tab.digester.nodes["a"].live; n != share {
		t.Errorf("%d records of this node are left, its share is %d", n, share)
	}
	if st := r.tab.Stats(); st.Live > limit {
		t.Errorf("%d live records, limit %d", st.Live, limit)
	}
}

// TestEvictedRecordsMakeWayForOwn: records of this node enter a full table in any case. Then
// evicted ones expire until it is within its limit.
func TestEvictedRecordsMakeWayForOwn(t *testing.T) {
	const limit = 100
	r := newRig(t, lru(60, 60), func(o *Options) { o.MaxLive = limit })
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"b"}, nil) })
	r.flood(peer, "b", limit/2)
	for i := range 70 {
		r.local(Accepted, second, fmt.Sprint("update a", i, " v packet 0"))
		if i >= 40 {
			r.local(Ignored, 2*second, fmt.Sprint("evict a", i-40, " - packet 0"))
		}
	}
	r.expireEvicted(3 * second)
	if st := r.tab.Stats(); st.Live != limit || st.EvictionsExpired != 20 {
		t.Errorf("%d live records, limit %d, %d expired", st.Live, limit, st.EvictionsExpired)
	}
}

// TestTombstoneMakesWay: a tombstone is forgotten for that of an evicted record that expires in
// favour of the very key of the first one, be it compact or not.
func TestTombstoneMakesWay(t *testing.T) {
	for _, compact := range []int{0, 1} {
		tombstoneMakesWay(t, compact)
	}
}

func tombstoneMakesWay(t *testing.T, compact int) {
	t.Helper()
	r := newRig(t, lru(1, 1), func(o *Options) { o.MaxLive, o.MaxTombstones = 2, 1 })
	r.remote(Accepted, second, peer, 5, "k", "v")
	r.remote(Accepted, second, peer, 6, "k", "-")
	r.write()
	r.compact(second+int64(compact)*second, compact)
	r.local(Accepted, second, "update x v packet 0")
	r.local(Accepted, second, "update y v packet 0")
	r.local(Ignored, 2*second, "evict x - packet 0")
	r.remote(Accepted, 3*second, peer, 7, "k", "w")
	r.want("k", "w v7 b100 dirty")
	r.isExpired("x", false)
}
