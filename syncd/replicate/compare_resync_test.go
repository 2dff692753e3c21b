package replicate

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// TestIncomparableReasonIsLoggedOnce checks the log line about a map that cannot be compared.
func TestIncomparableReasonIsLoggedOnce(t *testing.T) {
	var out bytes.Buffer
	x := newInboundFixture(t)
	x.r.opt.Logger = slog.New(slog.NewTextHandler(&out, nil))
	x.in.comparison.divergent = 3
	for _, why := range []string{"one", "one", "two"} {
		x.in.noteIncomparable(why)
	}
	// A list whose buckets are being resent continues.
	l := newTestList(x)
	x.in.comparison.list, x.in.comparison.resend = l, &inboundResend{}
	if x.in.noteIncomparable("two"); listEnded(l) || x.in.comparison.list != l {
		t.Errorf("list during a resend: got ended with %v, want continued", l.err)
	}
	if n := strings.Count(out.String(), "cannot compare map"); n != 2 || !strings.Contains(out.String(), "peer=x map="+testMap+" reason=one") {
		t.Errorf("log lines about the comparison: got %d: %s, want 2, and one with peer=x map=%s reason=one", n, out.String(), testMap)
	}
	out.Reset()
	for _, c := range []struct {
		agreed    bool
		divergent int
		lines     int
	}{{false, 1, 1}, {false, 0, 0}, {true, 1, 0}} {
		x.in.comparison.inSync, x.in.comparison.divergent = c.agreed, c.divergent
		x.in.noteInSync(10, time.Now())
		if n := strings.Count(out.String(), "map in sync with peer again"); n != c.lines {
			t.Errorf("in sync before %t, %d divergent: got %d log lines, want %d", c.agreed, c.divergent, n, c.lines)
		}
		out.Reset()
	}
}

// TestInconclusiveDigest checks that an inconclusive digest clears divergentNodes, and that the
// number of unsent records is bounded.
func TestInconclusiveDigest(t *testing.T) {
	x := newInboundFixture(t)
	c := &x.in.comparison
	c.divergentNodes = map[string]*divergentNode{"x": {}}
	x.mustCompare(time.Now(), false, func(m *mapsyncv1.Digest) { m.InconclusiveReason, m.Unsent = "not now", 1<<40 })
	if c.divergentNodes != nil || c.inconclusiveRounds != 1 || c.impossibleReason != "" || c.peerUnsent != 1<<31 {
		t.Errorf("comparison after an inconclusive digest: got %+v, "+
			"want no divergent nodes, 1 inconclusive round, no impossible reason, and peerUnsent 1<<31", *c)
	}
	x = newInboundFixture(t)
	x.mustCompare(time.Now(), false, func(m *mapsyncv1.Digest) { m.KeyFingerprint++ })
	if s := x.r.Stats(); s.DigestsImpossible != 1 || s.Digests != 1 || !strings.Contains(x.in.comparison.impossibleReason, "another key") {
		t.Errorf("digest with another key: got %d of %d comparisons impossible, reason %q, want 1 of 1 and \"another key\"", s.DigestsImpossible, s.Digests, x.in.comparison.impossibleReason)
	}
}

// TestExceptionsAreExcludedFromComparison checks that records which this node cannot hold are excluded
// from the comparison of different layouts, for the records of the peer and for orphaned records.
func TestExceptionsAreExcludedFromComparison(t *testing.T) {
	z, x1 := table.Owner{Node: "z", Incarnation: 1}, table.Owner{Node: "x", Incarnation: 1}
	for name, c := range map[string]struct {
		// excepted owns the exception here, peers and orphaned own the records at the peer.
		excepted, peers, orphaned table.Owner
		agreed                    bool
	}{
		"none":                  {agreed: true},
		"orphaned":              {excepted: z, orphaned: z, agreed: true},
		"owned by the peer":     {excepted: x1, peers: x1, agreed: true},
		"owned by another node": {excepted: x1, orphaned: z},
		"no exception":          {peers: x1},
		"no orphaned record":    {excepted: z},
	} {
		x := newInboundFixture(t)
		x.stream.supportsOwnerRequests = true
		x.in.owners.confirmedSerial = x.in.owners.serial
		x.in.m.requestsComplete.Store(true)
		if c.excepted.Node != "" {
			x.in.exceptions.add([]byte{0xff}, 9, c.excepted, errGap)
		}
		m := x.digestMessage(false).GetDigest()
		m.ScopeFingerprint++
		m.MembersFingerprint, m.Orphaned = x.r.view.Load().members, &mapsyncv1.NodeDigest{}
		x.tb.View(func(tx *table.Tx) {
			if c.orphaned.Node != "" {
				m.Orphaned.VersionSum += tx.VersionSumOf(c.orphaned, 9)
			}
			if c.peers.Node != "" {
				m.Nodes[0].VersionSum += tx.VersionSumOf(c.peers, 9)
			}
		})
		if err := x.in.processDigest(m, time.Now()); err != nil {
			t.Fatalf("process digest: got error %v, want nil", err)
		}
		if got := x.in.comparison.inSync; got != c.agreed {
			t.Errorf("%s: in sync: got %t, %+v, want %t", name, got, x.in.comparison, c.agreed)
		}
	}
}

// TestDivergentNodesAreBounded checks that divergentNodes has at most wire.MaxDigests nodes.
func TestDivergentNodesAreBounded(t *testing.T) {
	for _, before := range []int{wire.MaxDigests - 1, wire.MaxDigests} {
		x := newInboundFixture(t)
		c := &x.in.comparison
		c.divergentNodes = make(map[string]*divergentNode)
		for i := range before {
			c.divergentNodes[fmt.Sprint(i)] = &divergentNode{}
		}
		x.in.checkNodes([]nodeComparison{{NodeDigest: wire.NodeDigest{Node: "new"}}}, time.Now())
		if len(c.divergentNodes) != wire.MaxDigests || (c.divergentNodes["new"] != nil) != (before < wire.MaxDigests) {
			t.Errorf("divergent nodes: got %d after %d, want %d, with the new node only if there was room",
				len(c.divergentNodes), before, wire.MaxDigests)
		}
	}
}

// TestBucketDelta checks that a bucket delta is the sum of the peer minus that of this node.
func TestBucketDelta(t *testing.T) {
	var theirs, ours table.Buckets
	theirs[1], ours[1], theirs[2], ours[2] = 7, 5, 3, 3
	var s divergentNode
	s.compareBuckets(&nodeComparison{NodeDigest: wire.NodeDigest{Node: "x", Buckets: &theirs}, localBuckets: &ours}, new(table.BucketSet), time.Now())
	if s.bucketDeltas[1] != 2 || s.bucketDeltas[2] != 0 || s.matchedBuckets.Has(1) || !s.matchedBuckets.Has(2) || s.rounds != 1 {
		t.Errorf("bucket deltas: got %d and %d, want 2 and 0", s.bucketDeltas[1], s.bucketDeltas[2])
	}
	// A bucket that was explained and agrees now is matched.
	s = divergentNode{explained: map[int]uint64{2: 5}, explainedUntil: at1000}
	s.compareBuckets(&nodeComparison{NodeDigest: wire.NodeDigest{Node: "x", Buckets: &theirs}, localBuckets: &ours}, new(table.BucketSet), at1000)
	if !s.matchedBuckets.Has(2) || s.explained[2] != 5 {
		t.Errorf("explained buckets: got %v, want 5 for bucket 2, and bucket 2 matched", s.explained)
	}
}

// TestDiffListTimeout checks that a list fails with the reason if no comparison can be made for
// listTimeout.
func TestDiffListTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newInboundFixture(t)
		begun := time.Now()
		time.AfterFunc(listTimeout+1, func() {
			x.stream.mu.Lock()
			x.in.comparison.inconclusiveReason = "other live nodes"
			x.stream.mu.Unlock()
		})
		list, err := x.r.Diff(t.Context(), testMap, "x")
		if !errors.Is(err, errNoComparison) || !strings.Contains(err.Error(), `"ct" with x`) || !strings.Contains(err.Error(), "other live nodes") {
			t.Errorf("list without a comparison: got %v, %v, want errNoComparison", list, err)
		}
		if time.Since(begun) != 2*listTimeout || x.in.comparison.list != nil {
			t.Errorf("list without a comparison: ended after %s, list %v, want %s and no list",
				time.Since(begun), x.in.comparison.list, 2*listTimeout)
		}
		x.in.comparison.inconclusiveReason = ""
		time.AfterFunc(time.Second, func() {
			x.stream.mu.Lock()
			x.in.comparison.list.end(errResendStalled)
			x.stream.mu.Unlock()
		})
		if _, err := x.r.Diff(t.Context(), testMap, "x"); !errors.Is(err, errResendStalled) || !strings.Contains(err.Error(), `"ct" with x`) {
			t.Errorf("list that fails: got %v, want errResendStalled", err)
		}
	})
}

// TestPauseBetweenDiffLists checks that the two lists of Compare are digestInterval apart.
func TestPauseBetweenDiffLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newInboundFixture(t)
		begun := time.Now()
		differences := []Difference{{Key: []byte("k")}}
		answerLists(x, differences, differences)
		c, err := x.r.Compare(t.Context(), testMap, "x")
		if d := time.Since(begun); err != nil || len(c.Differences) != 1 || c.InFlight != 0 || d < x.r.opt.digestInterval || d > 2*x.r.opt.digestInterval {
			t.Errorf("compare: got %+v, %v after %s, want one difference after digestInterval", c, err, d)
		}
	})
}

// TestSecondDiffListFails checks that Compare returns the error of the second list.
func TestSecondDiffListFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newInboundFixture(t)
		answerLists(x, []Difference{{Key: []byte("k")}})
		time.AfterFunc(x.r.opt.digestInterval/2, func() {
			x.stream.mu.Lock()
			x.in.state = StateFailed
			x.stream.mu.Unlock()
		})
		if c, err := x.r.Compare(t.Context(), testMap, "x"); !errors.Is(err, ErrNotFound) || len(c.Differences) != 0 {
			t.Errorf("compare: got %+v, %v, want ErrNotFound", c, err)
		}
	})
}

// TestDiffListOfOwnRecords checks that a difference in this node's records is requested at once.
func TestDiffListOfOwnRecords(t *testing.T) {
	x, l := newListFixture(t)
	putTable(t, x.tb, 50, 51, 1)
	wasWoken(x.stream.wake)
	if x.mustCompare(time.Now(), true); x.in.comparison.resendBuckets == nil || !l.bucketsChosen || !wasWoken(x.stream.wake) {
		t.Errorf("buckets of the list: got %v, chosen %t, want a set of buckets, true, and the stream woken",
			x.in.comparison.resendBuckets, l.bucketsChosen)
	}
}

// TestEndOfDiffListKeepsComparison checks that the end of a list does not change the comparison
// of the map.
func TestEndOfDiffListKeepsComparison(t *testing.T) {
	x := newInboundFixture(t)
	c := &x.in.comparison
	c.divergent, c.inSync, c.repairBackoff, c.repairAfter = 5, true, time.Minute, at1000
	j := &inboundResend{list: newTestList(x), unrepaired: 3, repaired: 2}
	c.resend, c.requestBuckets = j, false
	wasWoken(x.stream.wake)
	x.in.endResend(j, time.Now())
	if !listEnded(j.list) || c.resend != nil || !c.requestBuckets || !wasWoken(x.stream.wake) {
		t.Errorf("end of the resend: got %+v, want an ended list", *c)
	}
	if c.divergent != 5 || !c.inSync || c.repairBackoff != time.Minute || c.repairAfter != at1000 || x.r.Stats().Repaired != 0 {
		t.Errorf("end of a list: got %+v, want the comparison unchanged", *c)
	}
}

// TestInSyncConditions checks the conditions for an agreement: on this stream, under the same
// membership, and late enough.
func TestInSyncConditions(t *testing.T) {
	for name, c := range map[string]struct {
		change func(in *inboundMap)
		awaits bool
	}{
		"agreed":                    {func(*inboundMap) {}, false},
		"not in sync":               {func(in *inboundMap) { in.comparison.inSync = false }, true},
		"impossible":                {func(in *inboundMap) { in.comparison.impossibleReason = "why" }, true},
		"agreed on another stream":  {func(in *inboundMap) { in.comparison.onThisStream = false }, true},
		"agreed at the time":        {func(in *inboundMap) { in.comparison.inSyncAt = at1000 }, false},
		"agreed before the time":    {func(in *inboundMap) { in.comparison.inSyncAt = at1000.Add(-1) }, true},
		"agreed under another view": {func(in *inboundMap) { in.comparison.departures++ }, true},
		"pending":                   {func(in *inboundMap) { in.comparison.inSync, in.state = false, StatePending }, false},
		"waiting":                   {func(in *inboundMap) { in.state = StateWaiting }, true},
		"failed":                    {func(in *inboundMap) { in.state = StateFailed }, true},
	} {
		x := newInboundFixture(t)
		x.in.noteInSync(10, at1000.Add(time.Second))
		c.change(x.in)
		if got := x.in.awaitsInSync(at1000); got != c.awaits {
			t.Errorf("%s: awaits: got %t, want %t", name, got, c.awaits)
		}
	}
}

// TestForcedFullSyncResetsInSync checks that a forced full sync invalidates an earlier agreement.
func TestForcedFullSyncResetsInSync(t *testing.T) {
	x := newInboundFixture(t)
	x.in.noteInSync(10, at1000)
	x.in.fullSyncRecords = 7
	wasWoken(x.stream.wake)
	x.stream.forceFullSync("none", at1000)
	if !x.in.repeatFullSyncAt.IsZero() || wasWoken(x.stream.wake) {
		t.Error("force a full sync of an unknown map: got a full sync, want none")
	}
	x.stream.forceFullSync(testMap, at1000)
	if c := &x.in.comparison; !x.in.repeatFullSyncAt.Equal(at1000) || !c.resyncStart.Equal(at1000) || c.inSync || x.in.fullSyncRecords != 0 || !wasWoken(x.stream.wake) {
		t.Errorf("force a full sync: got full sync at %s, %+v, "+
			"want %s, the resync begun then, not in sync, no full sync records, and the stream woken", x.in.repeatFullSyncAt, *c, at1000)
	}
}

// TestInSyncIgnoresReplacedMap checks that the agreement of a replaced map of the same name
// does not count.
func TestInSyncIgnoresReplacedMap(t *testing.T) {
	x := newInboundFixture(t)
	x.in.noteInSync(10, time.Now())
	if ok, missing := x.r.InSync(); !ok {
		t.Fatalf("in sync: got missing %q, want none", missing)
	}
	x.in.m = &localMap{}
	if ok, missing := x.r.InSync(); ok || len(missing) != 1 || missing[0] != "x/"+testMap {
		t.Errorf("in sync after the map was replaced: got %t, missing %q, want false and x/%s only", ok, missing, testMap)
	}
}

// TestResyncWithRecordsAboveTheLimit checks that a resync ends with an error if records above the
// limit prevent an agreement.
func TestResyncWithRecordsAboveTheLimit(t *testing.T) {
	for _, agreed := range []bool{false, true} {
		x := newInboundFixture(t)
		x.in.fullSyncDone, x.in.state = true, StateCaughtUp
		x.in.exceptions.addAboveLimit([]byte("k"), 1, target, false)
		x.in.noteInSync(10, at1000.Add(time.Second))
		x.in.comparison.inSync = agreed
		peers, _, _, unknown := x.r.resyncProgress(testMap, at1000)
		if len(peers) != 0 || (unknown == nil) != agreed || !agreed && !strings.Contains(unknown.Error(), "1 records rejected") {
			t.Errorf("in sync %t: resync waits for %q, error %v, want none, and an error about 1 rejected record only if not in sync",
				agreed, peers, unknown)
		}
	}
}
