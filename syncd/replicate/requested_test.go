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

// TestRequestDuringAWalk has the receiver request more owners while records that the stream
// has passed are sent again. The table is locked then, and the walk's cursor is given up after.
func TestRequestDuringAWalk(t *testing.T) {
	r, tb := newReceiver(t)
	putTable(t, tb, 1, 5000, 1)
	layout := Layout{KeySize: testKeySize, ValueSize: testValueSize}
	s := &sending{keys: make(map[string]bool)}
	f := newFeed(newSession(r, table.Owner{Node: "x", Incarnation: 1}, s), subscription(1, testMap, layout), &ownerRequest{})
	f.requested.plain = false
	defer f.close()
	steps := make(chan error)
	step := func() {
		t.Helper()
		go func() {
			_, err := f.step(r.localMaps()[testMap], time.Now())
			steps <- err
		}()
		select {
		case err := <-steps:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("the feed stands still")
		}
	}
	for !f.exhausted {
		step()
	}
	f.requested.request.Store(&ownerRequest{serial: 1, nodes: []string{"c"}})
	for f.requested.walk == nil {
		step()
	}
	step()
	walk := f.requested.walk
	if walk == nil {
		t.Fatal("the walk is over after one step")
	}
	f.requested.request.Store(&ownerRequest{serial: 2, nodes: []string{"c", "d"}, orphaned: true})
	step()
	if f.requested.walk == walk {
		t.Error("the walk goes on without the owners that were added")
	}
	for f.requested.pending() {
		step()
	}
	if f.requested.answered != 2 {
		t.Errorf("request %d is answered last, want 2", f.requested.answered)
	}
}

// what a stream of newOut has to send: own records 1 and 2, an orphaned one 3, one of the live
// node c 4, one of an earlier incarnation of the receiver 5, and the receiver's own 6.
func fillAll(o *outStream) {
	putTable(o.t, o.tb, 1, 3, 1)
	o.remote(table.Owner{Node: "z", Incarnation: 1}, 5, 3)
	o.remote(table.Owner{Node: "c", Incarnation: 9}, 5, 4)
	o.remote(table.Owner{Node: "x", Incarnation: 2}, 5, 5)
	o.remote(target, 5, 6)
}

func (o *outStream) request(m *mapsyncv1.OwnerRequest) {
	o.t.Helper()
	m.Map = 1
	if err := o.s.handle(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Owners{Owners: m}}); err != nil {
		o.t.Fatal(err)
	}
}

// TestRequestedOwners has the receiver request owners one after the other: the records that the
// stream has passed come out of turn, once, and each request is answered after them.
func TestRequestedOwners(t *testing.T) {
	o := newOut(t)
	fillAll(o)
	o.want("nothing is requested", "from 0, [1 2 5] end, owners sent 1")
	position := o.f.sent.Load()
	woken(o.s.wake)
	o.request(&mapsyncv1.OwnerRequest{Serial: 2, Orphaned: true})
	if !woken(o.s.wake) {
		t.Error("the sender is not woken")
	}
	for _, m := range o.run() {
		switch m := m.GetMessage().(type) {
		case *mapsyncv1.SubscribeResponse_Batch:
			if b := m.Batch; !b.GetRequested() || b.GetPosition() != position || b.GetPreviousPosition() != position || b.GetCaughtUp() {
				t.Errorf("a batch out of turn moves the position: %v", b)
			}
		}
	}
	o.request(&mapsyncv1.OwnerRequest{Serial: 3, Orphaned: true, Nodes: []string{"c"}})
	o.want("a live node too", "requested[4], owners sent 3")
	o.request(&mapsyncv1.OwnerRequest{Serial: 4, Orphaned: true})
	o.want("fewer", "owners sent 4")
	o.request(&mapsyncv1.OwnerRequest{Serial: 5, Orphaned: true, Nodes: []string{"c", "nobody"}})
	o.want("the live node once more", "requested[4], owners sent 5")
	o.request(&mapsyncv1.OwnerRequest{Serial: 6, Orphaned: true, Again: true})
	o.want("all again", "requested[3], owners sent 6")
	o.remote(table.Owner{Node: "z", Incarnation: 1}, 7, 3, 30)
	o.remote(table.Owner{Node: "c", Incarnation: 9}, 7, 40)
	o.want("changes come in turn", "[3 30] end")
}

// TestDepartureSendsWhatItOrphans has a node leave: what it owned comes out of turn, and digests
// are made at once, since the receiver compares only under the same membership.
func TestDepartureSendsWhatItOrphans(t *testing.T) {
	o := newOut(t, func(m *mapsyncv1.MapSubscription) { m.Owners.Orphaned = true })
	fillAll(o)
	o.want("orphaned records are requested from the start", "from 0, [1 2 3 5] end, owners sent 1")
	if o.f.telling.hurry.Load() {
		t.Error("the first membership hurries digests")
	}
	o.r.SetPeers([]Peer{{Node: "x", Incarnation: 3, Addr: "127.0.0.1:1"}})
	o.step()
	if !o.f.telling.hurry.Load() && o.f.telling.out == nil {
		t.Error("a departure does not hurry digests")
	}
	o.want("what c owned", "requested[4], owners sent 1")
}

// TestRequestThatComesLate: a request that comes after the table was looked at is answered after the
// next look.
func TestRequestThatComesLate(t *testing.T) {
	o := newOut(t)
	fillAll(o)
	o.run()
	o.tb.View(o.f.fill)
	o.request(&mapsyncv1.OwnerRequest{Serial: 2, Orphaned: true})
	if _, err := o.f.sendPassed(); err != nil || len(o.took()) != 0 {
		t.Errorf("answered before its records are sent: %v", err)
	}
	o.want("its records", "requested[3], owners sent 2")
}

// TestRequestedRecordsStopAtTheStream: records that change during the walk come in turn only.
func TestRequestedRecordsStopAtTheStream(t *testing.T) {
	o := newOut(t)
	z := table.Owner{Node: "z", Incarnation: 1}
	for i := range 1000 {
		o.remote(z, 5, i)
	}
	o.run()
	o.request(&mapsyncv1.OwnerRequest{Serial: 2, Orphaned: true})
	for o.f.requested.walk == nil {
		o.step()
	}
	o.step() // the first batch
	if _, requested := keysIn(o.sent); len(requested) == 0 || len(requested) > 600 {
		t.Fatalf("%d records in the first batch", len(requested))
	}
	o.remote(z, 6, 999, 998)
	sent := o.run()
	ordinary, requested := keysIn(sent)
	if !slices.Equal(ordinary, []int{998, 999}) {
		t.Errorf("in turn: %v", ordinary)
	}
	if slices.Contains(requested, 999) || slices.Contains(requested, 998) {
		t.Error("records that come in turn are sent out of turn, too")
	}
	if kind := kinds(sent[len(sent)-2:]); kind != "owners sent 2, [] end" {
		t.Errorf("the last messages are %s", kind)
	}
}

// TestReceiverThatResumesIsSentNothingTwice has streams end and resume with the token of the last
// answer, of an older one, and of none.
func TestReceiverThatResumesIsSentNothingTwice(t *testing.T) {
	o := newOut(t)
	fillAll(o)
	tokens := func(sent []*mapsyncv1.SubscribeResponse) (tokens []uint64) {
		for _, m := range sent {
			if m.GetOwnersSent() != nil {
				tokens = append(tokens, m.GetOwnersSent().GetToken())
			}
		}
		return tokens
	}
	first := tokens(o.run())
	o.request(&mapsyncv1.OwnerRequest{Serial: 2, Orphaned: true})
	second := tokens(o.run())
	if len(first) != 1 || len(second) != 1 || first[0] == second[0] || first[0] == 0 || second[0] == 0 {
		t.Fatalf("tokens %v, %v", first, second)
	}
	resume := func(token uint64) func(*mapsyncv1.MapSubscription) {
		return func(m *mapsyncv1.MapSubscription) {
			m.Resume = &mapsyncv1.Resume{
				Incarnation: o.r.opt.Self.Incarnation, Generation: o.r.localMaps()[testMap].generation, Position: o.f.sent.Load(),
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
		was := o.f
		o.subscribe(resume(c.token))
		was.close()
		o.want(c.what, c.sent)
		// Each case begins with what the second answer left.
		o.r.localMaps()[testMap].memory.note(target, []delivered{
			{first[0], []coverage{{o.r.view.Load(), &ownerRequest{}}}},
			{second[0], []coverage{{o.r.view.Load(), &ownerRequest{orphaned: true}}}},
		})
	}
}

// TestSourcesAreSentWhenTheyChange: a node reports from which nodes it receives a map, and
// nothing while that is none.
func TestSourcesAreSentWhenTheyChange(t *testing.T) {
	o := newOut(t)
	m := o.r.localMaps()[testMap]
	o.want("no sources yet", "from 0, [] end, owners sent 1")
	m.sources.Store(&[]string{"c"})
	o.want("the first", "sources [c]")
	o.want("no change", "")
	m.sources.Store(&[]string{})
	o.want("none any more", "sources []")
}

// TestReceiverWithoutRequests: a node of a release that makes no requests is sent orphaned
// records, and no answers that it does not know.
func TestReceiverWithoutRequests(t *testing.T) {
	o := newOut(t, func(m *mapsyncv1.MapSubscription) { m.Owners = nil })
	fillAll(o)
	o.r.localMaps()[testMap].sources.Store(&[]string{"c"})
	o.want("no requests", "from 0, [1 2 3 5] end")
	observer := newOut(t, func(m *mapsyncv1.MapSubscription) { m.Observe, m.Schema = true, nil })
	fillAll(observer)
	observer.r.localMaps()[testMap].sources.Store(&[]string{"c"})
	observer.want("an observer", "from 0, [1 2 3 4 5 6] end")
	if len(observer.r.localMaps()[testMap].memory.peers) != 0 {
		t.Error("what an observer was sent counts for the node of its name")
	}
}

// TestIncompleteTableAnswersRequests: a node whose own records are not adopted yet sends nothing,
// and answers that it has nothing, since two nodes that start together wait for each other.
func TestIncompleteTableAnswersRequests(t *testing.T) {
	r, err := New(Options{Self: table.Owner{Node: "b", Incarnation: 2}, Dial: noDial})
	if err != nil {
		t.Fatal(err)
	}
	o := &outStream{t: t, r: r, tb: newTable(t, r.opt.Self, false), now: time.Now()}
	o.tb.Update(func(tx *table.Tx) {
		tx.BeginLoad()
		tx.Load(key(1), value(1))
		tx.EndLoad()
	})
	if err := r.AddMap(testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}, o.tb); err != nil {
		t.Fatal(err)
	}
	o.subscribe(func(m *mapsyncv1.MapSubscription) { m.Owners.Orphaned = true })
	o.want("not adopted", "from 0, [] end, owners sent 1")
	o.request(&mapsyncv1.OwnerRequest{Serial: 2, Orphaned: true, Nodes: []string{"c"}})
	o.want("another request", "owners sent 2")
	o.tb.Update(func(tx *table.Tx) { tx.Claim(100) })
	o.remote(table.Owner{Node: "z", Incarnation: 1}, 5, 3)
	o.want("adopted", "[1 3] end")
}

// TestRequestsForOwnersAreChecked has requests that break the protocol.
func TestRequestsForOwnersAreChecked(t *testing.T) {
	for want, c := range map[string]struct {
		sub     func(*mapsyncv1.MapSubscription)
		request *mapsyncv1.OwnerRequest
	}{
		"unknown subscription 0":                      {nil, &mapsyncv1.OwnerRequest{Serial: 2}},
		"unknown subscription 2":                      {nil, &mapsyncv1.OwnerRequest{Map: 2, Serial: 2}},
		"request 1 for records of map \"ct\" after 1": {nil, &mapsyncv1.OwnerRequest{Map: 1, Serial: 1}},
		"the records of 65 nodes, more than 64":       {nil, &mapsyncv1.OwnerRequest{Map: 1, Serial: 2, Nodes: make([]string, 65)}},
		"node name of 0 bytes":                        {nil, &mapsyncv1.OwnerRequest{Map: 1, Serial: 2, Nodes: []string{""}}},
		"without having begun with that": {
			func(m *mapsyncv1.MapSubscription) { m.Owners = nil }, &mapsyncv1.OwnerRequest{Map: 1, Serial: 2},
		},
		"\"ct\" without having begun with that": {
			func(m *mapsyncv1.MapSubscription) { m.Observe = true }, &mapsyncv1.OwnerRequest{Map: 1, Serial: 2},
		},
	} {
		var changes []func(*mapsyncv1.MapSubscription)
		if c.sub != nil {
			changes = append(changes, c.sub)
		}
		o := newOut(t, changes...)
		before := o.f.requested.request.Load()
		err := o.s.handle(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Owners{Owners: c.request}})
		if !errors.Is(err, errProtocol) || !strings.Contains(err.Error(), want) {
			t.Errorf("expected %q, got: %v", want, err)
		}
		if o.f.requested.request.Load() != before {
			t.Errorf("%q counts", want)
		}
		o.s.remove(o.f)
		c.request.Map = min(c.request.GetMap(), 1)
		if err := o.s.requestOwners(&mapsyncv1.OwnerRequest{Map: 1, Serial: 2}); err != nil {
			t.Errorf("of a subscription that has ended: %v", err)
		}
	}
	// As many names as may be, in any order.
	o := newOut(t)
	var names []string
	for i := range maxRequested {
		names = append(names, fmt.Sprint("n", maxRequested-i))
	}
	o.request(&mapsyncv1.OwnerRequest{Serial: 2, Nodes: names})
	if q := o.f.requested.request.Load(); !slices.IsSorted(q.nodes) || len(q.nodes) != maxRequested || slices.IsSorted(names) {
		t.Errorf("%v", q.nodes)
	}
	sub := subscription(2, testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize})
	sub.Owners = &mapsyncv1.OwnerRequest{Nodes: []string{""}}
	if err := o.s.subscribe(sub); !errors.Is(err, errProtocol) || len(o.s.feeds) != 1 {
		t.Errorf("a subscription with a bad request: %v", err)
	}
}

// TestMemoryOfDeliveries: a peer with another incarnation or an unknown token counts as a peer
// that has no records. The number of remembered peers is bounded.
func TestMemoryOfDeliveries(t *testing.T) {
	v := newView(nil, table.Owner{Node: "b", Incarnation: 2}, nil)
	all := coverage{v, &ownerRequest{orphaned: true}}
	var m memory
	has := func(o table.Owner, token uint64) bool {
		d := m.find(o, token)
		return d.has("z")
	}
	if a, b := m.token(), m.token(); a == 0 || b <= a {
		t.Errorf("tokens %d, %d", a, b)
	}
	m.note(target, []delivered{{7, []coverage{all}}, {0, []coverage{all}}})
	if !has(target, 7) {
		t.Error("what was delivered is forgotten")
	}
	later := table.Owner{Node: target.Node, Incarnation: target.Incarnation + 1}
	if has(later, 7) || has(target, 8) || has(target, 0) || has(table.Owner{Node: "y", Incarnation: 3}, 7) {
		t.Error("an unknown past counts as delivered")
	}
	for i := range maxRemembered - 1 {
		m.note(table.Owner{Node: fmt.Sprint("n", i)}, nil)
	}
	m.note(table.Owner{Node: "n5"}, nil) // is remembered already
	if len(m.peers) != maxRemembered || !has(target, 7) {
		t.Errorf("%d peers remembered", len(m.peers))
	}
	m.note(table.Owner{Node: "one more"}, nil)
	if len(m.peers) != 1 {
		t.Errorf("%d peers remembered after one too many", len(m.peers))
	}
	// A long trail is cut, and then says that nothing was delivered.
	var d delivered
	for range maxTrail {
		d.add(all)
	}
	if len(d.trail) != maxTrail || !d.has("z") {
		t.Errorf("a trail of %d", len(d.trail))
	}
	if d.add(all); d.has("z") {
		t.Error("a trail that was cut says that all was delivered")
	}
}

// has reports whether the receiver has the records of a node.
func (d *delivered) has(node string) bool {
	return !slices.ContainsFunc(d.trail, func(c coverage) bool { return !c.has(node) })
}
