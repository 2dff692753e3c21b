package replicate

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
)

// newRoleCluster returns node b with streams from peers, each of which serves the map. It is not running.
func newRoleCluster(t *testing.T, peers ...Peer) (*Replicator, map[string]*inboundMap) {
	t.Helper()
	r, _ := newTestReplicator(t)
	r.SetPeers(peers)
	all := make(map[string]*inboundMap)
	for _, p := range peers {
		s, in := newAcceptedStream(r, p)
		s.up, s.supportsOwnerRequests, in.fullSyncDone = true, true, true
		in.owners.confirmedSerial = in.owners.serial
		in.state = StateCaughtUp
		r.inboundStreams[p.Node], all[p.Node] = s, in
	}
	return r, all
}

// TestRolesOfAMap checks that orphaned records are requested from the candidate that started first,
// or from all peers if this node started first.
func TestRolesOfAMap(t *testing.T) {
	requested := func(all map[string]*inboundMap) string {
		var nodes []string
		for _, node := range slices.Sorted(maps.Keys(all)) {
			if w := all[node].owners.requested; w.orphaned {
				if node += " "; w.fallback {
					node += "first "
				}
				nodes = append(nodes, node)
			}
		}
		return strings.Join(nodes, "")
	}
	// Node b has incarnation 2.
	for name, c := range map[string]struct {
		x, y   uint64
		change func(r *Replicator, all map[string]*inboundMap)
		want   string
	}{
		"x started first":         {1, 3, nil, "x first "},
		"y started first":         {4, 1, nil, "y first "},
		"this node started first": {3, 4, nil, "x y "},
		"the first peer stalls": {1, 3, func(_ *Replicator, all map[string]*inboundMap) {
			all["x"].owners.candidateAfter = time.Now().Add(time.Hour)
		}, "x y "},
		"the next peer started before this node": {0, 1, func(_ *Replicator, all map[string]*inboundMap) {
			all["x"].owners.candidateAfter = time.Now().Add(time.Hour)
		}, "y first "},
	} {
		r, all := newRoleCluster(t, Peer{Node: "x", Incarnation: c.x}, Peer{Node: "y", Incarnation: c.y})
		if c.change != nil {
			c.change(r, all)
		}
		r.assignRoles(time.Now())
		if got := requested(all); got != c.want {
			t.Errorf("%s: requested from %q, want %q", name, got, c.want)
		}
		if got := *r.localMaps()[testMap].sources.Load(); !slices.Equal(got, []string{"x", "y"}) {
			t.Errorf("%s: sources: got %v, want x and y", name, got)
		}
	}
}

// TestInitialSyncWaitsForRoles checks that the initial sync is not complete while the fallback sender has left or lacks the map,
// and no other peer has been asked for orphaned records.
func TestInitialSyncWaitsForRoles(t *testing.T) {
	x, y := Peer{Node: "x", Incarnation: 1}, Peer{Node: "y", Incarnation: 3}
	for name, change := range map[string]func(r *Replicator, in *inboundMap){
		"left":     func(r *Replicator, _ *inboundMap) { r.SetPeers([]Peer{y}) },
		"pending":  func(_ *Replicator, in *inboundMap) { in.state = StatePending },
		"excluded": func(_ *Replicator, in *inboundMap) { in.state = StateExcluded },
		"refused":  func(_ *Replicator, in *inboundMap) { in.state = StateRefused },
		// The subscription to y begins after the decision that x is not the fallback sender.
		"pending before y": func(r *Replicator, in *inboundMap) {
			s := r.inboundStreams["y"]
			was := s.maps[testMap]
			delete(s.maps, testMap)
			in.state = StatePending
			r.assignRoles(time.Now())
			was.owners = newInboundOwners(r.view.Load(), y.owner(), time.Now())
			was.owners.confirmedSerial = was.owners.serial
			s.maps[testMap] = was
		},
	} {
		r, all := newRoleCluster(t, x, y)
		r.assignRoles(time.Now())
		all["x"].fullSyncDone = false
		for _, in := range all {
			in.allReceived, in.owners.confirmedSerial = true, in.owners.serial
		}
		if ok, waiting := r.InitialSyncDone(); ok || len(waiting) != 1 {
			t.Fatalf("%s: before: got %t, waiting %q, want false and x", name, ok, waiting)
		}
		change(r, all["x"])
		for _, done := range []func() (bool, []string){r.InitialSyncDone, r.FittingReceived, r.AllReceived} {
			if ok, _ := done(); ok {
				t.Errorf("%s: before the decision about roles: got done, want not done", name)
			}
		}
		r.assignRoles(time.Now())
		in := all["y"]
		if ok, _ := r.InitialSyncDone(); ok || !in.owners.requested.orphaned {
			t.Errorf("%s: before the answer: got done or no request, want a request", name)
		}
		in.ownerRequestMessage()
		in.handleOwnersSent(&mapsyncv1.OwnersSent{Serial: in.owners.serial})
		for _, done := range []func() (bool, []string){r.InitialSyncDone, r.FittingReceived, r.AllReceived} {
			if ok, waiting := done(); !ok {
				t.Errorf("%s: after the answer: got waiting %q, want done", name, waiting)
			}
		}
	}
}

// TestRequestsCompleteForMap checks that the requests of a map are complete once everything
// requested was received. A comparison that was impossible before is then requested at once, and
// the sources are sent.
func TestRequestsCompleteForMap(t *testing.T) {
	r, all := newRoleCluster(t, Peer{Node: "x", Incarnation: 1}, Peer{Node: "y", Incarnation: 3})
	m := r.localMaps()[testMap]
	s := newOutboundStream(r, target, nil)
	r.outboundStreams[s] = struct{}{}
	asked := func() (nodes string) {
		for _, node := range []string{"x", "y"} {
			if in := all[node]; in.comparison.requestBuckets && wasWoken(in.stream.wake) {
				nodes += node
			}
			all[node].comparison.requestBuckets = false
			wasWoken(all[node].stream.wake)
		}
		return nodes
	}
	assign := func() {
		r.assignRoles(time.Now())
		for _, in := range all {
			in.stream.appendSubscriptions(nil, r.localMaps(), time.Now()) // sends the requests
		}
	}
	answer := func(node string) {
		all[node].handleOwnersSent(&mapsyncv1.OwnersSent{Serial: all[node].owners.serial})
	}
	assign()
	answer("x")
	answer("y")
	asked()
	m.requestsComplete.Store(false)
	if assign(); !m.requestsComplete.Load() || asked() != "xy" || !wasWoken(s.wake) || !slices.Equal(*m.sources.Load(), []string{"x", "y"}) {
		t.Errorf("requests: got complete %t, sources %v, want true, x and y; want digests of x and y requested, and the stream woken",
			m.requestsComplete.Load(), *m.sources.Load())
	}
	if assign(); !m.requestsComplete.Load() || asked() != "" || wasWoken(s.wake) {
		t.Error("no change: got a digest request or sources, want none")
	}
	// Another membership, without a change of the requests.
	r.SetPeers([]Peer{{Node: "x", Incarnation: 1}, {Node: "y", Incarnation: 3}, {Node: "w", Incarnation: 9}})
	asked()
	if assign(); asked() != "xy" {
		t.Error("new membership: got no digest requests, want both")
	}
	all["y"].fullSyncDone = false
	if assign(); !slices.Equal(*m.sources.Load(), []string{"x"}) || !wasWoken(s.wake) {
		t.Errorf("sources: got %v, want x", *m.sources.Load())
	}
	// The answer of x is missing.
	all["x"].owners.confirmedSerial = 0
	if assign(); m.requestsComplete.Load() || asked() != "" {
		t.Error("missing answer: got complete, want not complete")
	}
	answer("x")
	assign()
	asked()
	// The fallback sender does not serve the map at present.
	all["x"].state = StateWaiting
	if assign(); m.requestsComplete.Load() {
		t.Error("fallback sender does not serve: got complete, want not complete")
	}
	all["x"].state, all["y"].state, all["y"].owners.confirmedSerial, all["y"].fullSyncDone = StateCaughtUp, StateWaiting, 0, true
	if assign(); !m.requestsComplete.Load() || asked() != "xy" || !slices.Equal(*m.sources.Load(), []string{"x"}) {
		t.Error("peer that does not serve: got waited for or a source, want ignored")
	}
	// Another membership while an answer is missing.
	all["x"].owners.confirmedSerial = 0
	r.SetPeers([]Peer{{Node: "x", Incarnation: 1}, {Node: "y", Incarnation: 3}})
	asked()
	if assign(); asked() != "" {
		t.Error("missing answer under a new membership: got digest requests, want none")
	}
}

// TestRelayForUnreachablePeer checks that the records of an unreachable live peer are requested
// from another peer that receives from it, until the peer is reachable again.
func TestRelayForUnreachablePeer(t *testing.T) {
	r, all := newRoleCluster(t, Peer{Node: "x", Incarnation: 1}, Peer{Node: "c", Incarnation: 3})
	all["c"].state, all["c"].owners.lastServing = StateWaiting, time.Now().Add(-time.Hour)
	all["x"].owners.sources = []string{"c"}
	r.assignRoles(time.Now())
	if via, nodes := all["c"].owners.via, all["x"].owners.requested.nodes; via != "x" || !slices.Equal(nodes, []string{"c"}) {
		t.Errorf("via %q, nodes requested from x: got %v, want c", via, nodes)
	}
	all["c"].state = StateCaughtUp
	r.assignRoles(time.Now())
	if via, nodes := all["c"].owners.via, all["x"].owners.requested.nodes; via != "" || len(nodes) != 0 {
		t.Errorf("via %q, nodes requested from x: got %v, want none", via, nodes)
	}
}

// TestStalledRelayIsReplaced has a peer announce that it receives from an unreachable node, and then
// send nothing that was requested. Batches that are marked as caught up do not count.
func TestStalledRelayIsReplaced(t *testing.T) {
	now := time.Now()
	r, all := newRoleCluster(t, Peer{Node: "x", Incarnation: 1}, Peer{Node: "y", Incarnation: 3}, Peer{Node: "c", Incarnation: 4})
	all["c"].state, all["c"].owners.lastServing = StateWaiting, now.Add(-time.Hour)
	all["x"].owners.sources, all["y"].owners.sources = []string{"c"}, []string{"c"}
	requested := func(want string, at time.Time) {
		t.Helper()
		r.assignRoles(at)
		for _, node := range []string{"x", "y"} {
			if got := slices.Contains(all[node].owners.requested.nodes, "c"); got != (node == want) {
				t.Errorf("records of c requested from %s: got %t, want %s", node, got, want)
			}
		}
	}
	requested("x", now)
	late := now.Add(2 * r.opt.stallTimeout)
	for _, node := range []string{"x", "y"} {
		all[node].handleMerged(&wire.Batch{CaughtUp: true}, mergeResult{}, late)
	}
	requested("y", late)
	// The earlier choice is kept after the pause of the stalled peer.
	all["y"].owners.confirmedSerial = all["y"].owners.serial
	requested("y", late.Add(2*stalledCandidatePause))
	// A stalled relay is better than none.
	all["y"].owners.sources = nil
	all["x"].owners.candidateAfter = late.Add(time.Hour)
	requested("x", late)
}

// TestProgressOfRequests checks which batches count as progress of a request for records.
func TestProgressOfRequests(t *testing.T) {
	for name, c := range map[string]struct {
		batch wire.Batch
		want  bool
	}{
		"requested records": {wire.Batch{Requested: true}, true},
		"more to come":      {wire.Batch{}, true},
		"caught up":         {wire.Batch{CaughtUp: true}, false},
		"a repair":          {wire.Batch{Resent: true}, false},
	} {
		x := newInboundFixture(t)
		now := time.Now().Add(time.Hour)
		x.in.handleMerged(&c.batch, mergeResult{}, now)
		if got := x.in.owners.lastProgress.Equal(now); got != c.want {
			t.Errorf("%s: progress: got %t, want %t", name, got, c.want)
		}
	}
}

// TestStalledPeerDoesNotPreventComparisons has this node request orphaned records from all peers, of
// which one does not answer. After stallTimeout, this node compares with the others.
func TestStalledPeerDoesNotPreventComparisons(t *testing.T) {
	now := time.Now()
	r, all := newRoleCluster(t, Peer{Node: "x", Incarnation: 3}, Peer{Node: "y", Incarnation: 4})
	all["x"].owners.confirmedSerial, all["x"].owners.lastProgress = 0, now
	for _, after := range []time.Duration{0, r.opt.stallTimeout, r.opt.stallTimeout + 1, 2 * stalledCandidatePause} {
		r.assignRoles(now.Add(after))
		if got, want := r.localMaps()[testMap].requestsComplete.Load(), after > r.opt.stallTimeout; got != want {
			t.Errorf("%s after the request: complete: got %t, want %t", after, got, want)
		}
	}
	if !all["x"].owners.requested.orphaned || all["x"].requestsComplete() {
		t.Error("request to the stalled peer: got none or an answer, want it to wait")
	}
}

// TestNoRequestForReplacedMap checks that a map that was replaced since the decision gets no request.
func TestNoRequestForReplacedMap(t *testing.T) {
	x := newInboundFixture(t)
	x.stream.supportsOwnerRequests = true
	was, err := newLocalMap(testMap, x.in.m.layout, x.tb)
	if err != nil {
		t.Fatalf("new local map: got error %v, want nil", err)
	}
	before := x.in.owners.serial
	p := mapSource{peer: x.stream.peer, stream: x.stream, serving: true}
	settled := x.stream.assignRole(was, &p, &permit{peer: "x", nodes: []string{"c"}}, 0, time.Now())
	if !settled || x.in.owners.serial != before {
		t.Errorf("role of a replaced map: got settled %t, serial %d, want true and %d", settled, x.in.owners.serial, before)
	}
}
