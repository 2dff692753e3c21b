package replicate

import (
	"slices"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// TestNextDigestAfterAChange: a change of membership has digests sent at once, another request does not.
func TestNextDigestAfterAChange(t *testing.T) {
	o := newOut(t)
	o.step() // begins to serve
	hurried := func() bool {
		o.f.telling.hurry.Store(false)
		o.tb.View(func(*table.Tx) { o.f.follow() })
		return o.f.telling.hurry.Load()
	}
	if hurried() {
		t.Error("at the first request")
	}
	o.f.requested.request.Store(&ownerRequest{serial: 2, orphaned: true})
	if hurried() {
		t.Error("at another request")
	}
	o.r.SetPeers([]Peer{{Node: "x", Incarnation: 3, Addr: proofAddr}})
	if !hurried() {
		t.Error("not at a change of membership")
	}
	if hurried() {
		t.Error("without a change")
	}
}

// TestTokensOfAStream: one from position 0 begins with a new token, and so does one that resumes without a token
// that this node remembers.
func TestTokensOfAStream(t *testing.T) {
	o := newOut(t)
	o.step()
	first := o.f.requested.states
	if len(first) != 1 || first[0].token == 0 || len(first[0].trail) != 0 {
		t.Fatalf("%+v", first)
	}
	o.run()
	resume := func(token uint64) func(*mapsyncv1.MapSubscription) {
		return func(m *mapsyncv1.MapSubscription) {
			m.Owners = &mapsyncv1.OwnerRequest{Serial: 1, Token: token}
			m.Resume = &mapsyncv1.Resume{Incarnation: 2, Generation: o.f.m.generation, Position: 0}
		}
	}
	for name, c := range map[string]struct{ token uint64 }{"none": {0}, "unknown": {first[0].token + 1000}} {
		o.subscribe(resume(c.token))
		o.step()
		if s := o.f.requested.states; len(s) != 1 || s[0].token == 0 || s[0].token == c.token || len(s[0].trail) != 1 || s[0].trail[0].view != nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
	o.f.m.memory.note(target, []delivered{{token: 77, trail: []coverage{{o.r.view.Load(), allOrphaned}}}})
	o.subscribe(resume(77))
	o.step()
	if s := o.f.requested.states; len(s) != 1 || s[0].token != 77 || o.f.requested.cover.request != allOrphaned {
		t.Errorf("remembered: %+v", s)
	}
}

// TestRequestedBatchesAreCounted, and they count as a sign of life.
func TestRequestedBatchesAreCounted(t *testing.T) {
	o := newOut(t)
	o.remote(table.Owner{Node: "z", Incarnation: 1}, 5, 1, 2, 3)
	o.run()
	before, mine := o.r.Stats().Sent, o.s.count.load()
	o.s.lastSent = time.Time{}
	if err := o.s.requestOwners(&mapsyncv1.OwnerRequest{Map: 1, Serial: 2, Orphaned: true}); err != nil {
		t.Fatal(err)
	}
	_, requested := keysIn(o.run())
	after, now := o.r.Stats().Sent, o.s.count.load()
	if !slices.Equal(requested, []int{1, 2, 3}) || after.Deltas != before.Deltas+3 || after.Bytes <= before.Bytes || now.Deltas != mine.Deltas+3 {
		t.Errorf("requested %v, counted %+v after %+v", requested, after, before)
	}
	if o.s.lastSent.IsZero() {
		t.Error("the session counts as silent")
	}
}

// TestManyRequestedRecords take several batches, each of which reports that there is more.
func TestManyRequestedRecords(t *testing.T) {
	o := newOut(t)
	keys := make([]int, 2*maxBatchDeltas+1)
	for i := range keys {
		keys[i] = i
	}
	o.remote(table.Owner{Node: "z", Incarnation: 1}, 5, keys...)
	o.run()
	if err := o.s.requestOwners(&mapsyncv1.OwnerRequest{Map: 1, Serial: 2, Orphaned: true}); err != nil {
		t.Fatal(err)
	}
	o.r.opt.Times = func() schema.Times { return schema.Times{Ktime: 7} }
	o.step() // begins
	o.step()
	if w := o.f.requested.walk; w == nil || w.enc.times.Ktime != 7 {
		t.Errorf("the records are converted by another clock: %+v", w)
	}
	_, requested := keysIn(append(o.took(), o.run()...))
	if !slices.Equal(requested, keys) {
		t.Errorf("%d records, want %d", len(requested), len(keys))
	}
}

// TestBatchesOfASubscriptionThatHasEnded are dropped.
func TestBatchesOfASubscriptionThatHasEnded(t *testing.T) {
	x := newStreamless(t)
	clear(x.l.byIndex)
	if err := x.l.take(mustMarshal(t, stockBatch(1, 0, 10, 1))); err != nil || len(live(x.tb)) != 0 {
		t.Errorf("%v, %d entries", err, len(live(x.tb)))
	}
}

// TestMembersWithoutRecords: a live node stays a member although no record names it.
func TestMembersWithoutRecords(t *testing.T) {
	r, _ := newReceiver(t)
	r.SetPeers([]Peer{peerX(5)})
	r.proven["left"] = true
	r.reviewOwners()
	if !r.proven["x"] || r.proven["left"] {
		t.Errorf("members %v", r.proven)
	}
	r.proven["left"], r.goneAt["left"] = true, time.Now()
	if r.reviewOwners(); !r.proven["left"] {
		t.Error("a node that has just left is forgotten")
	}
}

// TestSameVersionInAnotherLayout: the values are not compared, as each layout has others.
func TestSameVersionInAnotherLayout(t *testing.T) {
	for _, exact := range []bool{false, true} {
		x, l := listed(t)
		l.exact = exact
		x.in.comparing.list, x.in.comparing.job = nil, &job{in: new(table.BucketSet), list: l}
		m := stockBatch(x.in.index, 10, 10)
		m.GetBatch().Retold, m.GetBatch().CaughtUp = true, false
		m.GetBatch().Deltas = []*mapsyncv1.Delta{record(1, value(9), 5, 0), record(2, value(2), 5, 0)}
		x.take(m)
		if n := len(l.found); n != 1 && exact || n != 0 && !exact {
			t.Errorf("exact %t: %d differences", exact, n)
		}
		// The same version of another owner is another record.
		l.found = nil
		m.GetBatch().Owners = append(m.GetBatch().Owners, &mapsyncv1.Incarnation{Node: "z", Number: 1})
		m.GetBatch().Deltas = []*mapsyncv1.Delta{record(2, value(2), 5, 1)}
		if x.take(m); len(l.found) != 1 || l.found[0].There.Owner.Node != "z" || l.found[0].Here.Owner.Node != "x" {
			t.Errorf("exact %t: %+v", exact, l.found)
		}
	}
}
