package replicate

import (
	"errors"
	"strings"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// comparison has node b compare with a digest of x, which holds what b holds of it but for the
// changes. It returns the error.
func (x *receiver) comparison(now time.Time, parts bool, changes ...func(*mapsyncv1.Digest)) error {
	x.t.Helper()
	m := x.digest(parts).GetDigest()
	for _, change := range changes {
		change(m)
	}
	return x.in.compare(m, now)
}

// differs adds to the sum of the first bucket and of the whole.
func differs(by uint64) func(*mapsyncv1.Digest) {
	return func(m *mapsyncv1.Digest) {
		n := m.GetNodes()[0]
		n.Sum += by
		n.Loose += by
		if n.GetBuckets() != nil {
			n.Buckets[0] += byte(by)
		}
	}
}

func (x *receiver) mustCompare(now time.Time, parts bool, changes ...func(*mapsyncv1.Digest)) {
	x.t.Helper()
	if err := x.comparison(now, parts, changes...); err != nil {
		x.t.Fatal(err)
	}
}

// TestDigestsAreChecked has digests that break the protocol.
func TestDigestsAreChecked(t *testing.T) {
	x := newStreamless(t)
	x.take(stockBatch(x.in.index, 0, 10, 1, 2))
	if err := x.comparison(time.Now(), false, func(m *mapsyncv1.Digest) { m.Position = 9 }); !errors.Is(err, errProtocol) {
		t.Errorf("of a position that has passed: %v", err)
	}
	for _, state := range []State{StateWaiting, StateFailed, StatePending, StateRefused} {
		x.in.state = state
		if err := x.comparison(time.Now(), false); !errors.Is(err, errProtocol) {
			t.Errorf("of a map that is %s: %v", state, err)
		}
	}
	for _, state := range []State{StateSyncing, StateCaughtUp} {
		x.in.state = state
		if err := x.comparison(time.Now(), false); err != nil {
			t.Errorf("of a map that is %s: %v", state, err)
		}
	}
	many := &mapsyncv1.Digest{}
	for range maxDigests {
		many.Nodes = append(many.Nodes, &mapsyncv1.NodeDigest{Node: strings.Repeat("n", len(many.Nodes)+1)})
	}
	if _, err := readDigests(many); err != nil {
		t.Errorf("%d digests: %v", maxDigests, err)
	}
}

// TestDigestsThatAgree prove equality, and end what was doubted.
func TestDigestsThatAgree(t *testing.T) {
	x := newStreamless(t)
	x.take(stockBatch(x.in.index, 0, 10, 1, 2))
	c, now := &x.in.comparing, time.Now()
	c.divergent, c.pause, c.ask, c.impossible, c.unknown, c.unknowns = 3, time.Second, true, "why", "why", 2
	c.suspects = map[string]*suspect{"x": {}}
	x.mustCompare(now, false, func(m *mapsyncv1.Digest) { m.Unsent = 7 })
	if !c.agreed || !c.current || !c.at.Equal(now) || c.position != 10 || c.divergent != 0 || c.pause != 0 || c.ask ||
		c.suspects != nil || c.impossible != "" || c.unknown != "" || c.unknowns != 0 || c.unsent != 7 || c.live != 2 {
		t.Errorf("%+v", *c)
	}
	if s := x.r.Stats(); s.Digests != 1 || s.DigestsDiffer != 0 || s.DigestsImpossible != 0 {
		t.Errorf("%d comparisons, %d differ, %d impossible", s.Digests, s.DigestsDiffer, s.DigestsImpossible)
	}
	c.list = &listing{done: make(chan struct{})}
	c.list.chosen = true
	if x.in.agree(10, now); !c.ask {
		t.Error("a list that waits for a digest does not ask for one")
	}
}

// TestComparisonsThatProveNothing: an earlier proof stands while a few in a row prove nothing, since
// nodes learn of a change of membership one after another.
func TestComparisonsThatProveNothing(t *testing.T) {
	x := newStreamless(t)
	c := &x.in.comparing
	x.mustCompare(time.Now(), false)
	vague := func(m *mapsyncv1.Digest) { m.Unknown = "too many owners" }
	for i := range maxUnknowns {
		x.mustCompare(time.Now(), false, vague)
		if !c.agreed || c.impossible != "" || !strings.Contains(c.unknown, "too many owners") || c.ask {
			t.Fatalf("after %d: %+v", i+1, *c)
		}
	}
	if s := x.r.Stats(); s.DigestsImpossible != maxUnknowns || s.Digests != maxUnknowns+1 {
		t.Errorf("%d of %d impossible", s.DigestsImpossible, s.Digests)
	}
	x.mustCompare(time.Now(), false) // one that proves something
	for range maxUnknowns {
		x.mustCompare(time.Now(), false, vague)
	}
	if c.impossible != "" {
		t.Error("the comparison between does not count")
	}
	x.mustCompare(time.Now(), false, vague)
	if c.agreed || !strings.Contains(c.impossible, "too many owners") || !x.in.awaitsAgreement(time.Time{}) {
		t.Errorf("%+v", *c)
	}
	// What differs is known to, with the same layout, and the rest stays unknown.
	c.suspects = map[string]*suspect{"x": {}}
	x.mustCompare(time.Now(), false, vague)
	if c.suspects != nil {
		t.Error("suspects stay although nothing differs")
	}
	x.mustCompare(time.Now(), false, differs(1))
	if c.impossible != "" || c.agreed || x.r.Stats().DigestsDiffer != 1 {
		t.Errorf("what differs exactly can be compared: %+v", *c)
	}
	x.mustCompare(time.Now(), false, func(m *mapsyncv1.Digest) { m.Nodes = nil })
	if !strings.Contains(c.unknown, "no digest of its own records") {
		t.Errorf("unknown: %q", c.unknown)
	}
	x.mustCompare(time.Now(), false, vague, func(m *mapsyncv1.Digest) { m.Nodes = nil })
	if !strings.Contains(c.unknown, "too many owners") {
		t.Errorf("the peer's own reason is replaced: %q", c.unknown)
	}
	x.mustCompare(time.Now(), false, func(m *mapsyncv1.Digest) { m.Key++ })
	if !strings.Contains(c.impossible, "gossip key") {
		t.Errorf("other keys: %q", c.impossible)
	}
}

// TestOnlyRequestedRecordsAreCompared: of other live nodes' records the sender is compared with only
// if they were requested of it, and have come.
func TestOnlyRequestedRecordsAreCompared(t *testing.T) {
	x := newStreamless(t)
	ofC := func(m *mapsyncv1.Digest) {
		m.Nodes = append(m.Nodes, &mapsyncv1.NodeDigest{Node: "c", Sum: 5, Loose: 5, Live: 1})
	}
	c, q := &x.in.comparing, &x.in.requesting
	x.mustCompare(time.Now(), false, ofC)
	if !c.agreed {
		t.Error("records that were not requested are compared")
	}
	q.wanted = &permit{peer: "x", nodes: []string{"c"}}
	if x.mustCompare(time.Now(), false, ofC); x.r.Stats().DigestsDiffer != 1 {
		t.Error("requested records are not compared")
	}
	x.l.ownerRequests, q.confirmed = true, 0
	before := x.r.Stats().DigestsDiffer
	if x.mustCompare(time.Now(), false, ofC); x.r.Stats().DigestsDiffer != before {
		t.Error("records that have not come yet are compared")
	}
}

// TestDoubtedBuckets: what differs is repaired when it differs by the same sum twice; what changes
// from one digest to the next is under way.
func TestDoubtedBuckets(t *testing.T) {
	x := newStreamless(t)
	c, now := &x.in.comparing, time.Now()
	x.mustCompare(now, false)
	woken(x.l.wake)
	x.mustCompare(now, false, differs(1))
	if !c.ask || !woken(x.l.wake) || !c.agreed || c.want != nil {
		t.Errorf("the parts are not asked for: %+v", *c)
	}
	if c.ask = false; c.suspects["x"] == nil || c.suspects["x"].rounds != 0 {
		t.Errorf("%+v", c.suspects)
	}
	for i, by := range []uint64{1, 2, 3} {
		if x.mustCompare(now, true, differs(by)); c.want != nil || c.suspects["x"].rounds != i+1 || !c.ask {
			t.Fatalf("after %d: %+v", i+1, c.suspects["x"])
		}
	}
	if x.mustCompare(now, true, differs(3)); c.want == nil || !c.want.Has(0) || c.want.Len() != 1 {
		t.Fatalf("a difference that stays is not repaired: %v", c.want)
	}
	first := c.want
	if x.mustCompare(now, true, differs(3)); c.want != first {
		t.Error("another repair is asked for before the first one")
	}
	c.want, c.job = nil, &job{}
	if x.mustCompare(now, true, differs(3)); c.want != nil {
		t.Error("another repair is asked for during the first one")
	}
	c.job, c.retry = nil, now.Add(1)
	if x.mustCompare(now, true, differs(3)); c.want != nil {
		t.Error("another repair is asked for too soon")
	}
	if x.mustCompare(now.Add(1), true, differs(3)); c.want == nil {
		t.Error("no other repair is asked for")
	}
}

// TestBucketsThatWereEqualOnce: under load no digest agrees as a whole. Equality is proven once each
// bucket was equal at some time since the first doubt.
func TestBucketsThatWereEqualOnce(t *testing.T) {
	x := newStreamless(t)
	c, now := &x.in.comparing, time.Now()
	another := func(m *mapsyncv1.Digest) {
		m.Nodes[0].Sum++
		m.Nodes[0].Buckets[8]++ // the second one
	}
	if x.mustCompare(now, true, differs(1)); c.agreed {
		t.Fatal("agreed")
	}
	vague := func(m *mapsyncv1.Digest) { m.Unknown = "too many owners" }
	if x.mustCompare(now, true, another, vague); c.agreed {
		t.Error("agreed although not all was compared")
	}
	if x.mustCompare(now, true, differs(2)); !c.agreed || c.suspects != nil {
		t.Errorf("not agreed: %+v", *c)
	}
	// A digest without parts proves no bucket.
	x.in.comparing.agreed = false
	x.mustCompare(now, false, differs(1))
	x.mustCompare(now, true, differs(1))
	if c.agreed {
		t.Error("agreed although one bucket was never equal")
	}
}

// TestExplainedDifferences: after a repair, what differs still is the peer's to find. It counts as
// equal for a time, as long as it stays the same.
func TestExplainedDifferences(t *testing.T) {
	x := newStreamless(t)
	c, now := &x.in.comparing, time.Now()
	in := new(table.BucketSet)
	in.Add(0)
	repaired := func() {
		c.suspects = map[string]*suspect{"x": {}}
		x.in.endJob(&job{in: in}, now)
	}
	if repaired(); c.suspects["x"].fresh != in || !c.ask {
		t.Fatal("a repair that found nothing explains nothing")
	}
	if x.mustCompare(now, true, differs(3)); !c.agreed {
		t.Error("the same difference right after a repair is not explained")
	}
	c.suspects = map[string]*suspect{"x": {explained: map[int]uint64{0: 3}, until: now.Add(explainFor)}}
	c.agreed = false
	if x.mustCompare(now.Add(explainFor), true, differs(3)); !c.agreed {
		t.Error("it is not explained any more, too soon")
	}
	c.suspects = map[string]*suspect{"x": {explained: map[int]uint64{0: 3}, until: now.Add(explainFor)}}
	c.agreed = false
	if x.mustCompare(now.Add(explainFor), true, differs(4)); c.agreed || c.suspects["x"].proven.Has(0) {
		t.Error("another difference is explained")
	}
	c.suspects = map[string]*suspect{"x": {explained: map[int]uint64{0: 3}, until: now.Add(explainFor)}}
	if x.mustCompare(now.Add(explainFor+1), true, differs(3)); c.agreed || c.suspects["x"].explained != nil {
		t.Error("it is explained for ever")
	}
	// A bucket that was not looked into is not explained, and one that is equal needs no explanation.
	c.suspects = map[string]*suspect{"x": {fresh: new(table.BucketSet)}}
	if x.mustCompare(now, true, differs(3)); c.agreed || c.suspects["x"].explained != nil {
		t.Error("a bucket that was not looked into is explained")
	}
	all := new(table.BucketSet)
	for b := range table.DigestBuckets {
		all.Add(b)
	}
	s := &suspect{fresh: all}
	c.suspects, c.agreed = map[string]*suspect{"x": s}, false
	if x.mustCompare(now, true, differs(3)); len(s.explained) != 1 || s.explained[0] != 3 || !s.until.Equal(now.Add(explainFor)) || s.fresh != nil {
		t.Errorf("explained %v until %s", s.explained, s.until)
	}
}

// TestDoubtedNodes: of entries in another layout only the whole can be compared. A difference that
// stays is repaired by a full sync, and one that always changes makes a comparison impossible.
func TestDoubtedNodes(t *testing.T) {
	x := newStreamless(t)
	x.take(stockBatch(x.in.index, 0, 10, 1, 2))
	c, now := &x.in.comparing, time.Now()
	scope := func(m *mapsyncv1.Digest) { m.Scope++; m.Nodes[0].Live = 7; m.Nodes[0].Sum++ }
	x.mustCompare(now, false, scope)
	if !c.agreed {
		t.Fatal("the whole agrees, and the parts of another layout count")
	}
	woken(x.l.wake)
	x.mustCompare(now, false, scope, differs(1))
	if !c.ask || !woken(x.l.wake) || !c.agreed {
		t.Errorf("no other digest is asked for: %+v", *c)
	}
	for range 10 { // another difference each time
		x.mustCompare(now, false, scope, differs(uint64(2+c.suspects["x"].rounds)))
	}
	if !x.in.rewalk.IsZero() || c.impossible != "" {
		t.Error("what is under way is repaired")
	}
	last := uint64(1 + c.suspects["x"].rounds)
	for i := range sameLooseRounds - 1 {
		if x.mustCompare(now, false, scope, differs(last)); !x.in.rewalk.IsZero() {
			t.Fatalf("repaired after %d", i+1)
		}
	}
	c.retry = now.Add(1)
	if x.mustCompare(now, false, scope, differs(last)); !x.in.rewalk.IsZero() {
		t.Error("repaired too soon after the last repair")
	}
	x.mustCompare(now.Add(1), false, scope, differs(last))
	if !x.in.rewalk.Equal(now.Add(1)) || c.agreed || c.divergent != 5 || x.r.Stats().Repairs != 1 || !c.retry.After(now.Add(1)) {
		t.Errorf("full sync at %s, %+v", x.in.rewalk, *c)
	}
	fewer := func(m *mapsyncv1.Digest) { m.Nodes[0].Live = 0 }
	c.retry = now
	if x.mustCompare(now, false, scope, differs(last), fewer); c.divergent != 2 {
		t.Errorf("%d entries diverge", c.divergent)
	}
	c.retry = now
	same := func(m *mapsyncv1.Digest) { m.Nodes[0].Live = 2 }
	if x.mustCompare(now, false, scope, differs(last), same); c.divergent != 1 {
		t.Errorf("%d entries diverge", c.divergent)
	}
	// Agreement ends the doubt.
	if x.mustCompare(now, false, scope); !c.agreed || c.suspects != nil {
		t.Errorf("%+v", *c)
	}
	for i := range maxLooseRounds + 1 {
		if c.impossible != "" {
			t.Fatalf("impossible after %d", i)
		}
		x.mustCompare(now, false, scope, differs(uint64(50+i)))
	}
	if !strings.Contains(c.impossible, "another layout") || c.agreed {
		t.Errorf("%+v", *c)
	}
	x.mustCompare(now, false, scope, differs(99))
	if !strings.Contains(c.impossible, "another layout") {
		t.Error("a difference in another layout makes a comparison possible")
	}
	if x.mustCompare(now, false, scope); c.impossible != "" {
		t.Error("agreement in another layout does not count")
	}
}
