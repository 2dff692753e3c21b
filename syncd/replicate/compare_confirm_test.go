package replicate

import (
	"strings"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// requestNode requests the records of live node c from the peer, so that its digests are compared.
func (x *inboundFixture) requestNode() {
	x.in.owners.requested = &permit{peer: "x", nodes: []string{"c"}}
}

// withNode adds a digest of node c, of which this node has no records. 0: the digests agree.
func withNode(by uint64) func(*mapsyncv1.Digest) {
	return func(m *mapsyncv1.Digest) {
		n := &mapsyncv1.NodeDigest{Node: "c", Sum: by, VersionSum: by}
		if m.GetNodes()[0].GetBuckets() != nil {
			n.Buckets = make([]byte, wire.BucketBytes*table.DigestBuckets)
			n.Buckets[0] = byte(by)
		}
		m.Nodes = append(m.Nodes, n)
	}
}

// otherLayout makes a digest one of another layout.
func otherLayout(m *mapsyncv1.Digest) { m.ScopeFingerprint++ }

// TestAgreementEndsStateOfNode checks that a node whose digest agrees loses the state of its difference,
// while the digest of another node still differs.
func TestAgreementEndsStateOfNode(t *testing.T) {
	x := newInboundFixture(t)
	x.requestNode()
	c, now := &x.in.comparison, time.Now()
	if x.mustCompare(now, true, withNode(1)); len(c.divergentNodes) != 1 || c.divergentNodes["c"] == nil {
		t.Errorf("divergent nodes: got %v, want c only", c.divergentNodes)
	}
	if x.mustCompare(now, true, withDifference(1), withNode(0)); c.inSync {
		t.Error("difference in a bucket that agreed only before it: got in sync, want not in sync")
	}
	// Digests of another layout have no buckets.
	x = newInboundFixture(t)
	x.requestNode()
	c = &x.in.comparison
	for i := range sameVersionSumRounds {
		x.mustCompare(now, false, otherLayout, withDifference(7), withNode(uint64(i+1)))
	}
	if c.divergentNodes["x"].sameRounds != sameVersionSumRounds-1 {
		t.Fatalf("repetitions: got %d, want %d", c.divergentNodes["x"].sameRounds, sameVersionSumRounds-1)
	}
	if x.mustCompare(now, false, otherLayout, withNode(50)); c.divergentNodes["x"] != nil {
		t.Errorf("other layout: divergent node x: got %+v, want none", c.divergentNodes["x"])
	}
	if x.mustCompare(now, false, otherLayout, withDifference(7), withNode(51)); !x.in.repeatFullSyncAt.IsZero() {
		t.Error("other layout, first difference after an agreement: got a full sync, want none")
	}
}

// TestPersistentNodeDifferenceUnderLoad checks that a difference of another layout is repaired after
// sameVersionSumRounds repetitions, while both nodes enter other records.
func TestPersistentNodeDifferenceUnderLoad(t *testing.T) {
	x := newInboundFixture(t)
	for i := range sameVersionSumRounds + 1 {
		if !x.in.repeatFullSyncAt.IsZero() {
			t.Fatalf("repetitions before the repair: got %d, want %d", i-1, sameVersionSumRounds)
		}
		x.handle(stockBatch(x.in.index, x.in.position, x.in.position+10, i))
		x.mustCompare(time.Now(), false, otherLayout, withDifference(7))
	}
	if x.in.repeatFullSyncAt.IsZero() || x.in.comparison.inSync {
		t.Errorf("persistent difference: got full sync at %s, in sync %t, want a full sync and false",
			x.in.repeatFullSyncAt, x.in.comparison.inSync)
	}
}

// TestContinuousNodeDifferences checks that only a difference of another layout that changes in each
// round makes a comparison impossible, also if the digest of another node differs.
func TestContinuousNodeDifferences(t *testing.T) {
	for name, test := range map[string]struct {
		last       uint64 // difference in the last round; the one before was maxVersionSumRounds
		impossible bool
	}{"changes": {maxVersionSumRounds + 1, true}, "repeats": {maxVersionSumRounds, false}} {
		x := newInboundFixture(t)
		x.requestNode()
		c, now := &x.in.comparison, time.Now()
		for i := range uint64(maxVersionSumRounds) {
			x.mustCompare(now, false, otherLayout, withDifference(i+1), withNode(5))
			c.repairAfter = now.Add(time.Hour) // c differs by the same sum
		}
		x.mustCompare(now, false, otherLayout, withDifference(test.last), withNode(5))
		if (c.impossibleReason != "") != test.impossible {
			t.Errorf("%s: impossible: got reason %q, want a reason: %t", name, c.impossibleReason, test.impossible)
		}
	}
}

// TestReasonOfPeerComesFirst checks that the peer's reason for an incomplete comparison is kept if
// orphaned records cannot be compared either.
func TestReasonOfPeerComesFirst(t *testing.T) {
	x := newInboundFixture(t)
	x.stream.supportsOwnerRequests = true
	x.mustCompare(time.Now(), false, func(m *mapsyncv1.Digest) { m.InconclusiveReason = "too many owners" })
	if got := x.in.comparison.inconclusiveReason; !strings.Contains(got, "too many owners") {
		t.Errorf("inconclusive reason: got %q, want the reason of the peer", got)
	}
}

// TestComparisonCountsRecordsAboveLimit checks that a comparison counts the records above the limit of
// the table again, and that the node is in sync without them.
func TestComparisonCountsRecordsAboveLimit(t *testing.T) {
	x := newInboundFixture(t)
	x.handle(stockBatch(x.in.index, 0, 10, 1, 2))
	if ok, _ := x.r.InSync(); ok {
		t.Error("in sync without a comparison: got true, want false")
	}
	x.in.exceptions.addAboveLimit([]byte("k"), 5, target, false)
	if ok, missing := x.r.InSync(); !ok {
		t.Errorf("in sync with a peer above the limit: got false, missing %q, want true", missing)
	}
	if x.mustCompare(time.Now(), false); len(x.r.PeersAboveLimit(testMap)) != 0 {
		t.Errorf("peers above the limit after equal digests: got %v, want none", x.r.PeersAboveLimit(testMap))
	}
}
