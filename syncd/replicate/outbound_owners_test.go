package replicate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// TestRequestDuringBackfill has the receiver request more owners during a backfill. The request is
// applied while the table is locked, and the cursor of the backfill is closed later.
func TestRequestDuringBackfill(t *testing.T) {
	r, tb := newTestReplicator(t)
	putTable(t, tb, 1, 5000, 1)
	layout := Layout{KeySize: testKeySize, ValueSize: testValueSize}
	s := &keyRecorder{keys: make(map[string]bool)}
	out := newOutboundMap(newOutboundStream(r, table.Owner{Node: "x", Incarnation: 1}, s), subscription(1, testMap, layout), &ownerRequest{})
	out.owners.noRequests = false
	defer out.close()
	steps := make(chan error)
	step := func() {
		t.Helper()
		go func() {
			_, err := out.step(r.localMaps()[testMap], time.Now())
			steps <- err
		}()
		select {
		case err := <-steps:
			if err != nil {
				t.Fatalf("step: got error %v, want nil", err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("outbound map stream: got no progress for 30 s, want the step to end")
		}
	}
	for !out.atEnd {
		step()
	}
	out.owners.request.Store(&ownerRequest{serial: 1, nodes: []string{"c"}})
	for out.owners.backfill == nil {
		step()
	}
	step()
	backfill := out.owners.backfill
	if backfill == nil {
		t.Fatal("backfill: got ended after one step, want in progress")
	}
	out.owners.request.Store(&ownerRequest{serial: 2, nodes: []string{"c", "d"}, orphaned: true})
	step()
	if out.owners.backfill == backfill {
		t.Error("request for more owners: got the same backfill, want a new one")
	}
	if out.owners.droppedBackfill != nil {
		t.Error("dropped backfill: got kept after the step, want closed")
	}
	for out.owners.pending() {
		step()
	}
	if out.owners.answeredSerial != 2 {
		t.Errorf("last answered request: got %d, want 2", out.owners.answeredSerial)
	}
}

// addAllOwners adds records of all kinds of owners: own records 1 and 2, orphaned record 3, record 4
// of live node c, record 5 of an earlier incarnation of the receiver, and record 6 of the receiver.
func addAllOwners(o *outboundFixture) {
	putTable(o.t, o.tb, 1, 3, 1)
	o.addRemote(table.Owner{Node: "z", Incarnation: 1}, 5, 3)
	o.addRemote(table.Owner{Node: "c", Incarnation: 9}, 5, 4)
	o.addRemote(table.Owner{Node: "x", Incarnation: 2}, 5, 5)
	o.addRemote(target, 5, 6)
}

func (o *outboundFixture) requestOwners(m *mapsyncv1.OwnerRequest) {
	o.t.Helper()
	m.Map = 1
	if err := o.s.handle(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Owners{Owners: m}}); err != nil {
		o.t.Fatalf("handle message: got error %v, want nil", err)
	}
}

// TestOwnerRequests has the receiver request one owner after another: records that the stream has
// passed are sent out of turn, once, and each request is answered after them.
func TestOwnerRequests(t *testing.T) {
	o := newOutboundFixture(t)
	addAllOwners(o)
	o.expectSent("empty request", "from 0, [1 2 5] end, owners sent 1")
	position := o.m.sentPosition.Load()
	wasWoken(o.s.wake)
	o.requestOwners(&mapsyncv1.OwnerRequest{Serial: 2, Orphaned: true})
	if !wasWoken(o.s.wake) {
		t.Error("owner request: the sending goroutine is not woken, want it woken")
	}
	for _, m := range o.sendPending() {
		switch m := m.GetMessage().(type) {
		case *mapsyncv1.SubscribeResponse_Batch:
			if b := m.Batch; !b.GetRequested() || b.GetPosition() != position || b.GetPreviousPosition() != position || b.GetCaughtUp() {
				t.Errorf("batch out of turn: got %v, want requested, position %d at both ends, not caught up", b, position)
			}
		}
	}
	o.requestOwners(&mapsyncv1.OwnerRequest{Serial: 3, Orphaned: true, Nodes: []string{"c"}})
	o.expectSent("a live node in addition", "requested[4], owners sent 3")
	o.requestOwners(&mapsyncv1.OwnerRequest{Serial: 4, Orphaned: true})
	o.expectSent("fewer owners", "owners sent 4")
	o.requestOwners(&mapsyncv1.OwnerRequest{Serial: 5, Orphaned: true, Nodes: []string{"c", "absent"}})
	o.expectSent("the live node again", "requested[4], owners sent 5")
	o.requestOwners(&mapsyncv1.OwnerRequest{Serial: 6, Orphaned: true, Resend: true})
	o.expectSent("resend of all", "requested[3], owners sent 6")
	o.addRemote(table.Owner{Node: "z", Incarnation: 1}, 7, 3, 30)
	o.addRemote(table.Owner{Node: "c", Incarnation: 9}, 7, 40)
	o.expectSent("changes in turn", "[3 30] end")
	o.r.SetPeers([]Peer{{Node: "x", Incarnation: 3, Addr: "127.0.0.1:1"}})
	o.expectSent("departure after a resend", "requested[4 40], owners sent 6")
}

// TestDepartureSendsOrphanedRecords has a node leave: its records are sent out of turn, and a
// digest is made at once, because the receiver compares only under the same membership.
func TestDepartureSendsOrphanedRecords(t *testing.T) {
	o := newOutboundFixture(t, func(m *mapsyncv1.MapSubscription) { m.Owners.Orphaned = true })
	addAllOwners(o)
	o.expectSent("orphaned records are requested from the start", "from 0, [1 2 3 5] end, owners sent 1")
	if o.m.comparison.digestNow.Load() {
		t.Error("first membership: got a digest due now, want none")
	}
	o.r.SetPeers([]Peer{{Node: "x", Incarnation: 3, Addr: "127.0.0.1:1"}})
	o.step()
	if !o.m.comparison.digestNow.Load() && o.m.comparison.pendingDigest == nil {
		t.Error("departure: got no digest due now, want one")
	}
	o.expectSent("records of c", "requested[4], owners sent 1")
}

// TestLateOwnerRequest checks that a request which arrives after a batch was encoded is answered
// after the next batch.
func TestLateOwnerRequest(t *testing.T) {
	o := newOutboundFixture(t)
	addAllOwners(o)
	o.sendPending()
	o.tb.View(o.m.prepareFunc)
	o.requestOwners(&mapsyncv1.OwnerRequest{Serial: 2, Orphaned: true})
	if _, err := o.m.sendBackfill(); err != nil || len(o.takeSent()) != 0 {
		t.Errorf("request before its records are sent: got an answer or error %v, want neither", err)
	}
	o.expectSent("records of the request", "requested[3], owners sent 2")
}

// TestBackfillEndsAtStreamPosition checks that records which change during a backfill are sent
// in turn only.
func TestBackfillEndsAtStreamPosition(t *testing.T) {
	o := newOutboundFixture(t)
	z := table.Owner{Node: "z", Incarnation: 1}
	for i := range 1000 {
		o.addRemote(z, 5, i)
	}
	o.sendPending()
	o.requestOwners(&mapsyncv1.OwnerRequest{Serial: 2, Orphaned: true})
	for o.m.owners.backfill == nil {
		o.step()
	}
	o.step() // sends the first batch
	if _, requested := keysIn(o.sent); len(requested) == 0 || len(requested) > 600 {
		t.Fatalf("records in the first batch: got %d, want 1 to 600", len(requested))
	}
	o.addRemote(z, 6, 999, 998)
	sent := o.sendPending()
	ordinary, requested := keysIn(sent)
	if !slices.Equal(ordinary, []int{998, 999}) {
		t.Errorf("keys in turn: got %v, want 998 and 999", ordinary)
	}
	if slices.Contains(requested, 999) || slices.Contains(requested, 998) {
		t.Error("keys in turn: got sent out of turn, too, want in turn only")
	}
	if kind := kinds(sent[len(sent)-2:]); kind != "owners sent 2, [] end" {
		t.Errorf("last messages: got %s, want \"owners sent 2, [] end\"", kind)
	}
}

// TestResumeWithToken has streams end and resume with the last token, an older one, and none.
func TestResumeWithToken(t *testing.T) {
	o := newOutboundFixture(t)
	addAllOwners(o)
	tokens := func(sent []*mapsyncv1.SubscribeResponse) (tokens []uint64) {
		for _, m := range sent {
			if m.GetOwnersSent() != nil {
				tokens = append(tokens, m.GetOwnersSent().GetToken())
			}
		}
		return tokens
	}
	first := tokens(o.sendPending())
	o.requestOwners(&mapsyncv1.OwnerRequest{Serial: 2, Orphaned: true})
	second := tokens(o.sendPending())
	if len(first) != 1 || len(second) != 1 || first[0] == second[0] || first[0] == 0 || second[0] == 0 {
		t.Fatalf("tokens: got %v, %v, want one each, different and not 0", first, second)
	}
	resume := func(token uint64) func(*mapsyncv1.MapSubscription) {
		return func(m *mapsyncv1.MapSubscription) {
			m.Resume = &mapsyncv1.Resume{
				Incarnation: o.r.opt.Self.Incarnation, Generation: o.r.localMaps()[testMap].generation, Position: o.m.sentPosition.Load(),
			}
			m.Owners = &mapsyncv1.OwnerRequest{Serial: 9, Orphaned: true, Token: token}
		}
	}
	for _, c := range []struct {
		what  string
		token uint64
		sent  string
	}{
		{"the last token", second[0], "resumed, [] end, owners sent 9"},
		{"the token before", first[0], "resumed, requested[3], owners sent 9, [] end"},
		{"no token", 0, "resumed, requested[3], owners sent 9, [] end"},
		{"an unknown token", 1 << 40, "resumed, requested[3], owners sent 9, [] end"},
	} {
		was := o.m
		o.subscribe(resume(c.token))
		was.close()
		o.expectSent(c.what, c.sent)
		// Each case starts from the state after the second answer.
		o.r.localMaps()[testMap].deliveries.store(target, []deliveryState{
			{first[0], []coverage{{o.r.view.Load(), &ownerRequest{}}}},
			{second[0], []coverage{{o.r.view.Load(), &ownerRequest{orphaned: true}}}},
		})
	}
}

// TestSourcesAreSentWhenTheyChange checks that a node sends the nodes from which it receives a map,
// once there are any.
func TestSourcesAreSentWhenTheyChange(t *testing.T) {
	o := newOutboundFixture(t)
	m := o.r.localMaps()[testMap]
	o.expectSent("no sources yet", "from 0, [] end, owners sent 1")
	m.sources.Store(&[]string{"c"})
	o.expectSent("first sources", "sources [c]")
	o.expectSent("no change", "")
	m.sources.Store(&[]string{})
	o.expectSent("sources removed", "sources []")
}

// TestReceiverWithoutOwnerRequests checks that a node of a release without owner requests receives
// orphaned records and no answers.
func TestReceiverWithoutOwnerRequests(t *testing.T) {
	o := newOutboundFixture(t, func(m *mapsyncv1.MapSubscription) { m.Owners = nil })
	addAllOwners(o)
	o.r.localMaps()[testMap].sources.Store(&[]string{"c"})
	o.expectSent("receiver without requests", "from 0, [1 2 3 5] end")
	observer := newOutboundFixture(t, func(m *mapsyncv1.MapSubscription) { m.Observe, m.Schema = true, nil })
	addAllOwners(observer)
	observer.r.localMaps()[testMap].sources.Store(&[]string{"c"})
	observer.expectSent("observer", "from 0, [1 2 3 4 5 6] end")
	if len(observer.r.localMaps()[testMap].deliveries.peers) != 0 {
		t.Error("deliveries to an observer: got stored for the node with the same name, want none")
	}
}

// TestIncompleteTableAnswersRequests checks that a node with unadopted entries sends no records and
// answers requests: two nodes that start together would otherwise wait for each other.
func TestIncompleteTableAnswersRequests(t *testing.T) {
	r, err := New(Options{Self: table.Owner{Node: "b", Incarnation: 2}, Dial: noDial})
	if err != nil {
		t.Fatalf("new replicator: got error %v, want nil", err)
	}
	o := &outboundFixture{t: t, r: r, tb: newTable(t, r.opt.Self, false), now: time.Now()}
	o.tb.Update(func(tx *table.Tx) {
		tx.BeginLoad()
		tx.Load(key(1), value(1))
		tx.EndLoad()
	})
	if err := r.AddMap(testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}, o.tb); err != nil {
		t.Fatalf("add map: got error %v, want nil", err)
	}
	o.subscribe(func(m *mapsyncv1.MapSubscription) { m.Owners.Orphaned = true })
	o.expectSent("entries not adopted", "from 0, [] end, owners sent 1")
	o.requestOwners(&mapsyncv1.OwnerRequest{Serial: 2, Orphaned: true, Nodes: []string{"c"}})
	o.expectSent("another request", "owners sent 2")
	o.tb.Update(func(tx *table.Tx) { tx.Adopt(100) })
	o.addRemote(table.Owner{Node: "z", Incarnation: 1}, 5, 3)
	o.expectSent("entries adopted", "[1 3] end")
}

// TestOwnerRequestValidation sends requests that violate the protocol.
func TestOwnerRequestValidation(t *testing.T) {
	for want, c := range map[string]struct {
		sub     func(*mapsyncv1.MapSubscription)
		request *mapsyncv1.OwnerRequest
	}{
		"unknown subscription 0":                      {nil, &mapsyncv1.OwnerRequest{Serial: 2}},
		"unknown subscription 2":                      {nil, &mapsyncv1.OwnerRequest{Map: 2, Serial: 2}},
		"request 1 for records of map \"ct\" after 1": {nil, &mapsyncv1.OwnerRequest{Map: 1, Serial: 1}},
		"the records of 65 nodes, more than 64":       {nil, &mapsyncv1.OwnerRequest{Map: 1, Serial: 2, Nodes: make([]string, 65)}},
		`node name "" of 0 bytes`:                     {nil, &mapsyncv1.OwnerRequest{Map: 1, Serial: 2, Nodes: []string{""}}},
		"on a subscription without owner requests": {
			func(m *mapsyncv1.MapSubscription) { m.Owners = nil }, &mapsyncv1.OwnerRequest{Map: 1, Serial: 2},
		},
		"\"ct\" on a subscription without owner requests": {
			func(m *mapsyncv1.MapSubscription) { m.Observe = true }, &mapsyncv1.OwnerRequest{Map: 1, Serial: 2},
		},
	} {
		var changes []func(*mapsyncv1.MapSubscription)
		if c.sub != nil {
			changes = append(changes, c.sub)
		}
		o := newOutboundFixture(t, changes...)
		before := o.m.owners.request.Load()
		err := o.s.handle(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Owners{Owners: c.request}})
		if !errors.Is(err, errProtocol) || !strings.Contains(err.Error(), want) {
			t.Errorf("owner request: want error %q, got: %v", want, err)
		}
		if o.m.owners.request.Load() != before {
			t.Errorf("%q: got the request stored, want refused", want)
		}
		o.s.removeMap(o.m)
		c.request.Map = min(c.request.GetMap(), 1)
		if err := o.s.handleOwnerRequest(&mapsyncv1.OwnerRequest{Map: 1, Serial: 2}); err != nil {
			t.Errorf("request for an ended subscription: got %v, want no error", err)
		}
	}
	// The maximum number of names, in any order.
	o := newOutboundFixture(t)
	var names []string
	for i := range maxRequested {
		names = append(names, fmt.Sprint("n", maxRequested-i))
	}
	o.requestOwners(&mapsyncv1.OwnerRequest{Serial: 2, Nodes: names})
	if q := o.m.owners.request.Load(); !slices.IsSorted(q.nodes) || len(q.nodes) != maxRequested || slices.IsSorted(names) {
		t.Errorf("nodes of the request: got %v, want %d in order, and the names of the message unchanged", q.nodes, maxRequested)
	}
	sub := subscription(2, "another", Layout{KeySize: testKeySize, ValueSize: testValueSize})
	sub.Owners = &mapsyncv1.OwnerRequest{Nodes: []string{""}}
	if err := o.s.subscribe(sub); !errors.Is(err, errProtocol) || len(o.s.maps) != 1 {
		t.Errorf("subscription with an invalid request: got %v, want a protocol error", err)
	}
}

// TestDeliveries checks that a peer with another incarnation or an unknown token counts as a peer
// without records, and that the number of stored peers is bounded.
func TestDeliveries(t *testing.T) {
	v := newView(nil, table.Owner{Node: "b", Incarnation: 2}, nil)
	all := coverage{v, &ownerRequest{orphaned: true}}
	var m deliveries
	has := func(o table.Owner, token uint64) bool {
		d := m.load(o, token)
		return d.hasRecordsOf("z")
	}
	if a, b := m.newToken(), m.newToken(); a == 0 || b <= a {
		t.Errorf("tokens: got %d, %d, want increasing ones", a, b)
	}
	m.store(target, []deliveryState{{7, []coverage{all}}, {0, []coverage{all}}})
	if !has(target, 7) {
		t.Error("delivered records: got not delivered, want delivered")
	}
	later := table.Owner{Node: target.Node, Incarnation: target.Incarnation + 1}
	if has(later, 7) || has(target, 8) || has(target, 0) || has(table.Owner{Node: "y", Incarnation: 3}, 7) {
		t.Error("unknown peer or token: got delivered, want not delivered")
	}
	for i := range maxRememberedPeers - 1 {
		m.store(table.Owner{Node: fmt.Sprint("n", i)}, nil)
	}
	m.store(table.Owner{Node: "n5"}, nil) // is stored already
	if len(m.peers) != maxRememberedPeers || !has(target, 7) {
		t.Errorf("stored peers: got %d, want maxRememberedPeers", len(m.peers))
	}
	m.store(table.Owner{Node: "one more"}, nil)
	if len(m.peers) != 1 {
		t.Errorf("stored peers above the maximum: got %d, want 1", len(m.peers))
	}
	// A long history is cut. It then counts as not delivered.
	var d deliveryState
	for range maxCoverageHistory {
		d.add(all)
	}
	if len(d.history) != maxCoverageHistory || !d.hasRecordsOf("z") {
		t.Errorf("coverages in the history: got %d, want maxCoverageHistory", len(d.history))
	}
	if d.add(all); d.hasRecordsOf("z") {
		t.Error("history that was cut: got delivered, want not delivered")
	}
}

// hasRecordsOf reports whether the receiver has the records of a node.
func (d *deliveryState) hasRecordsOf(node string) bool {
	return !slices.ContainsFunc(d.history, func(c coverage) bool { return !c.includes(node) })
}
