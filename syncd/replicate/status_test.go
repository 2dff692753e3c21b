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

// TestMembershipView checks that the later of two incarnations of a node is live, that this node is
// not in the live nodes, and that departures add up.
func TestMembershipView(t *testing.T) {
	self := table.Owner{Node: "b", Incarnation: 2}
	peers := []Peer{{Node: "x", Incarnation: 3}, {Node: "y", Incarnation: 1}}
	v := newView(nil, self, append(peers, Peer{Node: "x", Incarnation: 5}, Peer{Node: "x", Incarnation: 4}, Peer{Node: "b", Incarnation: 9}))
	if len(v.live) != 2 || v.live["x"].Incarnation != 5 || v.departures != 0 {
		t.Errorf("view: got %+v, want 2 live nodes, x with incarnation 5, and no departures", v)
	}
	none := newView(v, self, nil)
	again := newView(none, self, peers)
	last := newView(again, self, peers[:1])
	if none.departures != 2 || again.departures != 2 || last.departures != 3 {
		t.Errorf("departures: got %d, %d, %d, want 2, 2, 3", none.departures, again.departures, last.departures)
	}
	// All nodes with the same live nodes compute the same value.
	other := newView(nil, table.Owner{Node: "x"}, []Peer{{Node: "b"}, {Node: "y"}})
	if v.members != other.members || v.members == none.members || v.members == last.members {
		t.Error("members: got different values for the same live nodes, or equal values for others, " +
			"want equal values for the same live nodes only")
	}
	if len(v.names()) != 2 || v.orphaned("x") || v.orphaned("b") || !v.orphaned("z") {
		t.Errorf("names: got %v, want 2, and only z orphaned", v.names())
	}
}

// TestStatus checks that the status lists two peers and three maps in order.
func TestStatus(t *testing.T) {
	r, all := newRoleCluster(t, Peer{Node: "y", Incarnation: 3, Addr: "127.0.0.1:2"}, Peer{Node: "x", Incarnation: 1, Addr: "127.0.0.1:1"})
	for _, name := range []string{"nat", "aff"} {
		if err := r.AddMap(name, Layout{KeySize: testKeySize, ValueSize: testValueSize}, newTable(t, r.opt.Self, false)); err != nil {
			t.Fatalf("add map: got error %v, want nil", err)
		}
	}
	in := all["x"]
	at := time.Unix(100, 5)
	in.stream.lastContact.Store(at.UnixNano())
	in.exceptions.add([]byte("k"), 1, target, errors.New("why"))
	in.comparison.peerUnsent, in.comparison.divergent, in.comparison.inSyncAt = 4, 3, at
	status := r.Status()
	if len(status) != 2 || status[0].Node != "x" || status[1].Node != "y" || !status[0].LastContact.Equal(at) || !status[1].LastContact.IsZero() {
		t.Fatalf("status: got %+v, want x with the last contact at %s, and y without one", status, at)
	}
	var names []string
	for _, m := range status[0].Maps {
		names = append(names, m.Name+" "+string(m.State))
	}
	if !slices.Equal(names, []string{"aff waiting", "ct caught_up", "nat waiting"}) {
		t.Errorf("maps: got %q, want aff waiting, ct caught_up, nat waiting", names)
	}
	m := status[0].Maps[1]
	if m.ExceptionCount != 1 || len(m.Exceptions) != 1 || m.Unsent != 4 || m.Divergent != 3 || !m.InSyncAt.Equal(at) || m.SendState != StateWaiting {
		t.Errorf("status of the map: got %+v, want 1 exception, listed, 4 unsent, 3 divergent, in sync at %s, send state %s",
			m, at, StateWaiting)
	}
	// A map that was added again has no state yet.
	r.RemoveMap(testMap)
	if err := r.AddMap(testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}, newTable(t, r.opt.Self, false)); err != nil {
		t.Fatalf("add map: got error %v, want nil", err)
	}
	if m := r.Status()[0].Maps[1]; m.State != StateWaiting || m.ExceptionCount != 0 {
		t.Errorf("status of the map that was added again: got %+v, want state %s and no exceptions", m, StateWaiting)
	}
	ok, waiting := r.InitialSyncDone()
	want := []string{"x/aff", "x/ct", "x/nat", "y/aff", "y/ct", "y/nat"}
	if ok || !slices.Equal(waiting, want) {
		t.Errorf("initial sync: got %t, waiting %q, want false and %q", ok, waiting, want)
	}
	if ok, missing := r.InSync(); ok || !slices.Equal(missing, want) {
		t.Errorf("in sync: got %t, missing %q, want false and %q", ok, missing, want)
	}
	if s := r.Stats(); s.Peers != 2 || s.Connected != 2 || s.Maps != 3 {
		t.Errorf("statistics: got %d peers, %d connected, %d maps, want 2, 2, 3", s.Peers, s.Connected, s.Maps)
	}
}

// TestInitialSyncIgnoresUnavailableMaps checks that maps that a peer lacks, or that do not fit, are
// not waited for.
func TestInitialSyncIgnoresUnavailableMaps(t *testing.T) {
	x := newInboundFixture(t)
	for state, waits := range map[State]bool{
		StateWaiting: true, StateFailed: true, StateSyncing: true, StateCaughtUp: true,
		StatePending: false, StateRefused: false, StateExcluded: false,
	} {
		x.in.state, x.in.fullSyncDone = state, false
		x.r.assignRoles(time.Now())
		if ok, names := x.r.InitialSyncDone(); ok == waits {
			t.Errorf("%s: initial sync: got waiting %v, want waiting: %t", state, names, waits)
		}
		if x.in.fullSyncDone = true; state == StateCaughtUp {
			if ok, names := x.r.InitialSyncDone(); !ok {
				t.Errorf("map received: initial sync: got waiting %v, want done", names)
			}
			if ok, names := x.r.AllReceived(); ok {
				t.Errorf("no digest received: all received: got done, waiting %v, want not done", names)
			}
			x.in.allReceived = true
			if ok, names := x.r.AllReceived(); !ok {
				t.Errorf("digest received: all received: got waiting %v, want done", names)
			}
			x.in.allReceived = false
		}
		if got := x.in.awaitsInSync(time.Time{}); got != waits {
			t.Errorf("%s: awaits in sync: got %t, want %t", state, got, waits)
		}
		x.in.owners.lastServing = time.Now().Add(-time.Hour)
		cut := state == StateWaiting || state == StateFailed
		if why := x.in.disconnectedReason(time.Now()); (why != "") != cut {
			t.Errorf("%s: disconnected reason: got %q, want a reason: %t", state, why, cut)
		}
	}
	x.in.state = StateWaiting
	now := time.Now()
	x.in.owners.lastServing = now.Add(1 - x.r.opt.rerouteDelay)
	if why := x.in.disconnectedReason(now); why != "" {
		t.Errorf("disconnected just now: got reason %q, want none", why)
	}
	x.in.owners.lastServing = now.Add(-x.r.opt.rerouteDelay)
	if why := x.in.disconnectedReason(now); !strings.Contains(why, "for 2s, and no other peer") {
		t.Errorf("disconnected for some time: got reason %q, want it to contain \"for 2s, and no other peer\"", why)
	}
}

// TestOutboundStatus checks the acknowledged position and the lag in the status.
func TestOutboundStatus(t *testing.T) {
	o := newOutboundFixture(t)
	o.s.sendsReports = true
	status := func() MapStatus {
		maps := []MapStatus{{Name: "other", SendState: StateWaiting}, {Name: testMap, SendState: StateWaiting}}
		o.s.status(maps, o.now)
		if maps[0].SendState != StateWaiting || maps[0].Serving {
			t.Errorf("status of another map: got %+v, want send state %s, not serving", maps[0], StateWaiting)
		}
		return maps[1]
	}
	if _, err := o.m.step(nil, o.now); err != nil {
		t.Fatalf("step: got error %v, want nil", err)
	}
	if m := status(); m.Serving || m.SendState != StatePending || m.Reporting {
		t.Errorf("status of a pending map: got %+v, want send state %s, not serving, not reporting", m, StatePending)
	}
	putTable(t, o.tb, 1, 4, 1)
	o.sendPending()
	lm := o.r.localMaps()[testMap]
	lm.samples = []headSample{{1, o.now.Add(-9 * time.Second)}, {2, o.now.Add(-5 * time.Second)}, {3, o.now.Add(-time.Second)}}
	o.m.ackedPosition.Store(1)
	if m := status(); !m.Serving || m.SendState != StateServed || !m.Reporting || m.Sent != 3 || m.Acked != 1 || m.LagEntries != 2 || m.Lag != 5*time.Second {
		t.Errorf("status of a served map: got %+v, want serving, %s, reporting, 3 sent, 1 acked, a lag of 2 entries and 5 s",
			m, StateServed)
	}
	o.m.ackedPosition.Store(3)
	if m := status(); m.LagEntries != 0 || m.Lag != 0 {
		t.Errorf("status without a lag: got %+v, want lags of 0", m)
	}
	o.m.unsubscribed.Store(true)
	if m := status(); m.Serving || m.SendState != StateWaiting {
		t.Errorf("status after the end: got %+v, want send state %s, not serving", m, StateWaiting)
	}
}

// TestStatusUsesNewestSubscribedStream checks that the status shows the newest stream with a
// subscription.
func TestStatusUsesNewestSubscribedStream(t *testing.T) {
	now := time.Now()
	for name, c := range map[string]struct {
		joined []bool // oldest first
		serves int    // index, -1: none of them
	}{
		"one":                                   {[]bool{true}, 0},
		"two":                                   {[]bool{true, true}, 1},
		"a newer stream without subscriptions":  {[]bool{true, false}, 0},
		"an older stream without subscriptions": {[]bool{false, true}, 1},
		"two streams and one without subscriptions": {[]bool{true, true, false}, 1},
		"one stream without subscriptions":          {[]bool{false}, -1},
		"two streams without subscriptions":         {[]bool{false, false}, -1},
	} {
		for try := range 20 { // the order of iteration of a map depends on the order of insertion and on chance
			r, _ := newRoleCluster(t, Peer{Node: "x", Incarnation: 3})
			for i := range c.joined {
				if try%2 == 1 {
					i = len(c.joined) - 1 - i
				}
				joined := c.joined[i]
				s := newOutboundStream(r, target, nil)
				s.startedAt = now.Add(time.Duration(i))
				s.subscribed.Store(joined)
				out := newOutboundMap(s, &mapsyncv1.MapSubscription{Map: 1, Name: testMap}, allOrphaned)
				out.m = r.localMaps()[testMap]
				out.serving.Store(joined)
				out.sentPosition.Store(uint64(i))
				out.ackedPosition.Store(uint64(100 + i))
				s.maps = []*outboundMap{out}
				r.outboundStreams[s] = struct{}{}
			}
			st := r.Status()[0]
			if m := st.Maps[0]; !st.Serving || (c.serves < 0) == m.Serving || c.serves >= 0 && m.Sent != uint64(c.serves) {
				t.Fatalf("%s: got serving %t, sent %d, want serving %t, sent %d if so, and the node serving",
					name, m.Serving, m.Sent, c.serves >= 0, c.serves)
			}
		}
	}
}

// TestResync checks that Resync requests a full sync from all live peers. It ends once they have
// sent the map and the digests agree or cannot agree.
func TestResync(t *testing.T) {
	r, all := newRoleCluster(t, Peer{Node: "y", Incarnation: 3}, Peer{Node: "x", Incarnation: 1})
	s := newOutboundStream(r, target, nil)
	out := newOutboundMap(s, &mapsyncv1.MapSubscription{Map: 1, Name: testMap}, allOrphaned)
	another := newOutboundMap(s, &mapsyncv1.MapSubscription{Map: 2, Name: "nat"}, allOrphaned)
	observer := newOutboundMap(s, &mapsyncv1.MapSubscription{Map: 3, Name: testMap, Observe: true}, allOrphaned)
	s.maps = []*outboundMap{out, another, observer}
	r.outboundStreams[s] = struct{}{}
	for _, in := range all {
		in.noteInSync(1, time.Now())
		in.fullSyncRecords, in.comparison.peerLive = 7, 10
	}
	type step struct {
		peers       string
		done, total int
	}
	var steps []step
	agree := func(node string) {
		in := all[node]
		in.stream.mu.Lock()
		in.repeatFullSyncAt, in.fullSyncRecords = time.Time{}, 4
		in.comparison.onThisStream = true
		in.noteInSync(1, time.Now())
		in.stream.mu.Unlock()
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
		t.Fatalf("resync: got error %v, want nil", err)
	}
	if fmt.Sprint(steps) != "[{xy 0 20} {y 4 20}]" {
		t.Errorf("progress: got %v, want [{xy 0 20} {y 4 20}]", steps)
	}
	if !out.comparison.digestNow.Load() || another.comparison.digestNow.Load() || observer.comparison.digestNow.Load() || !wasWoken(s.wake) {
		t.Error("digests: got not due for the map, or due for another map, want due for the map only, and the stream woken")
	}
	for node, in := range all {
		if in.comparison.resyncStart.IsZero() || !wasWoken(in.stream.wake) {
			t.Errorf("full sync from %s: got not requested, want requested", node)
		}
	}
	// Resync waits for a full sync, then for an agreement, unless that is impossible.
	began := time.Now()
	waits := func(what, want string, unknown bool) {
		t.Helper()
		peers, _, _, err := r.resyncProgress(testMap, began)
		if got := strings.Join(peers, ""); got != want || errors.Is(err, ErrInconclusive) != unknown {
			t.Errorf("%s: got waiting for %q, error %v, want %q, ErrInconclusive: %t", what, got, err, want, unknown)
		}
	}
	agree("x")
	agree("y")
	waits("agreed", "", false)
	all["y"].repeatFullSyncAt = began
	waits("the full sync has not begun", "y", false)
	all["y"].repeatFullSyncAt = began.Add(time.Hour)
	waits("another full sync is due", "", false)
	all["y"].comparison.inSync, all["x"].comparison.inSync = false, false
	waits("digests do not agree", "xy", false)
	all["y"].comparison.impossibleReason = "other keys"
	waits("one comparison is impossible", "x", true)
	all["y"].state = StateSyncing
	waits("not received to the end", "xy", false)
	delete(all["y"].stream.maps, testMap)
	waits("not subscribed yet", "xy", false)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Resync(ctx, testMap, nil); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "waiting for [x y]") {
		t.Errorf("cancelled resync: got %v, want context.Canceled", err)
	}
	if err := r.Resync(t.Context(), "none", nil); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), `"none"`) {
		t.Errorf("resync of an unknown map: got %v, want ErrNotFound", err)
	}
}

// TestAuditFindsMemoryChanges checks that the audit covers all records within the configured time,
// and detects a change in memory.
func TestAuditFindsMemoryChanges(t *testing.T) {
	r, tb := newTestReplicator(t)
	r.opt.auditInterval = 4 * housekeepingInterval
	const n = 9 * recordsPerLock
	putTable(t, tb, 0, n, 1)
	var rec table.Record
	tb.View(func(tx *table.Tx) {
		tx.Get(key(17), &rec)
		rec.Value[0] ^= 1
	})
	rounds := 0
	for ; tb.Stats().AuditFound == 0; rounds++ {
		if rounds > 2*4+2 {
			t.Fatal("audit: got no finding, want one after at most 11 rounds")
		}
		r.audit(t.Context())
	}
	if rounds < 3 {
		t.Errorf("audit: got a finding after %d rounds of 4, want at least 3", rounds)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	tb.View(func(tx *table.Tx) { rec.Value[0] ^= 1 })
	before := tb.Stats().AuditFound
	for range 20 {
		r.audit(canceled)
	}
	if tb.Stats().AuditFound != before {
		t.Error("audit after the end: got a finding, want none")
	}
	r.opt.auditInterval = 1
	for range 2 { // the rest of one round, and another round
		r.audit(t.Context())
	}
	if tb.Stats().AuditFound == before {
		t.Error("audit of one round: got no finding, want one")
	}
}
