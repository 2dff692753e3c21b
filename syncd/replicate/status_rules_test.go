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

// TestViews: of two incarnations of a node the later one is live, this node never is, and departures
// add up.
func TestViews(t *testing.T) {
	self := table.Owner{Node: "b", Incarnation: 2}
	peers := []Peer{{Node: "x", Incarnation: 3}, {Node: "y", Incarnation: 1}}
	v := newView(nil, self, append(peers, Peer{Node: "x", Incarnation: 5}, Peer{Node: "x", Incarnation: 4}, Peer{Node: "b", Incarnation: 9}))
	if len(v.live) != 2 || v.live["x"].Incarnation != 5 || v.departures != 0 {
		t.Errorf("%+v", v)
	}
	none := newView(v, self, nil)
	again := newView(none, self, peers)
	last := newView(again, self, peers[:1])
	if none.departures != 2 || again.departures != 2 || last.departures != 3 {
		t.Errorf("departures %d, %d, %d", none.departures, again.departures, last.departures)
	}
	// All nodes that see the same members compute the same number.
	other := newView(nil, table.Owner{Node: "x"}, []Peer{{Node: "b"}, {Node: "y"}})
	if v.members != other.members || v.members == none.members || v.members == last.members {
		t.Error("the same members have different numbers, or others the same")
	}
	if len(v.names()) != 2 || v.orphaned("x") || v.orphaned("b") || !v.orphaned("z") {
		t.Errorf("names %v", v.names())
	}
}

// TestStatusOfThePeers has two peers and three maps: all are listed, in order.
func TestStatusOfThePeers(t *testing.T) {
	r, all := cluster(t, Peer{Node: "y", Incarnation: 3, Addr: "127.0.0.1:2"}, Peer{Node: "x", Incarnation: 1, Addr: "127.0.0.1:1"})
	for _, name := range []string{"nat", "aff"} {
		if err := r.AddMap(name, Layout{KeySize: testKeySize, ValueSize: testValueSize}, newTable(t, r.opt.Self, false)); err != nil {
			t.Fatal(err)
		}
	}
	in := all["x"]
	at := time.Unix(100, 5)
	in.l.contact.Store(at.UnixNano())
	in.excepted.add([]byte("k"), 1, target, errors.New("why"))
	in.comparing.unsent, in.comparing.divergent, in.comparing.at = 4, 3, at
	status := r.Status()
	if len(status) != 2 || status[0].Node != "x" || status[1].Node != "y" || !status[0].LastContact.Equal(at) || !status[1].LastContact.IsZero() {
		t.Fatalf("%+v", status)
	}
	var names []string
	for _, m := range status[0].Maps {
		names = append(names, m.Name+" "+string(m.State))
	}
	if !slices.Equal(names, []string{"aff waiting", "ct caught_up", "nat waiting"}) {
		t.Errorf("maps %q", names)
	}
	m := status[0].Maps[1]
	if m.ExceptionCount != 1 || len(m.Exceptions) != 1 || m.Unsent != 4 || m.Divergent != 3 || !m.AgreedAt.Equal(at) || m.SendState != StateWaiting {
		t.Errorf("%+v", m)
	}
	// A map that has come again has no state yet.
	r.RemoveMap(testMap)
	if err := r.AddMap(testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}, newTable(t, r.opt.Self, false)); err != nil {
		t.Fatal(err)
	}
	if m := r.Status()[0].Maps[1]; m.State != StateWaiting || m.ExceptionCount != 0 {
		t.Errorf("%+v", m)
	}
	ok, waiting := r.SyncedAll()
	want := []string{"x/aff", "x/ct", "x/nat", "y/aff", "y/ct", "y/nat"}
	if ok || !slices.Equal(waiting, want) {
		t.Errorf("waits for %q", waiting)
	}
	if ok, missing := r.Agreed(); ok || !slices.Equal(missing, want) {
		t.Errorf("missing %q", missing)
	}
	if s := r.Stats(); s.Peers != 2 || s.Connected != 2 || s.Maps != 3 {
		t.Errorf("%d peers, %d connected, %d maps", s.Peers, s.Connected, s.Maps)
	}
}

// TestMapsThatAreNotWaitedFor: a map that a peer does not have, or that does not fit.
func TestMapsThatAreNotWaitedFor(t *testing.T) {
	x := newStreamless(t)
	for state, waits := range map[State]bool{
		StateWaiting: true, StateFailed: true, StateSyncing: true, StateCaughtUp: true,
		StatePending: false, StateRefused: false, StateExcluded: false,
	} {
		x.in.state, x.in.synced = state, false
		if ok, names := x.r.SyncedAll(); ok == waits {
			t.Errorf("%s: waits for %v", state, names)
		}
		if x.in.synced = true; state == StateCaughtUp {
			if ok, names := x.r.SyncedAll(); !ok {
				t.Errorf("received: waits for %v", names)
			}
		}
		if got := x.in.awaitsAgreement(time.Time{}); got != waits {
			t.Errorf("%s: agreement is awaited: %t", state, got)
		}
		x.in.requesting.good = time.Now().Add(-time.Hour)
		cut := state == StateWaiting || state == StateFailed
		if why := x.in.cutOff(time.Now()); (why != "") != cut {
			t.Errorf("%s: cut off %q", state, why)
		}
	}
	x.in.state = StateWaiting
	now := time.Now()
	x.in.requesting.good = now.Add(1 - x.r.opt.reroute)
	if why := x.in.cutOff(now); why != "" {
		t.Errorf("just now: %q", why)
	}
	x.in.requesting.good = now.Add(-x.r.opt.reroute)
	if why := x.in.cutOff(now); !strings.Contains(why, "for 2s, and no other peer") {
		t.Errorf("for a while: %q", why)
	}
}

// TestStatusOfTheSendingSide: the position acknowledged, and how much is not.
func TestStatusOfTheSendingSide(t *testing.T) {
	o := newOut(t)
	o.s.reports = true
	status := func() MapStatus {
		maps := []MapStatus{{Name: "other", SendState: StateWaiting}, {Name: testMap, SendState: StateWaiting}}
		o.s.status(maps, o.now)
		if maps[0].SendState != StateWaiting || maps[0].Serving {
			t.Errorf("another map: %+v", maps[0])
		}
		return maps[1]
	}
	if _, err := o.f.step(nil, o.now); err != nil {
		t.Fatal(err)
	}
	if m := status(); m.Serving || m.SendState != StatePending || m.Reporting {
		t.Errorf("%+v", m)
	}
	putTable(t, o.tb, 1, 4, 1)
	o.run()
	lm := o.r.localMaps()[testMap]
	lm.samples = []headSample{{1, o.now.Add(-9 * time.Second)}, {2, o.now.Add(-5 * time.Second)}, {3, o.now.Add(-time.Second)}}
	o.f.acked.Store(1)
	if m := status(); !m.Serving || m.SendState != StateServed || !m.Reporting || m.Sent != 3 || m.Acked != 1 || m.LagEntries != 2 || m.Lag != 5*time.Second {
		t.Errorf("%+v", m)
	}
	o.f.acked.Store(3)
	if m := status(); m.LagEntries != 0 || m.Lag != 0 {
		t.Errorf("%+v", m)
	}
	o.f.unwanted.Store(true)
	if m := status(); m.Serving || m.SendState != StateWaiting {
		t.Errorf("after its end: %+v", m)
	}
}

// TestStreamOfAPeer: of several the newest that has subscribed counts.
func TestStreamOfAPeer(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		joined []bool // oldest first
		serves int    // index, -1: none of them
	}{
		"one":                    {[]bool{true}, 0},
		"two":                    {[]bool{true, true}, 1},
		"a proof beside it":      {[]bool{true, false}, 0},
		"a proof before it":      {[]bool{false, true}, 1},
		"an older one, a proof":  {[]bool{true, true, false}, 1},
		"none has subscribed":    {[]bool{false}, -1},
		"neither has subscribed": {[]bool{false, false}, -1},
	} {
		for range 10 { // the order of a map is random
			r, _ := cluster(t, Peer{Node: "x", Incarnation: 3})
			for i, joined := range c.joined {
				s := newSession(r, target, nil)
				s.begun = now.Add(time.Duration(i))
				s.joined.Store(joined)
				f := newFeed(s, &mapsyncv1.MapSubscription{Map: 1, Name: testMap}, allOrphaned)
				f.m = r.localMaps()[testMap]
				f.serving.Store(joined)
				f.sent.Store(uint64(i))
				f.acked.Store(uint64(100 + i))
				s.feeds = []*feed{f}
				r.sessions[s] = struct{}{}
			}
			st := r.Status()[0]
			if m := st.Maps[0]; !st.Serving || (c.serves < 0) == m.Serving || c.serves >= 0 && m.Sent != uint64(c.serves) {
				t.Fatalf("%s: serving %t, sent %d", name, m.Serving, m.Sent)
			}
		}
	}
}

// TestResyncOfAMap: all live peers send the map from the beginning; it is over when they have, and the
// digests agree or cannot.
func TestResyncOfAMap(t *testing.T) {
	r, all := cluster(t, Peer{Node: "y", Incarnation: 3}, Peer{Node: "x", Incarnation: 1})
	s := newSession(r, target, nil)
	f := newFeed(s, &mapsyncv1.MapSubscription{Map: 1, Name: testMap}, allOrphaned)
	another := newFeed(s, &mapsyncv1.MapSubscription{Map: 2, Name: "nat"}, allOrphaned)
	observer := newFeed(s, &mapsyncv1.MapSubscription{Map: 3, Name: testMap, Observe: true}, allOrphaned)
	s.feeds = []*feed{f, another, observer}
	r.sessions[s] = struct{}{}
	for _, in := range all {
		in.agree(1, time.Now())
		in.told, in.comparing.live = 7, 10
	}
	type step struct {
		peers       string
		done, total int
	}
	var steps []step
	agree := func(node string) {
		in := all[node]
		in.l.mu.Lock()
		in.rewalk, in.told = time.Time{}, 4
		in.comparing.current = true
		in.agree(1, time.Now())
		in.l.mu.Unlock()
	}
	progress := func(peers []string, done, total int) {
		if st := (step{strings.Join(peers, ""), done, total}); len(steps) == 0 || steps[len(steps)-1] != st {
			steps = append(steps, st)
		}
		switch peers[0] {
		case "x":
			agree("x")
		case "y":
			agree("y")
		}
	}
	if err := r.Resync(t.Context(), testMap, progress); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(steps) != "[{xy 0 20} {y 4 20}]" {
		t.Errorf("progress %v", steps)
	}
	if !f.telling.hurry.Load() || another.telling.hurry.Load() || observer.telling.hurry.Load() || !woken(s.wake) {
		t.Error("the digests of the map are not made at once, or those of another")
	}
	for node, in := range all {
		if in.comparing.forced.IsZero() || !woken(in.l.wake) {
			t.Errorf("%s was not asked", node)
		}
	}
	// It waits for a full sync, then for agreement, unless that is impossible.
	began := time.Now()
	waits := func(what, want string, unknown bool) {
		t.Helper()
		peers, _, _, err := r.resyncing(testMap, began)
		if got := strings.Join(peers, ""); got != want || errors.Is(err, ErrUnknown) != unknown {
			t.Errorf("%s: waits for %q, %v", what, got, err)
		}
	}
	agree("x")
	agree("y")
	waits("agreed", "", false)
	all["y"].rewalk = began
	waits("the sync has not begun", "y", false)
	all["y"].rewalk = began.Add(time.Hour)
	waits("another sync is to come", "", false)
	all["y"].comparing.agreed, all["x"].comparing.agreed = false, false
	waits("not agreed", "xy", false)
	all["y"].comparing.impossible = "other keys"
	waits("one is impossible", "x", true)
	all["y"].state = StateSyncing
	waits("not received to the end", "xy", false)
	delete(all["y"].l.intakes, testMap)
	waits("not subscribed yet", "xy", false)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Resync(ctx, testMap, nil); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "waiting for [x y]") {
		t.Errorf("given up: %v", err)
	}
	if err := r.Resync(t.Context(), "none", nil); !errors.Is(err, ErrNoPeer) || !strings.Contains(err.Error(), `"none"`) {
		t.Errorf("of no map: %v", err)
	}
}

// TestAuditOfDigests: within the configured time all records have had their turn, and what changed in
// memory is found.
func TestAuditOfDigests(t *testing.T) {
	r, tb := newReceiver(t)
	r.opt.audit = 4 * housekeeping
	const n = 9 * touchChunk
	putTable(t, tb, 0, n, 1)
	var rec table.Record
	tb.View(func(tx *table.Tx) {
		tx.Get(key(17), &rec)
		rec.Value[0] ^= 1
	})
	rounds := 0
	for ; tb.Stats().AuditFound == 0; rounds++ {
		if rounds > 2*4+2 {
			t.Fatal("nothing is found")
		}
		r.audit(t.Context())
	}
	if rounds < 3 {
		t.Errorf("found after %d rounds of 4", rounds)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	tb.View(func(tx *table.Tx) { rec.Value[0] ^= 1 })
	before := tb.Stats().AuditFound
	for range 20 {
		r.audit(canceled)
	}
	if tb.Stats().AuditFound != before {
		t.Error("the audit goes on after the end")
	}
	r.opt.audit = 1
	for range 2 { // the rest of one round, and another
		r.audit(t.Context())
	}
	if tb.Stats().AuditFound == before {
		t.Error("one round does not look at all records")
	}
}
