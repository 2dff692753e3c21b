package replicate

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// cluster is node b with links to peers, each of which serves the map. It is not running.
func cluster(t *testing.T, peers ...Peer) (*Replicator, map[string]*intake) {
	t.Helper()
	r, _ := newReceiver(t)
	r.SetPeers(peers)
	all := make(map[string]*intake)
	for _, p := range peers {
		l, in := acceptedLink(r, p)
		l.up, l.ownerRequests, in.synced = true, true, true
		in.requesting.confirmed = in.requesting.serial
		in.state = StateCaughtUp
		r.links[p.Node], all[p.Node] = l, in
	}
	return r, all
}

// TestRolesOfAMap: orphaned records are requested of the candidate that started first, or of all if
// that is this node.
func TestRolesOfAMap(t *testing.T) {
	requested := func(all map[string]*intake) string {
		var nodes []string
		for _, node := range slices.Sorted(maps.Keys(all)) {
			if w := all[node].requesting.wanted; w.orphaned {
				if node += " "; w.fallback {
					node += "first "
				}
				nodes = append(nodes, node)
			}
		}
		return strings.Join(nodes, "")
	}
	// Node b itself has incarnation 2.
	for name, c := range map[string]struct {
		x, y   uint64
		change func(r *Replicator, all map[string]*intake)
		want   string
	}{
		"x is first":              {1, 3, nil, "x first "},
		"y is first":              {4, 1, nil, "y first "},
		"this node is first":      {3, 4, nil, "x y "},
		"the first stalls":        {1, 3, func(_ *Replicator, all map[string]*intake) { all["x"].requesting.stalled = time.Now().Add(time.Hour) }, "x y "},
		"the next is before this": {0, 1, func(_ *Replicator, all map[string]*intake) { all["x"].requesting.stalled = time.Now().Add(time.Hour) }, "y first "},
	} {
		r, all := cluster(t, Peer{Node: "x", Incarnation: c.x}, Peer{Node: "y", Incarnation: c.y})
		if c.change != nil {
			c.change(r, all)
		}
		r.assign(time.Now())
		if got := requested(all); got != c.want {
			t.Errorf("%s: requested of %q, want %q", name, got, c.want)
		}
		if got := *r.localMaps()[testMap].sources.Load(); !slices.Equal(got, []string{"x", "y"}) {
			t.Errorf("%s: sources %v", name, got)
		}
	}
}

// TestSettledMap: a map is settled when all that is requested has come. Digests that could not be
// compared before are compared at once, and the sources are reported.
func TestSettledMap(t *testing.T) {
	r, all := cluster(t, Peer{Node: "x", Incarnation: 1}, Peer{Node: "y", Incarnation: 3})
	m := r.localMaps()[testMap]
	s := newSession(r, target, nil)
	r.sessions[s] = struct{}{}
	asked := func() (nodes string) {
		for _, node := range []string{"x", "y"} {
			if in := all[node]; in.comparing.ask && woken(in.l.wake) {
				nodes += node
			}
			all[node].comparing.ask = false
			woken(all[node].l.wake)
		}
		return nodes
	}
	assign := func() {
		r.assign(time.Now())
		for _, in := range all {
			in.l.requests(nil, r.localMaps(), time.Now()) // sends what is to be requested
		}
	}
	answer := func(node string) {
		all[node].takeOwnersSent(&mapsyncv1.OwnersSent{Serial: all[node].requesting.serial})
	}
	assign()
	answer("x")
	answer("y")
	asked()
	m.settled.Store(false)
	if assign(); !m.settled.Load() || asked() != "xy" || !woken(s.wake) || !slices.Equal(*m.sources.Load(), []string{"x", "y"}) {
		t.Errorf("settled %t, sources %v", m.settled.Load(), *m.sources.Load())
	}
	if assign(); !m.settled.Load() || asked() != "" || woken(s.wake) {
		t.Error("nothing has changed, and digests are compared, or the sources sent")
	}
	// Another membership, without a change of what is requested.
	r.SetPeers([]Peer{{Node: "x", Incarnation: 1}, {Node: "y", Incarnation: 3}, {Node: "w", Incarnation: 9}})
	asked()
	if assign(); asked() != "xy" {
		t.Error("digests are not compared under the new membership")
	}
	all["y"].synced = false
	if assign(); !slices.Equal(*m.sources.Load(), []string{"x"}) || !woken(s.wake) {
		t.Errorf("sources %v", *m.sources.Load())
	}
	// The answer of x is outstanding.
	all["x"].requesting.confirmed = 0
	if assign(); m.settled.Load() || asked() != "" {
		t.Error("settled although an answer is outstanding")
	}
	answer("x")
	assign()
	asked()
	// The fallback sender does not serve the map for a moment.
	all["x"].state = StateWaiting
	if assign(); m.settled.Load() {
		t.Error("settled although nothing comes from the fallback sender")
	}
	all["x"].state, all["y"].state, all["y"].requesting.confirmed, all["y"].synced = StateCaughtUp, StateWaiting, 0, true
	if assign(); !m.settled.Load() || asked() != "xy" || !slices.Equal(*m.sources.Load(), []string{"x"}) {
		t.Error("a peer that does not serve the map is waited for, or is a source")
	}
	// Another membership while an answer is owed.
	all["x"].requesting.confirmed = 0
	r.SetPeers([]Peer{{Node: "x", Incarnation: 1}, {Node: "y", Incarnation: 3}})
	asked()
	if assign(); asked() != "" {
		t.Error("digests are compared before everything has come")
	}
}

// TestRecordsComeThroughAnother: of a live peer from which nothing comes they are requested of one that
// receives from it, and of it again once that is over.
func TestRecordsComeThroughAnother(t *testing.T) {
	r, all := cluster(t, Peer{Node: "x", Incarnation: 1}, Peer{Node: "c", Incarnation: 3})
	all["c"].state, all["c"].requesting.good = StateWaiting, time.Now().Add(-time.Hour)
	all["x"].requesting.sources = []string{"c"}
	r.assign(time.Now())
	if via, nodes := all["c"].requesting.via, all["x"].requesting.wanted.nodes; via != "x" || !slices.Equal(nodes, []string{"c"}) {
		t.Errorf("through %q, requested of x: %v", via, nodes)
	}
	all["c"].state = StateCaughtUp
	r.assign(time.Now())
	if via, nodes := all["c"].requesting.via, all["x"].requesting.wanted.nodes; via != "" || len(nodes) != 0 {
		t.Errorf("through %q, requested of x: %v", via, nodes)
	}
}
