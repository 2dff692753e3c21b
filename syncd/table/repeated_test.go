package table

import "testing"

// TestRepairRepeatsDeletesAlone: an older live record in a repair has a tombstone sent again. A delete does
// not, and a live record is not sent again.
func TestRepairRepeatsDeletesAlone(t *testing.T) {
	r := newRig(t)
	repair := RemoteOptions{Touch: true, Repair: true}
	r.remote(Accepted, second, peer, 10, "dead", "-")
	r.remote(Accepted, second, peer, 10, "live", "v")
	r.write()
	r.merge(Stale, 2*second, other, 9, "dead", "-", repair)
	r.merge(Stale, 2*second, other, 9, "live", "w", repair)
	r.want("dead", "- v10 b100")
	r.want("live", "v v10 b100")
	r.wantOrder("deadlive")
	if n := r.tab.Stats().Repeated; n != 0 {
		t.Errorf("%d deletes repeated", n)
	}
}

// TestTouchMovesNoTombstone: a full sync proves live records alone.
func TestTouchMovesNoTombstone(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, 10, "dead", "-")
	r.remote(Accepted, second, peer, 10, "live", "v")
	r.merge(Unchanged, 2*second, peer, 10, "dead", "-", RemoteOptions{Touch: true})
	r.merge(Stale, 2*second, peer, 9, "dead", "v", RemoteOptions{Touch: true})
	r.wantOrder("deadlive")
}

// TestReplaceOfAnExpiredRecord: the owner's own record replaces the expiry by a fallback sender, and another
// node's does not.
func TestReplaceOfAnExpiredRecord(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.remote(Accepted, second, peer, 10, "k", "v")
	r.write()
	r.expired(Accepted, 2*second, peer, 10, "k")
	r.merge(Stale, 3*second, peer, 10, "k", "v", RemoteOptions{Replace: ReplaceSame})
	r.isExpired("k", true)
	r.merge(Accepted, 3*second, peer, 10, "k", "v", RemoteOptions{Replace: ReplaceOwn})
	r.want("k", "v v10 b100 dirty")
	if n := r.tab.Stats().Replaced; n != 1 {
		t.Errorf("%d records replaced", n)
	}
}

// TestReplaceKeepsTheRest: a replaced value keeps the fields that are not replicated.
func TestReplaceKeepsTheRest(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, 10, "k", "vx")
	r.write()
	r.do(Accepted, func(tx *Tx) Outcome {
		d := &Delta{Key: pad("k", simKey), Value: pad("wy", simValue), Version: 10, Owner: tx.Intern(peer), Keep: []Range{{1, 1}}}
		return tx.Remote(d, 2*second, RemoteOptions{Replace: ReplaceSame})
	})
	r.want("k", "wx v10 b100 dirty")
}

// TestDeleteOfAMaskedValue: a delete is written whatever part of values is replicated.
func TestDeleteOfAMaskedValue(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Carried = make([]byte, simValue) })
	r.remote(Accepted, second, peer, 10, "k", "v")
	r.write()
	r.remote(Accepted, second, peer, 11, "k", "-")
	r.want("k", "- v11 b100 dirty")
}

// TestExpiryOfAnUnknownKey: an expired record of an earlier incarnation stays an expired one.
func TestExpiryOfAnUnknownKey(t *testing.T) {
	r := newRig(t, sameMap, lru(8, 8))
	r.expired(Accepted, second, older, 10, "k")
	r.want("k", "- v10 a90")
	r.isExpired("k", false)
}

// TestStaleRecordsAreNotRejected: what a full table rejects is above the tombstone here.
func TestStaleRecordsAreNotRejected(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxLive = 2 })
	r.remote(Accepted, second, peer, 10, "k", "-")
	r.local(Accepted, second, "update l v packet 0")
	r.local(Accepted, second, "update m v packet 0")
	r.remote(Stale, second, peer, 9, "k", "v")
	r.remote(Refused, second, peer, 11, "k", "v")
	r.remote(Accepted, second, peer, 11, "unknown", "-")
	if n := r.tab.Stats().Rejected; n != 1 {
		t.Errorf("%d records rejected", n)
	}
}
