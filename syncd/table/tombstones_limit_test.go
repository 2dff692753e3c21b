package table

import (
	"fmt"
	"testing"
)

// fullOfTombstones returns a table at its limit of tombstones. It has forgotten the deletes of the keys 0 to 7
// with the versions 20 to 27, in this order or in the reverse one.
func fullOfTombstones(t *testing.T, compact, reverse bool) *rig {
	const limit = 4
	r := newRig(t, sameMap, func(o *Options) { o.MaxTombstones = limit })
	for i := range 3 * limit {
		n := i
		if reverse && i < 2*limit {
			n = 2*limit - 1 - i
		}
		now := int64(4*i) * second
		r.remote(Accepted, now, peer, Version(20+n), fmt.Sprint(n), "-")
		r.write()
		if compact {
			r.expire(now+2*second, 99) // moves settled tombstones to the log
		}
	}
	return r
}

// TestFullTablesForgetDeletesOnce: nodes at their limits send each other full syncs with deletes that the
// receiver has no record of. A node that has forgotten such a delete to make room does not enter it again, so
// the exchange ends. It enters newer deletes, those of records, and those outside of a full sync.
func TestFullTablesForgetDeletesOnce(t *testing.T) {
	for i := range 4 {
		compact, reverse := i&1 != 0, i&2 != 0
		r := fullOfTombstones(t, compact, reverse)
		before := r.tab.Stats()
		if compact != (r.tab.log.n > 0) {
			t.Fatalf("tombstones in the log: got %d, want some: %t", r.tab.log.n, compact)
		}
		for _, owner := range []Owner{peer, older, other} {
			for n := range 8 {
				d := Delta{Key: pad(fmt.Sprint(n), keySize), Version: Version(20 + n), Owner: r.intern(owner), Delete: true, Expired: n%2 == 0}
				r.do(Stale, func(tx *Tx) Outcome { return tx.Remote(&d, 99*second, RemoteOptions{Touch: true}) })
			}
		}
		if st := r.tab.Stats(); st.Head != before.Head || st.Floor != before.Floor {
			t.Errorf("after deletes that were forgotten: got head %d, floor %d, want %d, %d", st.Head, st.Floor, before.Head, before.Floor)
		}
		r.merge(Accepted, 99*second, peer, 28, "newer", "-", RemoteOptions{Touch: true})
		r.merge(Accepted, 99*second, peer, 21, "live", "v", RemoteOptions{Touch: true})
		r.merge(Accepted, 99*second, peer, 22, "live", "-", RemoteOptions{Touch: true})
		r.remote(Accepted, 99*second, peer, 21, "1", "-")
	}
}

// TestDeletesBelowTheLimitAreEntered: a table that has room for tombstones again, or that has yet to scan its
// map, enters deletes that it has forgotten.
func TestDeletesBelowTheLimitAreEntered(t *testing.T) {
	r := fullOfTombstones(t, false, false)
	r.remote(Accepted, 99*second, peer, 100, "11", "v")
	r.merge(Accepted, 99*second, peer, 21, "1", "-", RemoteOptions{Touch: true})
	r = fullOfTombstones(t, false, false)
	r.tab.Update((*Tx).Refill)
	r.merge(Accepted, 99*second, peer, 21, "1", "-", RemoteOptions{Touch: true})
}
