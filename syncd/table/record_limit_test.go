package table

import (
	"fmt"
	"testing"
)

// flood merges live records of an owner and returns how many the table accepted.
func (r *rig) flood(o Owner, prefix string, n int) (entered int) {
	return r.floodVersion(5, o, prefix, n)
}

// floodVersion is flood with records of a version.
func (r *rig) floodVersion(v Version, o Owner, prefix string, n int) (entered int) {
	r.tab.Update(func(tx *Tx) {
		for i := range n {
			d := &Delta{Key: pad(fmt.Sprint(prefix, i), keySize), Value: pad("v", valueSize), Version: v, Owner: tx.Intern(o)}
			if tx.Remote(d, 5, RemoteOptions{}) == Accepted {
				entered++
			}
		}
	})
	return entered
}

// TestRecordsAreBounded: one peer sends more records than the table may hold. Other peers keep their
// share, and the table always accepts records of this node.
func TestRecordsAreBounded(t *testing.T) {
	const limit = 2000
	r := newRig(t, func(o *Options) { o.MaxLive = limit })
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"b", "c"}, nil) })
	const share = limit / 2 / 3
	n := r.flood(peer, "b", 10*limit)
	if n > limit-2*share || n < limit-2*share-limit/8 {
		t.Errorf("records of one peer: got %d accepted in a table of %d, want at most %d and at least %d", n, limit, limit-2*share, limit-2*share-limit/8)
	}
	if st := r.tab.Stats(); st.Rejected != uint64(10*limit-n) || st.Live != n {
		t.Errorf("records: got %d rejected, %d live, want %d and %d", st.Rejected, st.Live, uint64(10*limit-n), n)
	}
	// Owners that membership has not verified have no share.
	if n := r.flood(Owner{"departed", 1}, "d", limit); n > limit/8 {
		t.Errorf("records of an unknown owner: got %d accepted, want at most %d", n, limit/8)
	}
	if n := r.flood(other, "c", limit); n < share {
		t.Errorf("records of a second peer: got %d accepted, want its share of %d", n, share)
	}
	if n := r.tab.Stats().Live; n > limit {
		t.Errorf("live records: got %d, want at most %d", n, limit)
	}
	for i := range limit {
		r.local(Accepted, second, fmt.Sprint("update a", i, " v packet 0"))
	}
	// Records of the table can still be changed and deleted. A delete makes room.
	r.remote(Accepted, 5, peer, 6, "b1", "w")
	r.remote(Accepted, 5, peer, 6, "b2", "-")
	r.remote(Refused, 5, peer, 7, "b2", "v")
	r.want("b2", "- v6 b100 dirty")
	// Without a limit the table accepts all records.
	if n := newRig(t).flood(peer, "b", 10*limit); n != 10*limit {
		t.Errorf("records without a limit: got %d accepted, want %d", n, 10*limit)
	}
}

// TestEvictedRecordsExpireForPeers: the table of an LRU map is full, also with records that the map
// has evicted. The evicted records of this node expire in favour of records of peers, down to this
// node's share.
func TestEvictedRecordsExpireForPeers(t *testing.T) {
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
	// The kernel map may still hold the entry of the first record.
	r.tab.Update(func(tx *Tx) { tx.t.requestReread(firstSlot) })
	if n := r.flood(peer, "b", limit); n != limit-41 {
		t.Errorf("records of a peer: got %d accepted, 41 own records are in use, want %d", n, limit-41)
	}
	r.want(own(0), "v v1000000000 a100")
	r.wantExpired(own(1), false)
	r.wantExpired(own(39), false)
	r.want(own(40), "v v41000000000 a100")
	// The share of this node stays, whether its records are evicted or not.
	for i := range 40 {
		r.local(Ignored, int64(i+121)*second, fmt.Sprint("evict ", own(40+i), " - packet 0"))
	}
	r.flood(peer, "c", limit)
	if n := r.tab.digester.nodes["a"].live; n != share {
		t.Errorf("records of this node: got %d, want its share of %d", n, share)
	}
	if st := r.tab.Stats(); st.Live > limit {
		t.Errorf("live records: got %d, want at most %d", st.Live, limit)
	}
}

// TestEvictedRecordsExpireForOwnRecords: a full table accepts records of this node in any case.
// Evicted records then expire until the table is within its limit.
func TestEvictedRecordsExpireForOwnRecords(t *testing.T) {
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
		t.Errorf("live records: got %d, %d expired, want %d and 20", st.Live, st.EvictionsExpired, limit)
	}
}

// TestTombstoneIsForgottenForExpiredOne: an evicted record expires in favour of the key of a
// tombstone. The table forgets that tombstone for the tombstone of the evicted record, whether it is
// compact or not.
func TestTombstoneIsForgottenForExpiredOne(t *testing.T) {
	for _, compact := range []int{0, 1} {
		tombstoneForgottenForExpired(t, compact)
	}
}

func tombstoneForgottenForExpired(t *testing.T, compact int) {
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
	r.wantExpired("x", false)
}

// TestRecordsOfEarlierIncarnationsAreBounded: a peer sends records in the name of an earlier incarnation of
// this node. The table admits as many as the kernel map has entries, and leaves the peers their shares.
func TestRecordsOfEarlierIncarnationsAreBounded(t *testing.T) {
	const limit, entries = 2000, 1000
	for name, set := range map[string]func(*Options){
		"new map":       func(*Options) {},
		"new LRU map":   func(o *Options) { o.LRU = true },
		"same LRU map":  func(o *Options) { o.LRU, o.SameMap = true, true },
		"size unknown":  func(o *Options) { o.MaxEntries = 0 },
		"factor of 0.5": func(o *Options) { o.MaxLive = entries / 2 },
	} {
		r := newRig(t, func(o *Options) { o.MaxLive, o.MaxEntries = limit, entries }, set)
		r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"b", "c"}, nil) })
		bound := max(r.tab.opt.MaxLive, r.tab.opt.MaxEntries)
		r.flood(older, "a", 10*limit)
		if n := r.tab.Stats().Live; n < r.tab.opt.MaxEntries || n > bound {
			t.Errorf("%s: records of an earlier incarnation: got %d, want %d to %d", name, n, r.tab.opt.MaxEntries, bound)
		}
		share := r.tab.opt.MaxLive / 2 / 3
		if n := r.flood(other, "c", limit); n < share {
			t.Errorf("%s: records of a peer: got %d accepted, want its share of %d", name, n, share)
		}
	}
}

// TestAbsentRecordsOfThisNodeAreBounded: a full table refuses a record of an earlier incarnation whose key is not
// in the LRU map. It enters deletes, and records of this incarnation, which expire at once.
func TestAbsentRecordsOfThisNodeAreBounded(t *testing.T) {
	r := newRig(t, lru(1, 8), sameMap, func(o *Options) { o.MaxLive = 4 })
	r.tab.Update(func(tx *Tx) { tx.SetMembers([]string{"b"}, nil) })
	for i := range 4 {
		r.local(Accepted, second, fmt.Sprint("update a", i, " v packet 0"))
	}
	r.remote(Refused, 2*second, older, 1000, "k", "v")
	if n := r.tab.Stats().Rejected; n != 1 {
		t.Errorf("rejected records: got %d, want 1", n)
	}
	r.remote(Accepted, 2*second, older, 1000, "l", "-")
	r.want("l", "- v1000 a90")
	r.remote(Accepted, 2*second, self, 1000, "m", "v")
	r.wantExpired("m", false)
}

// TestRecordsAfterOlderDeletesAreAdmitted: a member that sends a delete and then a record of an earlier incarnation of this node for
// many keys does not exceed the limit, although the kernel map lacks the entries.
func TestRecordsAfterOlderDeletesAreAdmitted(t *testing.T) {
	for _, drained := range []bool{false, true} {
		r := newRig(t, sameMap, holdClears, func(o *Options) { o.MaxEntries, o.MaxLive = 10, 20 })
		r.tab.Update(func(tx *Tx) {
			tx.SetMembers([]string{"b"}, nil)
			if drained {
				tx.SetHandover(self.Node, Handover{Incarnation: older.Incarnation, Version: 1 << 61})
			}
		})
		for i := range 200 {
			key := pad(fmt.Sprint("k", i), keySize)
			r.remote(Accepted, startTime, older, 5, text(key), "-")
			r.tab.Update(func(tx *Tx) {
				tx.Remote(&Delta{Key: key, Value: pad("v", valueSize), Version: 10, Owner: tx.Intern(older)}, startTime, RemoteOptions{})
			})
		}
		if n := r.tab.Stats().Live; n > 20 {
			t.Errorf("drained %t: got %d live records, want at most 20", drained, n)
		}
	}
}
