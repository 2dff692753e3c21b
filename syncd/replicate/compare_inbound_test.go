package replicate

import (
	"errors"
	"strings"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// compareDigest has node b compare a digest of x, in which x holds the same records as b, except
// for the changes. It returns the error.
func (x *inboundFixture) compareDigest(now time.Time, parts bool, changes ...func(*mapsyncv1.Digest)) error {
	x.t.Helper()
	m := x.digestMessage(parts).GetDigest()
	for _, change := range changes {
		change(m)
	}
	return x.in.processDigest(m, now)
}

// withDifference adds to the sum of the first bucket and to the total sum.
func withDifference(by uint64) func(*mapsyncv1.Digest) {
	return func(m *mapsyncv1.Digest) {
		n := m.GetNodes()[0]
		n.Sum += by
		n.VersionSum += by
		if n.GetBuckets() != nil {
			n.Buckets[0] += byte(by)
		}
	}
}

// mustCompare is compareDigest for a digest without errors.
func (x *inboundFixture) mustCompare(now time.Time, parts bool, changes ...func(*mapsyncv1.Digest)) {
	x.t.Helper()
	if err := x.compareDigest(now, parts, changes...); err != nil {
		x.t.Fatalf("compare digest: got error %v, want nil", err)
	}
}

// TestDigestsAreChecked sends digests that violate the protocol.
func TestDigestsAreChecked(t *testing.T) {
	x := newInboundFixture(t)
	x.handle(stockBatch(x.in.index, 0, 10, 1, 2))
	if err := x.compareDigest(time.Now(), false, func(m *mapsyncv1.Digest) { m.Position = 9 }); !errors.Is(err, errProtocol) {
		t.Errorf("digest of an earlier position: got %v, want a protocol error", err)
	}
	for _, state := range []State{StateWaiting, StateFailed, StatePending, StateRefused} {
		x.in.state = state
		if err := x.compareDigest(time.Now(), false); !errors.Is(err, errProtocol) {
			t.Errorf("digest of a map in state %s: got %v, want a protocol error", state, err)
		}
	}
	for _, state := range []State{StateSyncing, StateCaughtUp} {
		x.in.state = state
		if err := x.compareDigest(time.Now(), false); err != nil {
			t.Errorf("digest of a map in state %s: got %v, want no error", state, err)
		}
	}
}

// TestEqualDigestsSetInSync checks that equal digests set inSync and clear the state of
// differences.
func TestEqualDigestsSetInSync(t *testing.T) {
	x := newInboundFixture(t)
	x.handle(stockBatch(x.in.index, 0, 10, 1, 2))
	c, now := &x.in.comparison, time.Now()
	c.divergent, c.repairBackoff, c.requestBuckets, c.impossibleReason, c.inconclusiveReason, c.inconclusiveRounds = 3, time.Second, true, "why", "why", 2
	c.divergentNodes = map[string]*divergentNode{"x": {}}
	x.mustCompare(now, false, func(m *mapsyncv1.Digest) { m.Unsent = 7 })
	if !c.inSync || !c.onThisStream || !c.inSyncAt.Equal(now) || c.inSyncPosition != 10 || c.divergent != 0 || c.repairBackoff != 0 || c.requestBuckets ||
		c.divergentNodes != nil || c.impossibleReason != "" || c.inconclusiveReason != "" || c.inconclusiveRounds != 0 || c.peerUnsent != 7 || c.peerLive != 2 {
		t.Errorf("comparison of equal digests: got %+v, "+
			"want in sync now and on this stream at position 10, peer live 2, unsent 7; "+
			"want no divergence, repair backoff, bucket request, reason or inconclusive round", *c)
	}
	if s := x.r.Stats(); s.Digests != 1 || s.DigestsDivergent != 0 || s.DigestsImpossible != 0 {
		t.Errorf("comparisons: got %d, %d divergent, %d impossible, want 1, 0, 0", s.Digests, s.DigestsDivergent, s.DigestsImpossible)
	}
	c.list = &diffList{done: make(chan struct{})}
	c.list.bucketsChosen = true
	if x.in.noteInSync(10, now); !c.requestBuckets {
		t.Error("in sync with a waiting list: got no request, want buckets requested")
	}
}

// TestInconclusiveComparisons checks that an agreement remains valid for a few inconclusive
// comparisons in a row: nodes detect a change of membership at different times.
func TestInconclusiveComparisons(t *testing.T) {
	x := newInboundFixture(t)
	c := &x.in.comparison
	x.mustCompare(time.Now(), false)
	vague := func(m *mapsyncv1.Digest) { m.InconclusiveReason = "too many owners" }
	for i := range maxInconclusive {
		x.mustCompare(time.Now(), false, vague)
		if !c.inSync || c.impossibleReason != "" || !strings.Contains(c.inconclusiveReason, "too many owners") || c.requestBuckets {
			t.Fatalf("after %d inconclusive comparisons: got %+v, "+
				"want in sync, inconclusive because of too many owners, not impossible, no bucket request", i+1, *c)
		}
	}
	if s := x.r.Stats(); s.DigestsImpossible != maxInconclusive || s.Digests != maxInconclusive+1 {
		t.Errorf("impossible comparisons: got %d of %d, want %d and %d", s.DigestsImpossible, s.Digests, maxInconclusive, maxInconclusive+1)
	}
	x.mustCompare(time.Now(), false) // a conclusive comparison
	for range maxInconclusive {
		x.mustCompare(time.Now(), false, vague)
	}
	if c.impossibleReason != "" {
		t.Error("inconclusive comparisons after a conclusive one: got impossible, want counted anew")
	}
	x.mustCompare(time.Now(), false, vague)
	if c.inSync || !strings.Contains(c.impossibleReason, "too many owners") || !x.in.awaitsInSync(time.Time{}) {
		t.Errorf("inconclusive comparisons: got %+v, want not in sync, impossible because of too many owners, awaitsInSync true", *c)
	}
	// With the same layout, a difference is known although the rest is inconclusive.
	c.divergentNodes = map[string]*divergentNode{"x": {}}
	x.mustCompare(time.Now(), false, vague)
	if c.divergentNodes != nil {
		t.Error("divergentNodes without a difference: got some, want nil")
	}
	x.mustCompare(time.Now(), false, withDifference(1))
	if c.impossibleReason != "" || c.inSync || x.r.Stats().DigestsDivergent != 1 {
		t.Errorf("exact difference: got %+v, want a possible comparison", *c)
	}
	x.mustCompare(time.Now(), false, func(m *mapsyncv1.Digest) { m.Nodes = nil })
	if !strings.Contains(c.inconclusiveReason, "no digest of its own records") {
		t.Errorf("inconclusive reason: got %q, want it to contain \"no digest of its own records\"", c.inconclusiveReason)
	}
	x.mustCompare(time.Now(), false, vague, func(m *mapsyncv1.Digest) { m.Nodes = nil })
	if !strings.Contains(c.inconclusiveReason, "too many owners") {
		t.Errorf("inconclusive reason: got %q, want the reason of the peer", c.inconclusiveReason)
	}
	x.mustCompare(time.Now(), false, func(m *mapsyncv1.Digest) { m.KeyFingerprint++ })
	if !strings.Contains(c.impossibleReason, "gossip key") {
		t.Errorf("digest with another key: got reason %q, want it to contain \"gossip key\"", c.impossibleReason)
	}
}

// TestOnlyRequestedRecordsAreCompared checks that the records of other live nodes are compared only
// if this node requested them from the sender and has received them.
func TestOnlyRequestedRecordsAreCompared(t *testing.T) {
	x := newInboundFixture(t)
	ofC := func(m *mapsyncv1.Digest) {
		m.Nodes = append(m.Nodes, &mapsyncv1.NodeDigest{Node: "c", Sum: 5, VersionSum: 5, Live: 1})
	}
	c, q := &x.in.comparison, &x.in.owners
	x.mustCompare(time.Now(), false, ofC)
	if !c.inSync {
		t.Error("records that were not requested: got compared, want ignored")
	}
	q.requested = &permit{peer: "x", nodes: []string{"c"}}
	if x.mustCompare(time.Now(), false, ofC); x.r.Stats().DigestsDivergent != 1 {
		t.Error("requested records: got ignored, want compared")
	}
	x.stream.supportsOwnerRequests, q.confirmedSerial = true, 0
	before := x.r.Stats().DigestsDivergent
	if x.mustCompare(time.Now(), false, ofC); x.r.Stats().DigestsDivergent != before {
		t.Error("requested records that are not received yet: got compared, want ignored")
	}
}

// TestPersistentBucketDifferenceIsRepaired checks that a bucket is repaired if it differs by the
// same sum twice. A difference that changes between digests is in flight.
func TestPersistentBucketDifferenceIsRepaired(t *testing.T) {
	x := newInboundFixture(t)
	c, now := &x.in.comparison, time.Now()
	x.mustCompare(now, false)
	wasWoken(x.stream.wake)
	x.mustCompare(now, false, withDifference(1))
	if !c.requestBuckets || !wasWoken(x.stream.wake) || !c.inSync || c.resendBuckets != nil {
		t.Errorf("first difference: got %+v, want in sync, buckets requested, none to resend, and the stream woken", *c)
	}
	if c.requestBuckets = false; c.divergentNodes["x"] == nil || c.divergentNodes["x"].rounds != 0 {
		t.Errorf("divergent nodes: got %+v, want x with 0 rounds", c.divergentNodes)
	}
	for i, by := range []uint64{1, 2, 3} {
		if x.mustCompare(now, true, withDifference(by)); c.resendBuckets != nil || c.divergentNodes["x"].rounds != i+1 || !c.requestBuckets {
			t.Fatalf("after %d comparisons: got %+v, want %d rounds, buckets requested again and none to resend",
				i+1, c.divergentNodes["x"], i+1)
		}
	}
	if x.mustCompare(now, true, withDifference(3)); c.resendBuckets == nil || !c.resendBuckets.Has(0) || c.resendBuckets.Len() != 1 {
		t.Fatalf("persistent difference: got buckets %v, want the first bucket", c.resendBuckets)
	}
	first := c.resendBuckets
	if x.mustCompare(now, true, withDifference(3)); c.resendBuckets != first {
		t.Error("difference with a pending repair: got another repair, want none")
	}
	c.resendBuckets, c.resend = nil, &inboundResend{}
	if x.mustCompare(now, true, withDifference(3)); c.resendBuckets != nil {
		t.Error("difference during a repair: got another repair, want none")
	}
	c.resend, c.repairAfter = nil, now.Add(1)
	if x.mustCompare(now, true, withDifference(3)); c.resendBuckets != nil {
		t.Error("difference before repairAfter: got another repair, want none")
	}
	if x.mustCompare(now.Add(1), true, withDifference(3)); c.resendBuckets == nil {
		t.Error("difference at repairAfter: got no repair, want one")
	}
}

// TestInSyncOnceEachBucketMatched checks that a map under load is in sync once each bucket has
// agreed at some time since the first difference, although no digest agrees as a whole.
func TestInSyncOnceEachBucketMatched(t *testing.T) {
	x := newInboundFixture(t)
	c, now := &x.in.comparison, time.Now()
	another := func(m *mapsyncv1.Digest) {
		m.Nodes[0].Sum++
		m.Nodes[0].Buckets[8]++ // the second bucket
	}
	if x.mustCompare(now, true, withDifference(1)); c.inSync {
		t.Fatal("difference in two buckets: got in sync, want not in sync")
	}
	vague := func(m *mapsyncv1.Digest) { m.InconclusiveReason = "too many owners" }
	if x.mustCompare(now, true, another, vague); c.inSync {
		t.Error("incomplete comparison: got in sync, want not in sync")
	}
	if x.mustCompare(now, true, withDifference(2)); !c.inSync || c.divergentNodes != nil {
		t.Errorf("all buckets agreed once: got %+v, want in sync", *c)
	}
	// A digest without buckets proves nothing about buckets.
	x.in.comparison.inSync = false
	x.mustCompare(now, false, withDifference(1))
	x.mustCompare(now, true, withDifference(1))
	if c.inSync {
		t.Error("one bucket never agreed: got in sync, want not in sync")
	}
}

// TestDifferenceAfterRepairIsIgnored checks that a difference which remains after a repair counts
// as in sync for explainedTTL while it does not change: the peer has to detect it.
func TestDifferenceAfterRepairIsIgnored(t *testing.T) {
	x := newInboundFixture(t)
	c, now := &x.in.comparison, time.Now()
	in := new(table.BucketSet)
	in.Add(0)
	repaired := func() {
		c.divergentNodes = map[string]*divergentNode{"x": {}}
		x.in.endResend(&inboundResend{buckets: in}, now)
	}
	if repaired(); c.divergentNodes["x"].repairedBuckets != in || !c.requestBuckets {
		t.Fatal("repair without a finding: got other state, want repairedBuckets set and buckets requested")
	}
	if x.mustCompare(now, true, withDifference(3)); !c.inSync {
		t.Error("same difference after the repair: got not in sync, want in sync")
	}
	c.divergentNodes = map[string]*divergentNode{"x": {explained: map[int]uint64{0: 3}, explainedUntil: now.Add(explainedTTL)}}
	c.inSync = false
	if x.mustCompare(now.Add(explainedTTL), true, withDifference(3)); !c.inSync {
		t.Error("same difference at explainedTTL: got not in sync, want in sync")
	}
	c.divergentNodes = map[string]*divergentNode{"x": {explained: map[int]uint64{0: 3}, explainedUntil: now.Add(explainedTTL)}}
	c.inSync = false
	if x.mustCompare(now.Add(explainedTTL), true, withDifference(4)); c.inSync || c.divergentNodes["x"].matchedBuckets.Has(0) {
		t.Error("another difference: got explained, want not in sync")
	}
	c.divergentNodes = map[string]*divergentNode{"x": {explained: map[int]uint64{0: 3}, explainedUntil: now.Add(explainedTTL)}}
	if x.mustCompare(now.Add(explainedTTL+1), true, withDifference(3)); c.inSync || c.divergentNodes["x"].explained != nil {
		t.Error("same difference after explainedTTL: got explained, want not in sync")
	}
	// A bucket that was not repaired is not explained, and an equal one needs no explanation.
	c.divergentNodes = map[string]*divergentNode{"x": {repairedBuckets: new(table.BucketSet)}}
	if x.mustCompare(now, true, withDifference(3)); c.inSync || c.divergentNodes["x"].explained != nil {
		t.Error("difference in a bucket that was not repaired: got explained, want not in sync")
	}
	all := new(table.BucketSet)
	for b := range table.DigestBuckets {
		all.Add(b)
	}
	s := &divergentNode{repairedBuckets: all}
	c.divergentNodes, c.inSync = map[string]*divergentNode{"x": s}, false
	if x.mustCompare(now, true, withDifference(3)); len(s.explained) != 1 || s.explained[0] != 3 || !s.explainedUntil.Equal(now.Add(explainedTTL)) || s.repairedBuckets != nil {
		t.Errorf("explained buckets: got %v until %s, want one bucket with 3 until %s, and no repaired buckets",
			s.explained, s.explainedUntil, now.Add(explainedTTL))
	}
}

// TestPersistentNodeDifferenceStartsFullSync checks that entries with another layout are compared
// as a whole. A full sync repairs a persistent difference. A difference that changes continuously
// makes the comparison impossible.
func TestPersistentNodeDifferenceStartsFullSync(t *testing.T) {
	x := newInboundFixture(t)
	x.handle(stockBatch(x.in.index, 0, 10, 1, 2))
	c, now := &x.in.comparison, time.Now()
	scope := func(m *mapsyncv1.Digest) { m.ScopeFingerprint++; m.Nodes[0].Live = 7; m.Nodes[0].Sum++ }
	x.mustCompare(now, false, scope)
	if !c.inSync {
		t.Fatal("equal version sums: got not in sync, want in sync: buckets of another layout are not compared")
	}
	wasWoken(x.stream.wake)
	x.mustCompare(now, false, scope, withDifference(1))
	if !c.requestBuckets || !wasWoken(x.stream.wake) || !c.inSync {
		t.Errorf("first difference: got %+v, want in sync, buckets requested, and the stream woken", *c)
	}
	for range 10 { // another difference each time
		x.mustCompare(now, false, scope, withDifference(uint64(2+c.divergentNodes["x"].rounds)))
	}
	if !x.in.repeatFullSyncAt.IsZero() || c.impossibleReason != "" {
		t.Error("difference in flight: got a repair, want none")
	}
	last := uint64(1 + c.divergentNodes["x"].rounds)
	for i := range sameVersionSumRounds - 1 {
		if x.mustCompare(now, false, scope, withDifference(last)); !x.in.repeatFullSyncAt.IsZero() {
			t.Fatalf("repair after %d repetitions, want sameVersionSumRounds", i+1)
		}
	}
	c.repairAfter = now.Add(1)
	if x.mustCompare(now, false, scope, withDifference(last)); !x.in.repeatFullSyncAt.IsZero() {
		t.Error("difference before repairAfter: got a repair, want none")
	}
	x.mustCompare(now.Add(1), false, scope, withDifference(last))
	if !x.in.repeatFullSyncAt.Equal(now.Add(1)) || c.inSync || c.divergent != 5 || x.r.Stats().Repairs != 1 || !c.repairAfter.After(now.Add(1)) {
		t.Errorf("persistent difference: got full sync at %s, %+v, want %s, not in sync, 5 divergent, 1 repair, and a later repairAfter",
			x.in.repeatFullSyncAt, *c, now.Add(1))
	}
	fewer := func(m *mapsyncv1.Digest) { m.Nodes[0].Live = 0 }
	c.repairAfter = now
	if x.mustCompare(now, false, scope, withDifference(last), fewer); c.divergent != 2 {
		t.Errorf("divergent entries: got %d, want 2", c.divergent)
	}
	c.repairAfter = now
	same := func(m *mapsyncv1.Digest) { m.Nodes[0].Live = 2 }
	if x.mustCompare(now, false, scope, withDifference(last), same); c.divergent != 1 {
		t.Errorf("divergent entries: got %d, want 1", c.divergent)
	}
	// An agreement clears the state of the difference.
	if x.mustCompare(now, false, scope); !c.inSync || c.divergentNodes != nil {
		t.Errorf("equal version sums: got %+v, want in sync and no divergent nodes", *c)
	}
	for i := range maxVersionSumRounds + 1 {
		if c.impossibleReason != "" {
			t.Fatalf("comparison impossible after %d rounds, want maxVersionSumRounds", i)
		}
		x.mustCompare(now, false, scope, withDifference(uint64(50+i)))
	}
	if !strings.Contains(c.impossibleReason, "another layout") || c.inSync {
		t.Errorf("changing difference: got %+v, want an impossible comparison", *c)
	}
	x.mustCompare(now, false, scope, withDifference(99))
	if !strings.Contains(c.impossibleReason, "another layout") {
		t.Error("difference in another layout: got a possible comparison, want an impossible one")
	}
	if x.mustCompare(now, false, scope); c.impossibleReason != "" {
		t.Error("agreement in another layout: got an impossible comparison, want in sync")
	}
}
