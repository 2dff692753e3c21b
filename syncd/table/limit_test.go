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
	r.tab.Update(func(tx *Tx) { tx.SetLive([]string{"b", "c"}) })
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
