package replicate

import (
	"slices"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// TestMembershipChangeSendsDigest checks that a change of membership makes a digest due now, and
// that another request does not.
func TestMembershipChangeSendsDigest(t *testing.T) {
	o := newOutboundFixture(t)
	o.step() // starts to serve
	hurried := func() bool {
		o.m.comparison.digestNow.Store(false)
		o.tb.View(func(*table.Tx) { o.m.applyRequest() })
		return o.m.comparison.digestNow.Load()
	}
	if hurried() {
		t.Error("first request: got a digest due now, want none")
	}
	o.m.owners.request.Store(&ownerRequest{serial: 2, orphaned: true})
	if hurried() {
		t.Error("another request: got a digest due now, want none")
	}
	o.r.SetPeers([]Peer{{Node: "x", Incarnation: 3, Addr: verifyAddr}})
	if !hurried() {
		t.Error("change of membership: got no digest due now, want one")
	}
	if hurried() {
		t.Error("no change: got a digest due now, want none")
	}
}

// TestOwnerRequestTokens checks that a stream from position 0, and one that resumes without a
// stored token, begins with a new token.
func TestOwnerRequestTokens(t *testing.T) {
	o := newOutboundFixture(t)
	o.step()
	first := o.m.owners.deliveries
	if len(first) != 1 || first[0].token == 0 || len(first[0].history) != 0 {
		t.Fatalf("deliveries: got %+v, want one with a token and no history", first)
	}
	o.sendPending()
	resume := func(token uint64) func(*mapsyncv1.MapSubscription) {
		return func(m *mapsyncv1.MapSubscription) {
			m.Owners = &mapsyncv1.OwnerRequest{Serial: 1, Token: token}
			m.Resume = &mapsyncv1.Resume{Incarnation: 2, Generation: o.m.m.generation, Position: 0}
		}
	}
	for name, c := range map[string]struct{ token uint64 }{"none": {0}, "unknown": {first[0].token + 1000}} {
		o.subscribe(resume(c.token))
		o.step()
		if s := o.m.owners.deliveries; len(s) != 1 || s[0].token == 0 || s[0].token == c.token || len(s[0].history) != 1 || s[0].history[0].view != nil {
			t.Errorf("%s: deliveries: got %+v, want one with a new token and one coverage without a view", name, s)
		}
	}
	o.m.m.deliveries.store(target, []deliveryState{{token: 77, history: []coverage{{o.r.view.Load(), allOrphaned}}}})
	o.subscribe(resume(77))
	o.step()
	if s := o.m.owners.deliveries; len(s) != 1 || s[0].token != 77 || o.m.owners.coverage.request != allOrphaned {
		t.Errorf("deliveries with a stored token: got %+v, want one with token 77, and a request for all orphaned records", s)
	}
}

// TestResendClearsAllDeliveries: the receiver requests a resend, and the stream breaks before its end. The receiver then
// resumes with either token that it may have got last, and gets the records again.
func TestResendClearsAllDeliveries(t *testing.T) {
	for i, which := range []string{"the token before the last one", "the last token"} {
		o := newOutboundFixture(t, func(m *mapsyncv1.MapSubscription) { m.Owners.Orphaned = true })
		addAllOwners(o)
		o.sendPending()
		o.requestOwners(&mapsyncv1.OwnerRequest{Serial: 2, Orphaned: true, Nodes: []string{"c"}})
		o.sendPending()
		delivered := o.m.owners.deliveries
		if len(delivered) != 2 || delivered[0].token == delivered[1].token {
			t.Fatalf("deliveries: got %+v, want two", delivered)
		}
		token := delivered[i].token
		o.requestOwners(&mapsyncv1.OwnerRequest{Serial: 3, Orphaned: true, Nodes: []string{"c"}, Resend: true})
		o.step()
		was := o.m
		o.takeSent()
		o.subscribe(func(m *mapsyncv1.MapSubscription) {
			m.Resume = &mapsyncv1.Resume{
				Incarnation: o.r.opt.Self.Incarnation, Generation: was.m.generation, Position: was.sentPosition.Load(),
			}
			m.Owners = &mapsyncv1.OwnerRequest{Serial: 4, Orphaned: true, Nodes: []string{"c"}, Token: token}
		})
		was.close()
		o.expectSent(which, "resumed, requested[3 4], owners sent 4, [] end")
	}
}

// TestBackfillBatchesAreCounted checks that the batches of a backfill are counted and set lastSent.
func TestBackfillBatchesAreCounted(t *testing.T) {
	o := newOutboundFixture(t)
	o.addRemote(table.Owner{Node: "z", Incarnation: 1}, 5, 1, 2, 3)
	o.sendPending()
	before, mine := o.r.Stats().Sent, o.s.count.load()
	o.s.lastSent = time.Time{}
	if err := o.s.handleOwnerRequest(&mapsyncv1.OwnerRequest{Map: 1, Serial: 2, Orphaned: true}); err != nil {
		t.Fatalf("handle owner request: got error %v, want nil", err)
	}
	_, requested := keysIn(o.sendPending())
	after, now := o.r.Stats().Sent, o.s.count.load()
	if !slices.Equal(requested, []int{1, 2, 3}) || after.Deltas != before.Deltas+3 || after.Bytes <= before.Bytes || now.Deltas != mine.Deltas+3 {
		t.Errorf("requested keys: got %v, traffic %+v after %+v, want 1, 2 and 3, 3 more deltas also of the stream, and more bytes",
			requested, after, before)
	}
	if o.s.lastSent.IsZero() {
		t.Error("lastSent: got zero, want the time of the batch")
	}
}

// TestBackfillInSeveralBatches checks a backfill of several batches, each of which reports that
// there is more.
func TestBackfillInSeveralBatches(t *testing.T) {
	o := newOutboundFixture(t)
	keys := make([]int, 2*wire.MaxBatchDeltas+1)
	for i := range keys {
		keys[i] = i
	}
	o.addRemote(table.Owner{Node: "z", Incarnation: 1}, 5, keys...)
	o.sendPending()
	if err := o.s.handleOwnerRequest(&mapsyncv1.OwnerRequest{Map: 1, Serial: 2, Orphaned: true}); err != nil {
		t.Fatalf("handle owner request: got error %v, want nil", err)
	}
	o.r.opt.Times = func() schema.Times { return schema.Times{Ktime: 7} }
	o.step() // starts the backfill
	o.step()
	if w := o.m.owners.backfill; w == nil || o.m.times.Ktime != 7 {
		t.Errorf("backfill: got %+v with ktime %v, want a backfill with ktime 7", w, o.m.times.Ktime)
	}
	_, requested := keysIn(append(o.takeSent(), o.sendPending()...))
	if !slices.Equal(requested, keys) {
		t.Errorf("requested records: got %d, want %d", len(requested), len(keys))
	}
}

// TestBatchOfEndedSubscription checks that batches of an ended subscription are dropped.
func TestBatchOfEndedSubscription(t *testing.T) {
	x := newInboundFixture(t)
	clear(x.stream.byIndex)
	if err := x.stream.handle(mustMarshal(t, stockBatch(1, 0, 10, 1))); err != nil || len(live(x.tb)) != 0 {
		t.Errorf("batch of an ended subscription: got error %v, %d entries, want nil and 0", err, len(live(x.tb)))
	}
}

// TestMemberWithoutRecords checks that a live node stays in everLive without records.
func TestMemberWithoutRecords(t *testing.T) {
	r, _ := newTestReplicator(t)
	r.SetPeers([]Peer{peerX(5)})
	r.everLive["left"] = true
	r.reviewOwners()
	if !r.everLive["x"] || r.everLive["left"] {
		t.Errorf("everLive: got %v, want x only", r.everLive)
	}
	r.everLive["left"], r.goneAt["left"] = true, time.Now()
	if r.reviewOwners(); !r.everLive["left"] {
		t.Error("everLive: got a departed node removed at once, want kept")
	}
}

// TestDiffListWithDifferentLayouts checks that values are not compared in different layouts.
func TestDiffListWithDifferentLayouts(t *testing.T) {
	for _, exact := range []bool{false, true} {
		x, l := newListFixture(t)
		l.exact = exact
		x.in.comparison.list, x.in.comparison.resend = nil, &inboundResend{buckets: new(table.BucketSet), list: l}
		m := stockBatch(x.in.index, 10, 10)
		m.GetBatch().Resent, m.GetBatch().CaughtUp = true, false
		m.GetBatch().Deltas = []*mapsyncv1.Delta{wireRecord(1, value(9), 5, 0), wireRecord(2, value(2), 5, 0)}
		x.handle(m)
		if n := len(l.differences); n != 1 && exact || n != 0 && !exact {
			t.Errorf("exact %t: got %d differences, want 1 if exact, else none", exact, n)
		}
		// The same version with another owner is another record.
		l.differences = nil
		m.GetBatch().Owners = append(m.GetBatch().Owners, &mapsyncv1.Incarnation{Node: "z", Number: 1})
		m.GetBatch().Deltas = []*mapsyncv1.Delta{wireRecord(2, value(2), 5, 1)}
		if x.handle(m); len(l.differences) != 1 || l.differences[0].There.Owner.Node != "z" || l.differences[0].Here.Owner.Node != "x" {
			t.Errorf("exact %t: got %+v, want one with owner z there and owner x here", exact, l.differences)
		}
	}
}
