package table

import (
	"math"
	"testing"
)

// TestRepairResendsOnlyDeletes: an older live record in a repair causes the table to resend a
// tombstone. A delete in a repair does not. The table does not resend live records.
func TestRepairResendsOnlyDeletes(t *testing.T) {
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
	if n := r.tab.Stats().DeletesResent; n != 0 {
		t.Errorf("resent deletes: got %d, want 0", n)
	}
}

// TestTouchMovesNoTombstone: a full sync moves only live records to the tail.
func TestTouchMovesNoTombstone(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, 10, "dead", "-")
	r.remote(Accepted, second, peer, 10, "live", "v")
	r.merge(Unchanged, 2*second, peer, 10, "dead", "-", RemoteOptions{Touch: true})
	r.merge(Stale, 2*second, peer, 9, "dead", "v", RemoteOptions{Touch: true})
	r.wantOrder("deadlive")
}

// TestEarlierRecordOfTheSender: a peer sends a record of an earlier incarnation of its own. The peer
// has therefore deleted and forgotten the record of its present incarnation. The table draws no
// conclusion about records of other incarnations.
func TestEarlierRecordOfTheSender(t *testing.T) {
	before, after := Owner{"b", 99}, Owner{"b", 101}
	for name, test := range map[string]struct {
		sender Owner
		sends  Owner
		swept  bool
	}{
		"present incarnation":                {peer, peer, false},
		"earlier incarnation":                {peer, before, true},
		"next incarnation sends the earlier": {after, before, false},
		"next incarnation sends the same":    {after, peer, false},
		"another node sends it":              {other, before, false},
		"unknown sender":                     {self, before, false},
	} {
		r := newRig(t)
		r.remote(Accepted, second, peer, 10, "k", "v")
		r.write()
		r.do(Stale, func(tx *Tx) Outcome {
			d := &Delta{Key: pad("k", keySize), Value: pad("w", valueSize), Version: 9, Owner: tx.Intern(test.sends)}
			return tx.Remote(d, 2*second, RemoteOptions{Touch: true, Sender: tx.Intern(test.sender)})
		})
		r.want("k", "v v10 b100")
		c := r.tab.NewCursor(0)
		r.tab.Update(func(tx *Tx) { tx.Sweep(&Absence{Peer: peer, Acknowledged: math.MaxUint64, Before: 2}, 2*second, c, 9) })
		c.Close()
		want := "v v10 b100"
		if test.swept {
			want = "- v10 b100 dirty"
		}
		if got := r.state("k"); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
		if test.swept { // the delete is inferred, so a repair brings the record that the owner has
			r.merge(Accepted, 3*second, before, 9, "k", "w", RemoteOptions{Touch: true, Repair: true, Replace: ReplaceAnyVersion})
			r.want("k", "w v9 b99 dirty")
		}
	}
	// Without a sender, Touch moves a record of this node like any other record.
	r := newRig(t)
	r.local(Accepted, 10, "update k v packet 0")
	r.local(Accepted, 10, "update l v packet 0")
	r.merge(Stale, 20, older, 9, "k", "w", RemoteOptions{Touch: true})
	r.wantOrder("lk")
}

// TestReplaceOfAnExpiredRecord: the record of the owner itself replaces the expiry by a fallback
// sender. The record of another node does not.
func TestReplaceOfAnExpiredRecord(t *testing.T) {
	r := newRig(t, lru(8, 8))
	r.remote(Accepted, second, peer, 10, "k", "v")
	r.write()
	r.expired(Accepted, 2*second, peer, 10, "k")
	r.merge(Stale, 3*second, peer, 10, "k", "v", RemoteOptions{Replace: ReplaceSameVersion})
	r.wantExpired("k", true)
	r.merge(Accepted, 3*second, peer, 10, "k", "v", RemoteOptions{Replace: ReplaceAnyVersion})
	r.want("k", "v v10 b100 dirty")
	if n := r.tab.Stats().Replaced; n != 1 {
		t.Errorf("replaced records: got %d, want 1", n)
	}
}

// TestReplaceKeepsLocalBytes: a replaced value keeps the fields that are not replicated.
func TestReplaceKeepsLocalBytes(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, second, peer, 10, "k", "vx")
	r.write()
	r.do(Accepted, func(tx *Tx) Outcome {
		d := &Delta{Key: pad("k", keySize), Value: pad("wy", valueSize), Version: 10, Owner: tx.Intern(peer), Keep: []Range{{1, 1}}}
		return tx.Remote(d, 2*second, RemoteOptions{Replace: ReplaceSameVersion})
	})
	r.want("k", "wx v10 b100 dirty")
}

// TestDeleteOfAMaskedValue: the table writes a delete, whatever part of the values is replicated.
func TestDeleteOfAMaskedValue(t *testing.T) {
	r := newRig(t, func(o *Options) { o.Carried = make([]byte, valueSize) })
	r.remote(Accepted, second, peer, 10, "k", "v")
	r.write()
	r.remote(Accepted, second, peer, 11, "k", "-")
	r.want("k", "- v11 b100 dirty")
}

// TestExpiryOfAnUnknownKey: an expired record of an earlier incarnation stays expired.
func TestExpiryOfAnUnknownKey(t *testing.T) {
	r := newRig(t, sameMap, lru(8, 8))
	r.expired(Accepted, second, older, 10, "k")
	r.want("k", "- v10 a90")
	r.wantExpired("k", false)
}

// TestStaleRecordsAreNotRejected: a full table rejects only records that are newer than its tombstone
// of the key. It does not count an older record as rejected.
func TestStaleRecordsAreNotRejected(t *testing.T) {
	r := newRig(t, func(o *Options) { o.MaxLive = 2 })
	r.remote(Accepted, second, peer, 10, "k", "-")
	r.local(Accepted, second, "update l v packet 0")
	r.local(Accepted, second, "update m v packet 0")
	r.remote(Stale, second, peer, 9, "k", "v")
	r.remote(Refused, second, peer, 11, "k", "v")
	r.remote(Accepted, second, peer, 11, "unknown", "-")
	if n := r.tab.Stats().Rejected; n != 1 {
		t.Errorf("rejected records: got %d, want 1", n)
	}
}
