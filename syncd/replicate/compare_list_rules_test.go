package replicate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

func newListing(x *receiver) *listing {
	return &listing{done: make(chan struct{}), seen: make(map[string]struct{}), view: x.r.view.Load()}
}

func ended(l *listing) bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// TestListsAreMadeOneAtATime: a list needs a map that is received, and no other list under way.
func TestListsAreMadeOneAtATime(t *testing.T) {
	x := newStreamless(t)
	c := &x.in.comparing
	if err := x.l.wantList("none", newListing(x)); !errors.Is(err, ErrNoPeer) {
		t.Errorf("of no map: %v", err)
	}
	for _, state := range []State{StateWaiting, StatePending, StateRefused, StateFailed} {
		x.in.state = state
		if err := x.l.wantList(testMap, newListing(x)); !errors.Is(err, ErrNoPeer) || !strings.Contains(err.Error(), string(state)) || c.list != nil {
			t.Errorf("of a map that is %s: %v", state, err)
		}
	}
	for _, state := range []State{StateSyncing, StateCaughtUp} {
		x.in.state, c.list, c.ask = state, nil, false
		woken(x.l.wake)
		if err := x.l.wantList(testMap, newListing(x)); err != nil || !c.ask || !woken(x.l.wake) {
			t.Errorf("of a map that is %s: %v", state, err)
		}
	}
	if err := x.l.wantList(testMap, newListing(x)); !errors.Is(err, errBusy) {
		t.Errorf("a second list: %v", err)
	}
	c.list, c.job = nil, &job{list: newListing(x)}
	if err := x.l.wantList(testMap, newListing(x)); !errors.Is(err, errBusy) {
		t.Errorf("a list while one is made: %v", err)
	}
	c.job = &job{}
	if err := x.l.wantList(testMap, newListing(x)); err != nil {
		t.Errorf("a list during a repair: %v", err)
	}
}

// TestListsThatAreGivenUp: the caller no longer waits, the stream ends, or no comparison can be made.
func TestListsThatAreGivenUp(t *testing.T) {
	x := newStreamless(t)
	c := &x.in.comparing
	l, other := newListing(x), newListing(x)
	c.list, c.want = l, new(table.BucketSet)
	x.l.dropList(testMap, other)
	x.l.dropList("none", l)
	if c.list != l {
		t.Fatal("another list is given up")
	}
	if x.l.dropList(testMap, l); c.list != nil || c.want == nil {
		t.Error("a repair is given up with a list that has not chosen its buckets")
	}
	l.chosen = true
	c.list = l
	if x.l.dropList(testMap, l); c.list != nil || c.want != nil {
		t.Error("the buckets of a list are sent although it is given up")
	}
	// Why no comparison can be made now.
	l = newListing(x)
	c.list, c.unknown = l, "other live nodes"
	if why := x.l.cannotList(testMap, other); why != "" || c.list != l {
		t.Errorf("another list: %q", why)
	}
	if why := x.l.cannotList("none", l); why != "" {
		t.Errorf("another map: %q", why)
	}
	l.chosen = true
	if why := x.l.cannotList(testMap, l); why != "" || c.list != l {
		t.Errorf("a list that is under way: %q", why)
	}
	l.chosen = false
	if why := x.l.cannotList(testMap, l); why != "other live nodes" || c.list != nil {
		t.Errorf("no reason: %q", why)
	}
	c.list, c.unknown = l, ""
	if why := x.l.cannotList(testMap, l); why != "" || c.list != l {
		t.Errorf("a comparison that can be made: %q", why)
	}
	c.impossible = "other keys"
	if why := x.l.cannotList(testMap, l); why != "other keys" {
		t.Errorf("no reason: %q", why)
	}
	// The stream ends, before and after the buckets were asked for.
	first, second := newListing(x), newListing(x)
	c.list = first
	c.reset()
	c.job = &job{list: second}
	c.reset()
	for _, l := range []*listing{first, second} {
		if !ended(l) || !errors.Is(l.err, errSubscriptionEnded) {
			t.Errorf("ended %t: %v", ended(l), l.err)
		}
	}
	c.job = &job{}
	if c.reset(); c.job != nil || c.list != nil || c.ask {
		t.Errorf("%+v", *c)
	}
	// A comparison that is impossible ends the list, but not one that is under way.
	l = newListing(x)
	c.list = l
	x.mustCompare(time.Now(), false, func(m *mapsyncv1.Digest) { m.Key++ })
	if !ended(l) || l.err == nil || c.list != nil {
		t.Errorf("ended %t: %v", ended(l), l.err)
	}
	l = newListing(x)
	c.list, c.ask = l, false
	woken(x.l.wake)
	x.mustCompare(time.Now(), false, func(m *mapsyncv1.Digest) { m.Unknown = "not now" })
	if ended(l) || !c.ask || !woken(x.l.wake) {
		t.Error("a list that waits does not ask for the next digest")
	}
}

// held gives b three keys of x: 1 and 2 as x has them, and 3.
func listed(t *testing.T) (*receiver, *listing) {
	t.Helper()
	x := newStreamless(t)
	x.take(stockBatch(x.in.index, 0, 10, 1, 2, 3))
	l := newListing(x)
	x.in.comparing.list = l
	return x, l
}

// TestBucketsOfAList: those that differ, of the peer's records, of orphaned ones and of this node's.
func TestBucketsOfAList(t *testing.T) {
	x, l := listed(t)
	c := &x.in.comparing
	x.mustCompare(time.Now(), false)
	if !c.ask || c.list != l || c.want != nil {
		t.Error("the parts are not asked for")
	}
	x.mustCompare(time.Now(), true, func(m *mapsyncv1.Digest) { m.Unknown = "not now" })
	if ended(l) || c.want != nil {
		t.Error("a list is made of a comparison that proves nothing")
	}
	if x.mustCompare(time.Now(), true); !ended(l) || l.err != nil || c.list != nil || len(l.found) != 0 {
		t.Errorf("nothing differs: ended %t, %v", ended(l), l.err)
	}
	l = newListing(x)
	c.list = l
	woken(x.l.wake)
	if x.mustCompare(time.Now(), true, differs(1)); c.want == nil || !c.want.Has(0) || c.want.Len() != 1 || !l.chosen || !l.exact || !woken(x.l.wake) {
		t.Errorf("buckets %v, %+v", c.want, l)
	}
	// This node's own records, of which the peer holds nothing, or others.
	putTable(t, x.tb, 50, 51, 1)
	var own table.BucketSet
	x.tb.View(func(tx *table.Tx) { own.Add(tx.Bucket(key(50))) })
	for name, change := range map[string]func(*mapsyncv1.Digest){
		"holds none": func(*mapsyncv1.Digest) {},
		"holds others": func(m *mapsyncv1.Digest) {
			m.Nodes = append(m.Nodes, &mapsyncv1.NodeDigest{Node: "b", Buckets: make([]byte, bucketSize*table.DigestBuckets)})
		},
	} {
		l = newListing(x)
		c.list, c.want, c.job = l, nil, nil
		if x.mustCompare(time.Now(), true, change); c.want == nil || *c.want != own {
			t.Errorf("%s: buckets %v", name, c.want)
		}
	}
	l = newListing(x)
	c.list, c.want, c.ask = l, nil, false
	x.mustCompare(time.Now(), true, func(m *mapsyncv1.Digest) { m.Nodes = append(m.Nodes, &mapsyncv1.NodeDigest{Node: "b"}) })
	if c.want != nil || !c.ask {
		t.Error("a list is made without the parts of what the peer holds of this node")
	}
	// One at a time.
	c.want = new(table.BucketSet)
	x.mustCompare(time.Now(), true, differs(1))
	c.want, c.job = nil, &job{}
	x.mustCompare(time.Now(), true, differs(1))
	if l.chosen || c.want != nil {
		t.Error("a list is made while buckets are on their way")
	}
	c.job = nil
	// With another layout, all of them.
	x.mustCompare(time.Now(), true, func(m *mapsyncv1.Digest) { m.Scope++ })
	if c.want == nil || c.want.Len() != table.DigestBuckets || l.exact || !l.chosen {
		t.Errorf("buckets %v", c.want)
	}
}

// record is a record on the wire.
func record(k int, v []byte, version uint64, owner uint32) *mapsyncv1.Delta {
	d := &mapsyncv1.Delta{Key: wireBytes(key(k)), Version: version, Operation: mapsyncv1.Operation_OPERATION_DELETE, Owner: owner}
	if v != nil {
		d.Value, d.Operation = wireBytes(v), mapsyncv1.Operation_OPERATION_UPDATE
	}
	return d
}

// TestEntriesOfAList has the peer send every kind of record in the buckets of a list.
func TestEntriesOfAList(t *testing.T) {
	x, l := listed(t)
	x.r.SetPeers([]Peer{x.l.current(), {Node: "c", Incarnation: 9, Addr: "127.0.0.1:1"}})
	l.view = x.r.view.Load()
	z := table.Owner{Node: "z", Incarnation: 1}
	putTable(t, x.tb, 50, 52, 1)               // this node's: only here, and deleted there
	enterRemote(x.tb, other, 5, 60, 61, 62)    // a third node's: not compared
	enterRemote(x.tb, z, 5, 70, 71)            // orphaned: only here, and the same there
	x.take(stockBatch(x.in.index, 10, 20, 80)) // x's, only here
	all := new(table.BucketSet)
	for b := range table.DigestBuckets {
		all.Add(b)
	}
	l.exact, l.chosen = true, true
	x.in.comparing.want = all
	x.l.comparisons(nil)
	enterRemote(x.tb, z, 5, 90) // came after the list began
	m := x.outOfTurn()
	b := m.GetBatch()
	b.Owners = []*mapsyncv1.Incarnation{{Node: "x", Number: 1}, {Node: "c", Number: 9}, {Node: "z", Number: 1}, {Node: "b", Number: 2}}
	b.Deltas = []*mapsyncv1.Delta{
		record(1, value(1), 5, 0), // the same
		record(2, value(9), 5, 0), // another value
		record(3, value(3), 6, 0), // another version
		record(4, value(4), 5, 0), // only there
		record(5, nil, 5, 0),      // deleted there, and not here
		record(51, nil, 9, 0),     // deleted there, and here this node's
		record(61, value(61), 7, 1),
		record(62, nil, 7, 1),
		record(70, value(70), 5, 2),
		record(63, value(63), 5, 0), // only there
	}
	x.take(m)
	x.take(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Retold{Retold: &mapsyncv1.Retold{Map: 1}}})
	if !ended(l) || l.err != nil || x.in.comparing.job != nil {
		t.Fatalf("ended %t: %v", ended(l), l.err)
	}
	got := make(map[string]string)
	for i := range l.found {
		d := &l.found[i]
		side := func(h *Held) string {
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
			t.Errorf("key %d: %q, want %q", k, g, w)
		}
		delete(got, string(key(k)))
	}
	if len(got) != 0 {
		t.Errorf("listed besides: %q", got)
	}
	if live(x.tb)[2] != 2 || live(x.tb)[4] != 0 {
		t.Error("a list changes the table")
	}
}

// TestListsAreBounded: too many keys are an error, too many differences are cut.
func TestListsAreBounded(t *testing.T) {
	x, l := listed(t)
	l.chosen, l.full = true, true
	x.in.comparing.want = new(table.BucketSet)
	x.l.comparisons(nil)
	x.take(x.outOfTurn(4))
	x.take(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Retold{Retold: &mapsyncv1.Retold{Map: 1}}})
	if !ended(l) || !errors.Is(l.err, errTooBig) || len(l.found) != 0 {
		t.Errorf("%v, %d found", l.err, len(l.found))
	}
	l = newListing(x)
	for i := range maxDifferences + 1 {
		l.add(key(i), nil, nil)
	}
	if len(l.found) != maxDifferences {
		t.Errorf("%d differences", len(l.found))
	}
}

// answerLists ends each list that is wanted with the next differences.
func answerLists(x *receiver, answers ...[]Difference) {
	go func() {
		for _, found := range answers {
			for {
				x.l.mu.Lock()
				l := x.in.comparing.list
				x.in.comparing.list = nil
				x.l.mu.Unlock()
				if l != nil {
					l.found = found
					l.end(nil)
					break
				}
				time.Sleep(time.Millisecond)
			}
		}
	}()
}

// TestDifferencesThatStay: what differs at two looks alike is listed, the rest is passing.
func TestDifferencesThatStay(t *testing.T) {
	x := newStreamless(t)
	x.r.opt.compare = time.Millisecond
	held := func(version table.Version) *Held { return &Held{Value: []byte{1}, Version: version, Owner: target} }
	first := []Difference{{[]byte("stays"), held(1), nil}, {[]byte("here"), held(1), nil}, {[]byte("there"), nil, held(1)}, {[]byte("gone"), nil, nil}}
	second := []Difference{{[]byte("stays"), held(1), nil}, {[]byte("here"), held(2), nil}, {[]byte("there"), nil, held(2)}, {[]byte("new"), nil, nil}}
	answerLists(x, first, second)
	c, err := x.r.Compare(t.Context(), testMap, "x")
	if err != nil || len(c.Differences) != 1 || string(c.Differences[0].Key) != "stays" || c.Passing != 3 {
		t.Errorf("%+v, %v", c, err)
	}
	answerLists(x, nil)
	if c, err := x.r.Compare(t.Context(), testMap, "x"); err != nil || len(c.Differences)+c.Passing != 0 {
		t.Errorf("nothing differs: %+v, %v", c, err)
	}
	answerLists(x, first, nil)
	if c, err := x.r.Compare(t.Context(), testMap, "x"); err != nil || len(c.Differences) != 0 || c.Passing != 4 {
		t.Errorf("all is passing: %+v, %v", c, err)
	}
	// What cannot be listed.
	if _, err := x.r.Compare(t.Context(), "none", "x"); !errors.Is(err, ErrNoPeer) || !strings.Contains(err.Error(), `"none" with x`) {
		t.Errorf("of no map: %v", err)
	}
	if _, err := x.r.Compare(t.Context(), testMap, "y"); !errors.Is(err, ErrNoPeer) || !strings.Contains(err.Error(), "no live peer") {
		t.Errorf("with no peer: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	if _, err := x.r.Compare(ctx, testMap, "x"); !errors.Is(err, context.DeadlineExceeded) || x.in.comparing.list != nil {
		t.Errorf("without an answer: %v, list %v", err, x.in.comparing.list)
	}
	x.r.SetPeers(nil)
	if _, err := x.r.Compare(t.Context(), testMap, "x"); !errors.Is(err, ErrNoPeer) {
		t.Errorf("with a peer that has left: %v", err)
	}
}

// TestWhoseRecordsAreListed: those of either node and orphaned ones.
func TestWhoseRecordsAreListed(t *testing.T) {
	v := newView(nil, table.Owner{Node: "b", Incarnation: 2}, []Peer{{Node: "x"}, {Node: "c"}})
	var got []string
	for _, node := range []string{"b", "x", "c", "z"} {
		if v.concerns(node, "x") {
			got = append(got, node)
		}
	}
	if !slices.Equal(got, []string{"b", "x", "z"}) {
		t.Errorf("records of %v", got)
	}
}
