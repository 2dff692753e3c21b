package table

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// TestReplace: a repair replaces records by the rules of Replace where the versions alone would keep
// them.
func TestReplace(t *testing.T) {
	for name, test := range map[string]struct {
		how   Replace
		have  string
		v     Version
		send  string
		o     Owner
		want  Outcome
		state string
	}{
		"nothing":                    {ReplaceNothing, "v", 10, "w", peer, Unchanged, "v v10 b100"},
		"another value":              {ReplaceSameVersion, "v", 10, "w", peer, Accepted, "w v10 b100 dirty"},
		"the same value":             {ReplaceSameVersion, "v", 10, "v", peer, Unchanged, "v v10 b100"},
		"the same delete":            {ReplaceSameVersion, "-", 10, "-", peer, Unchanged, "- v10 b100"},
		"older version, same value":  {ReplaceAnyVersion, "v", 12, "v", peer, Accepted, "v v10 b100 dirty"},
		"swept by mistake":           {ReplaceSameVersion, "-", 10, "v", peer, Accepted, "v v10 b100 dirty"},
		"older version":              {ReplaceSameVersion, "v", 12, "w", peer, Stale, "v v12 b100"},
		"older version, any version": {ReplaceAnyVersion, "v", 12, "w", peer, Accepted, "w v10 b100 dirty"},
		"another incarnation":        {ReplaceAnyVersion, "v", 12, "w", Owner{"b", 99}, Stale, "v v12 b100"},
		"tombstone of the same":      {ReplaceAnyVersion, "-", 12, "v", peer, Accepted, "v v10 b100 dirty"},
	} {
		r := newRig(t)
		r.remote(Accepted, 1, peer, test.v, "k", test.have)
		r.write()
		r.merge(test.want, 2, test.o, 10, "k", test.send, RemoteOptions{Replace: test.how})
		if got := r.state("k"); got != test.state {
			t.Errorf("%s: %q, want %q", name, got, test.state)
		}
	}
	// A repair does not replace records of this node.
	r := newRig(t)
	r.local(Accepted, 10, "update k v packet 0")
	r.merge(Unchanged, 20, self, 10, "k", "w", RemoteOptions{Replace: ReplaceAnyVersion})
	r.want("k", "v v10 a100")
}

// TestSweepBuckets: SweepBuckets deletes the records in some buckets that the peer did not resend.
func TestSweepBuckets(t *testing.T) {
	r := newRig(t)
	var in BucketSet
	for i := range 100 {
		r.remote(Accepted, 1, peer, 10, fmt.Sprint("k", i), "v")
	}
	r.remote(Accepted, 1, other, 10, "k0", "w") // another node has taken over the key
	r.tab.View(func(tx *Tx) {
		for _, k := range []string{"k0", "k1", "k2"} {
			in.Add(tx.Bucket(pad(k, keySize)))
		}
	})
	before := uint64(0)
	r.tab.View(func(tx *Tx) { before = tx.Head() + 1 })
	r.merge(Unchanged, 2, peer, 10, "k1", "v", RemoteOptions{Touch: true})
	c, deleted := r.tab.NewCursor(0), 0
	defer c.Close()
	for more := true; more; {
		r.tab.Update(func(tx *Tx) {
			var n int
			n, more = tx.Sweep(&Absence{Peer: peer, Acknowledged: math.MaxUint64, Before: before, Buckets: &in, DigestID: r.tab.DigestID()}, 2, c, 7)
			deleted += n
		})
	}
	for i := range 100 {
		k := fmt.Sprint("k", i)
		gone := strings.HasPrefix(r.state(k), "-")
		r.tab.View(func(tx *Tx) {
			if gone != (i > 1 && in.Has(tx.Bucket(pad(k, keySize)))) {
				t.Errorf("%s: got deleted %t, want %t", k, gone, !gone)
			}
		})
		if gone {
			deleted--
		}
	}
	if deleted != 0 || in.Len() != 3 || !strings.HasPrefix(r.state("k2"), "-") {
		t.Errorf("swept records: got %d too many, %d buckets, record k2 %s, want 0, 3 and a delete", deleted, in.Len(), r.state("k2"))
	}
}

// TestSweepOfAnotherDigestKey: the buckets of an answer mean nothing once the digest key has changed.
func TestSweepOfAnotherDigestKey(t *testing.T) {
	r := newRig(t)
	r.remote(Accepted, 1, peer, 10, "k", "v")
	var in BucketSet
	r.tab.View(func(tx *Tx) { in.Add(tx.Bucket(pad("k", keySize))) })
	a := &Absence{Peer: peer, Acknowledged: math.MaxUint64, Before: math.MaxUint64, Buckets: &in, DigestID: r.tab.DigestID() + 1}
	c := r.tab.NewCursor(0)
	defer c.Close()
	r.tab.Update(func(tx *Tx) {
		if n, more := tx.Sweep(a, 2, c, 7); n != 0 || more {
			t.Errorf("sweep with another digest key: got %d deletes, more %t, want none", n, more)
		}
	})
	r.want("k", "v v10 b100 dirty")
}

// TestSenderMayLackItsEarlierRecord: the sender of an older record of one of its earlier incarnations may not have received the
// newer one, unless it has acknowledged its position.
func TestSenderMayLackItsEarlierRecord(t *testing.T) {
	for acknowledged, want := range map[uint64]Outcome{0: Stale, math.MaxUint64: Accepted} {
		r := newRig(t)
		r.remote(Accepted, 1, peer, 12, "k", "v")
		opt := RemoteOptions{Replace: ReplaceAnyVersion, Acknowledged: acknowledged}
		r.tab.Update(func(tx *Tx) { opt.Sender = tx.Intern(Owner{Node: peer.Node, Incarnation: peer.Incarnation + 1}) })
		r.merge(want, 2, peer, 10, "k", "w", opt)
	}
}
