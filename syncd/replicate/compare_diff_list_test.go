package replicate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

func newTestList(x *inboundFixture) *diffList {
	return &diffList{done: make(chan struct{}), view: x.r.view.Load()}
}

func listEnded(l *diffList) bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// TestOneDiffListAtATime checks that a list needs a received map, and that another list must not be
// in progress.
func TestOneDiffListAtATime(t *testing.T) {
	x := newInboundFixture(t)
	c := &x.in.comparison
	if err := x.stream.requestDiffList("none", newTestList(x)); !errors.Is(err, ErrNotFound) {
		t.Errorf("list of an unknown map: got %v, want ErrNotFound", err)
	}
	for _, state := range []State{StateWaiting, StatePending, StateRefused, StateFailed} {
		x.in.state = state
		if err := x.stream.requestDiffList(testMap, newTestList(x)); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), string(state)) || c.list != nil {
			t.Errorf("list of a map in state %s: got %v, want ErrNotFound", state, err)
		}
	}
	for _, state := range []State{StateSyncing, StateCaughtUp} {
		x.in.state, c.list, c.requestBuckets = state, nil, false
		wasWoken(x.stream.wake)
		if err := x.stream.requestDiffList(testMap, newTestList(x)); err != nil || !c.requestBuckets || !wasWoken(x.stream.wake) {
			t.Errorf("list of a map in state %s: got %v, want no error", state, err)
		}
	}
	if err := x.stream.requestDiffList(testMap, newTestList(x)); !errors.Is(err, errBusy) {
		t.Errorf("second list: got %v, want errBusy", err)
	}
	c.list, c.resend = nil, &inboundResend{list: newTestList(x)}
	if err := x.stream.requestDiffList(testMap, newTestList(x)); !errors.Is(err, errBusy) {
		t.Errorf("list while another is being received: got %v, want errBusy", err)
	}
	c.resend = &inboundResend{}
	if err := x.stream.requestDiffList(testMap, newTestList(x)); err != nil {
		t.Errorf("list during a repair: got %v, want no error", err)
	}
}

// TestAbandonedDiffLists checks lists whose caller gives up, whose stream ends, or whose comparison
// cannot be made.
func TestAbandonedDiffLists(t *testing.T) {
	x := newInboundFixture(t)
	c := &x.in.comparison
	l, other := newTestList(x), newTestList(x)
	c.list, c.resendBuckets = l, new(table.BucketSet)
	x.stream.abandonDiffList(testMap, other)
	x.stream.abandonDiffList("none", l)
	if c.list != l {
		t.Fatal("abandon: another list was abandoned, want the list of the map kept")
	}
	if x.stream.abandonDiffList(testMap, l); c.list != nil || c.resendBuckets == nil {
		t.Error("abandon a list without buckets: got the repair abandoned, want it kept")
	}
	l.bucketsChosen = true
	c.list = l
	if x.stream.abandonDiffList(testMap, l); c.list != nil || c.resendBuckets != nil {
		t.Error("abandon a list with buckets: got the buckets kept, want them dropped")
	}
	// The reason for which no comparison can be made.
	l = newTestList(x)
	c.list, c.inconclusiveReason = l, "other live nodes"
	if why := x.stream.abandonInconclusiveList(testMap, other); why != "" || c.list != l {
		t.Errorf("abandon another list: got %q, want no reason", why)
	}
	if why := x.stream.abandonInconclusiveList("none", l); why != "" {
		t.Errorf("abandon a list of another map: got %q, want no reason", why)
	}
	l.bucketsChosen = true
	if why := x.stream.abandonInconclusiveList(testMap, l); why != "" || c.list != l {
		t.Errorf("abandon a list with chosen buckets: got %q, want no reason", why)
	}
	l.bucketsChosen = false
	if why := x.stream.abandonInconclusiveList(testMap, l); why != "other live nodes" || c.list != nil {
		t.Errorf("abandon an inconclusive list: got %q, want the reason", why)
	}
	c.list, c.inconclusiveReason = l, ""
	if why := x.stream.abandonInconclusiveList(testMap, l); why != "" || c.list != l {
		t.Errorf("abandon a list with a possible comparison: got %q, want no reason", why)
	}
	c.impossibleReason = "other keys"
	if why := x.stream.abandonInconclusiveList(testMap, l); why != "other keys" {
		t.Errorf("abandon an impossible list: got %q, want the reason", why)
	}
	// The stream ends before and after the buckets are requested.
	first, second := newTestList(x), newTestList(x)
	c.list = first
	c.reset()
	c.resend = &inboundResend{list: second}
	c.reset()
	for _, l := range []*diffList{first, second} {
		if !listEnded(l) || !errors.Is(l.err, errSubscriptionEnded) {
			t.Errorf("stream ends: list ended %t: %v, want true and errSubscriptionEnded", listEnded(l), l.err)
		}
	}
	c.resend = &inboundResend{}
	if c.reset(); c.resend != nil || c.list != nil || c.requestBuckets {
		t.Errorf("stream ends: got %+v, want a cleared comparison", *c)
	}
	// An impossible comparison ends a waiting list, but not one whose buckets are being resent.
	l = newTestList(x)
	c.list = l
	x.mustCompare(time.Now(), false, func(m *mapsyncv1.Digest) { m.KeyFingerprint++ })
	if !listEnded(l) || l.err == nil || c.list != nil {
		t.Errorf("impossible comparison: list ended %t: %v, want true, an error, and no list of the map", listEnded(l), l.err)
	}
	l = newTestList(x)
	c.list, c.requestBuckets = l, false
	wasWoken(x.stream.wake)
	x.mustCompare(time.Now(), false, func(m *mapsyncv1.Digest) { m.InconclusiveReason = "not now" })
	if listEnded(l) || !c.requestBuckets || !wasWoken(x.stream.wake) {
		t.Error("inconclusive comparison: got no request, want the list to wait and buckets to be requested, and the stream woken")
	}
}

// newListFixture gives node b three keys of x: 1 and 2 with the values of x, and 3.
func newListFixture(t *testing.T) (*inboundFixture, *diffList) {
	t.Helper()
	x := newInboundFixture(t)
	x.handle(stockBatch(x.in.index, 0, 10, 1, 2, 3))
	l := newTestList(x)
	x.in.comparison.list = l
	return x, l
}

// TestDiffListBuckets checks that the list requests the divergent buckets of the peer's, of
// orphaned and of this node's records.
func TestDiffListBuckets(t *testing.T) {
	x, l := newListFixture(t)
	c := &x.in.comparison
	x.mustCompare(time.Now(), false)
	if !c.requestBuckets || c.list != l || c.resendBuckets != nil {
		t.Error("digest without buckets: got other requests, want buckets requested, the list waiting, and none to resend")
	}
	x.mustCompare(time.Now(), true, func(m *mapsyncv1.Digest) { m.InconclusiveReason = "not now" })
	if listEnded(l) || c.resendBuckets != nil {
		t.Error("inconclusive digest: got a list, want none")
	}
	if x.mustCompare(time.Now(), true); !listEnded(l) || l.err != nil || c.list != nil || len(l.differences) != 0 {
		t.Errorf("digest without differences: list ended %t, %v, want true, no error, no differences, and no list of the map",
			listEnded(l), l.err)
	}
	l = newTestList(x)
	c.list = l
	wasWoken(x.stream.wake)
	if x.mustCompare(time.Now(), true, withDifference(1)); c.resendBuckets == nil || !c.resendBuckets.Has(0) || c.resendBuckets.Len() != 1 || !l.bucketsChosen || !l.exact || !wasWoken(x.stream.wake) {
		t.Errorf("buckets of the list: got %v, %+v, want bucket 0 only, buckets chosen, exact, and the stream woken",
			c.resendBuckets, l)
	}
	// The records of this node, of which the peer holds none or others.
	putTable(t, x.tb, 50, 51, 1)
	var own table.BucketSet
	x.tb.View(func(tx *table.Tx) { own.Add(tx.Bucket(key(50))) })
	for name, change := range map[string]func(*mapsyncv1.Digest){
		"the peer holds none": func(*mapsyncv1.Digest) {},
		"the peer holds others": func(m *mapsyncv1.Digest) {
			m.Nodes = append(m.Nodes, &mapsyncv1.NodeDigest{Node: "b", Buckets: make([]byte, wire.BucketBytes*table.DigestBuckets)})
		},
	} {
		l = newTestList(x)
		c.list, c.resendBuckets, c.resend = l, nil, nil
		if x.mustCompare(time.Now(), true, change); c.resendBuckets == nil || *c.resendBuckets != own {
			t.Errorf("%s: buckets of the list: got %v, want the bucket of key 50 only", name, c.resendBuckets)
		}
	}
	l = newTestList(x)
	c.list, c.resendBuckets, c.requestBuckets = l, nil, false
	x.mustCompare(time.Now(), true, func(m *mapsyncv1.Digest) { m.Nodes = append(m.Nodes, &mapsyncv1.NodeDigest{Node: "b"}) })
	if c.resendBuckets != nil || !c.requestBuckets {
		t.Error("digest without the buckets of this node: got a list, want none")
	}
	// Only one resend at a time.
	c.resendBuckets = new(table.BucketSet)
	x.mustCompare(time.Now(), true, withDifference(1))
	c.resendBuckets, c.resend = nil, &inboundResend{}
	x.mustCompare(time.Now(), true, withDifference(1))
	if l.bucketsChosen || c.resendBuckets != nil {
		t.Error("list during a resend: got chosen buckets, want none")
	}
	c.resend = nil
	// With another layout, the list requests all buckets.
	x.mustCompare(time.Now(), true, func(m *mapsyncv1.Digest) { m.ScopeFingerprint++ })
	if c.resendBuckets == nil || c.resendBuckets.Len() != table.DigestBuckets || l.exact || !l.bucketsChosen {
		t.Errorf("buckets of a list with another layout: got %v, want all", c.resendBuckets)
	}
}

// wireRecord returns a record in its wire format.
func wireRecord(k int, v []byte, version uint64, owner uint32) *mapsyncv1.Delta {
	d := &mapsyncv1.Delta{Key: wireBytes(key(k)), Version: version, Operation: mapsyncv1.Operation_OPERATION_DELETE, Owner: owner}
	if v != nil {
		d.Value, d.Operation = wireBytes(v), mapsyncv1.Operation_OPERATION_UPDATE
	}
	return d
}

// TestDiffListEntries has the peer send every kind of record in the buckets of a list.
func TestDiffListEntries(t *testing.T) {
	x, l := newListFixture(t)
	x.r.SetPeers([]Peer{x.stream.currentPeer(), {Node: "c", Incarnation: 9, Addr: "127.0.0.1:1"}})
	l.view = x.r.view.Load()
	z := table.Owner{Node: "z", Incarnation: 1}
	putTable(t, x.tb, 50, 52, 1)                 // owned by this node: only here, or deleted at the peer
	enterRemote(x.tb, other, 5, 60, 61, 62)      // owned by a third node: not compared
	enterRemote(x.tb, z, 5, 70, 71)              // orphaned: only here, or equal at the peer
	x.handle(stockBatch(x.in.index, 10, 20, 80)) // owned by x, only here
	all := new(table.BucketSet)
	for b := range table.DigestBuckets {
		all.Add(b)
	}
	l.exact, l.bucketsChosen = true, true
	x.in.comparison.chooseBuckets(all, x.tb.DigestID())
	x.stream.appendComparisons(nil)
	enterRemote(x.tb, z, 5, 90) // received after the list began
	m := x.resentBatch()
	b := m.GetBatch()
	b.Owners = []*mapsyncv1.Incarnation{{Node: "x", Number: 1}, {Node: "c", Number: 9}, {Node: "z", Number: 1}, {Node: "b", Number: 2}}
	b.Deltas = []*mapsyncv1.Delta{
		wireRecord(1, value(1), 5, 0), // equal
		wireRecord(2, value(9), 5, 0), // another value
		wireRecord(3, value(3), 6, 0), // another version
		wireRecord(4, value(4), 5, 0), // only at the peer
		wireRecord(5, nil, 5, 0),      // deleted at the peer and absent here
		wireRecord(51, nil, 9, 0),     // deleted at the peer, owned by this node here
		wireRecord(61, value(61), 7, 1),
		wireRecord(62, nil, 7, 1),
		wireRecord(70, value(70), 5, 2),
		wireRecord(63, value(63), 5, 0), // only at the peer
	}
	x.handle(m)
	x.handle(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Resent{Resent: &mapsyncv1.Resent{Map: 1}}})
	if !listEnded(l) || l.err != nil || x.in.comparison.resend != nil {
		t.Fatalf("end of the resend: got list ended %t, error %v, want true, no error, and no resend", listEnded(l), l.err)
	}
	got := make(map[string]string)
	for i := range l.differences {
		d := &l.differences[i]
		side := func(h *DiffSide) string {
			if h == nil {
				return "-"
			}
			return fmt.Sprintf("%s%d/%t", h.Owner.Node, h.Version, h.Value != nil)
		}
		there := side(d.There)
		here := side(d.Here)
		if d.Here != nil && d.Here.Owner.Node == "b" {
			here = "b"
		}
		got[string(d.Key)] = here + " " + there
	}
	want := map[int]string{
		2: "x5/true x5/true", 3: "x5/true x6/true", 4: "- x5/true", 51: "b x9/false", 63: "- x5/true",
		50: "b -", 71: "z5/true -", 80: "x5/true -",
	}
	for k, w := range want {
		if g := got[string(key(k))]; g != w {
			t.Errorf("key %d: got %q, want %q", k, g, w)
		}
		delete(got, string(key(k)))
	}
	if len(got) != 0 {
		t.Errorf("other listed keys: got %q, want none", got)
	}
	if live(x.tb)[2] != 2 || live(x.tb)[4] != 0 {
		t.Error("values in the table: got a change by the list, want none")
	}
}

// TestDiffListBounds checks that differences above the maximum are dropped.
func TestDiffListBounds(t *testing.T) {
	_, l := newListFixture(t)
	for i := range maxDifferences + 1 {
		l.add(key(i), nil, nil)
	}
	if len(l.differences) != maxDifferences {
		t.Errorf("differences: got %d, want maxDifferences", len(l.differences))
	}
}

// answerLists ends each requested list with the next differences of answers.
func answerLists(x *inboundFixture, answers ...[]Difference) {
	go func() {
		for _, found := range answers {
			for {
				x.stream.mu.Lock()
				l := x.in.comparison.list
				x.in.comparison.list = nil
				x.stream.mu.Unlock()
				if l != nil {
					l.differences = found
					l.end(nil)
					break
				}
				time.Sleep(time.Millisecond) // this peer looks for requests at this rate
			}
		}
	}()
}

// TestCompareReportsPersistentDifferences checks that Compare lists the differences that both lists
// contain, and counts the others as in flight.
func TestCompareReportsPersistentDifferences(t *testing.T) {
	x := newInboundFixture(t)
	x.r.opt.digestInterval = time.Millisecond
	side := func(version table.Version) *DiffSide {
		return &DiffSide{Value: []byte{1}, Version: version, Owner: target}
	}
	first := []Difference{{[]byte("stays"), side(1), nil}, {[]byte("here"), side(1), nil}, {[]byte("there"), nil, side(1)}, {[]byte("gone"), nil, nil}}
	second := []Difference{{[]byte("stays"), side(1), nil}, {[]byte("here"), side(2), nil}, {[]byte("there"), nil, side(2)}, {[]byte("new"), nil, nil}}
	answerLists(x, first, second)
	c, err := x.r.Compare(t.Context(), testMap, "x")
	if err != nil || len(c.Differences) != 1 || string(c.Differences[0].Key) != "stays" || c.InFlight != 3 {
		t.Errorf("compare: got %+v, %v, want one difference and 3 in flight", c, err)
	}
	answerLists(x, nil)
	if c, err := x.r.Compare(t.Context(), testMap, "x"); err != nil || len(c.Differences)+c.InFlight != 0 {
		t.Errorf("compare equal maps: got %+v, %v, want no error, no differences and none in flight", c, err)
	}
	answerLists(x, first, nil)
	if c, err := x.r.Compare(t.Context(), testMap, "x"); err != nil || len(c.Differences) != 0 || c.InFlight != 4 {
		t.Errorf("compare with changes in flight: got %+v, %v, want 4 in flight", c, err)
	}
	// Maps and peers that cannot be compared.
	if _, err := x.r.Compare(t.Context(), "none", "x"); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), `"none" with x`) {
		t.Errorf("compare an unknown map: got %v, want ErrNotFound", err)
	}
	if _, err := x.r.Compare(t.Context(), testMap, "y"); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "no live peer") {
		t.Errorf("compare with an unknown peer: got %v, want ErrNotFound", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if _, err := x.r.Compare(ctx, testMap, "x"); !errors.Is(err, context.DeadlineExceeded) || x.in.comparison.list != nil {
		t.Errorf("compare without an answer: got %v, list %v, want an error with context.DeadlineExceeded and nil", err, x.in.comparison.list)
	}
	x.r.SetPeers(nil)
	if _, err := x.r.Compare(t.Context(), testMap, "x"); !errors.Is(err, ErrNotFound) {
		t.Errorf("compare with a peer that has left: got %v, want ErrNotFound", err)
	}
}
