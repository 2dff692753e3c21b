package replicate

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"mapsync/internal/poll"
)

// discover sets the nodes that gossip has.
func (n *node) discover(others ...Peer) { n.r.Discover(others) }

// livePeers returns the live peers of a node, by name.
func (n *node) livePeers() map[string]Peer { return n.r.view.Load().live }

// closedPort returns an address that refuses connections.
func closedPort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: got error %v, want nil", err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestUnverifiedNodesAreNotPeers checks that names which only gossip has do not become peers, that
// no node waits for them, and that they are listed.
func TestUnverifiedNodesAreNotPeers(t *testing.T) {
	a, b := startNode(t, "a", 1, nil), startNode(t, "b", 1, nil)
	a.discover(b.peer(), Peer{Node: "ghost", Incarnation: 5, Addr: closedPort(t)}, Peer{Node: "c", Incarnation: 5, Addr: b.addr})
	b.discover(a.peer())
	poll.Within(t, deadline, "b is verified and the others were dialled", func() bool {
		_, live := a.livePeers()["b"]
		return live && a.r.UndialledNodes() == 0
	})
	if peers := a.livePeers(); len(peers) != 1 {
		t.Errorf("peers: got %v, want b only", peers)
	}
	if names := a.r.Unverified(10); len(names) != 2 || names[0].Node != "c" || names[1].Node != "ghost" || names[1].Error == "" {
		t.Errorf("unverified nodes: got %+v, want c and ghost", names)
	}
	a.put(0, 10, 1)
	poll.Within(t, deadline, "b holds all records and a is in sync", func() bool {
		ok, _ := a.r.InitialSyncDone()
		return ok && len(live(b.tb)) == 10
	})
	if a.r.gone["ghost"] {
		t.Error("unverified node: got counted as gone, want not counted")
	}
}

// TestHealthyStreamOverridesGossip checks that a node with a healthy stream stays live at its
// address, independent of gossip.
func TestHealthyStreamOverridesGossip(t *testing.T) {
	a, b := startNode(t, "a", 1, nil), startNode(t, "b", 7, nil)
	a.discover(b.peer())
	b.discover(a.peer())
	connected := func() bool {
		_, p := a.status("b", testMap)
		return p.Connected && p.Incarnation == 7 && p.Addr == b.addr
	}
	poll.Within(t, deadline, "the node is connected", connected)
	connects := a.r.Stats().Connects
	for what, hint := range map[string][]Peer{
		"dead":      nil,
		"moved":     {{Node: "b", Incarnation: 7, Addr: closedPort(t)}},
		"restarted": {{Node: "b", Incarnation: 8, Addr: closedPort(t)}},
		"both":      {{Node: "b", Incarnation: 9, Addr: b.addr}},
	} {
		a.discover(hint...)
		poll.Stays(t, 300*time.Millisecond, what+": the peer is as it was", connected)
	}
	if n := a.r.Stats().Connects; n != connects {
		t.Errorf("new streams: got %d, want 0", n-connects)
	}
	a.discover()
	b.stop()
	poll.Within(t, deadline, "b is gone", func() bool { return len(a.livePeers()) == 0 })
	poll.Within(t, deadline, "b has left", func() bool {
		a.r.mu.Lock()
		defer a.r.mu.Unlock()
		return a.r.gone["b"]
	})
}

// TestHangingNodeIsRemoved checks that a node whose stream hangs and that gossip does not have is
// gone once the stream times out.
func TestHangingNodeIsRemoved(t *testing.T) {
	quick := func(o *Options) { o.receiveTimeout = 500 * time.Millisecond }
	a, b := startNode(t, "a", 1, nil, quick), startNode(t, "b", 1, nil)
	relay := newStallingRelay(t, b.addr)
	a.discover(Peer{Node: "b", Incarnation: 1, Addr: relay.addr})
	poll.Within(t, deadline, "the node is connected", func() bool { _, p := a.status("b", testMap); return p.Connected })
	relay.stall()
	poll.Stays(t, time.Second, "b is live while gossip has it", func() bool { return len(a.livePeers()) == 1 })
	a.discover()
	poll.Within(t, deadline, "b is gone", func() bool { return len(a.livePeers()) == 0 })
}

// TestRestartIsDetectedByWelcome checks that the Welcome of a restarted peer shows its new
// incarnation, independent of gossip.
func TestRestartIsDetectedByWelcome(t *testing.T) {
	a, b := startNode(t, "a", 1, nil), startNode(t, "b", 1, nil)
	a.discover(b.peer())
	poll.Within(t, deadline, "the node is connected", func() bool { _, p := a.status("b", testMap); return p.Connected })
	b.stop()
	again := startNode(t, "b", 2, nil)
	a.discover(Peer{Node: "b", Incarnation: 1, Addr: again.addr})
	poll.Within(t, deadline, "the later incarnation is live", func() bool {
		_, p := a.status("b", testMap)
		return p.Connected && p.Incarnation == 2 && p.Addr == again.addr
	})
}

// TestCallerBecomesPeer checks that a caller with a certificate becomes a peer although gossip does
// not have it.
func TestCallerBecomesPeer(t *testing.T) {
	var addr string
	a := startNode(t, "a", 1, nil)
	b := startNode(t, "b", 1, nil, func(o *Options) { o.Addr = func() string { return addr } })
	addr = b.addr
	a.discover()
	b.discover(a.peer())
	poll.Within(t, deadline, "the nodes have each other as live peers", func() bool {
		_, p := a.status("b", testMap)
		_, q := b.status("a", testMap)
		return p.Connected && q.Connected
	})
	b.stop()
	poll.Within(t, deadline, "b is gone", func() bool { return len(a.livePeers()) == 0 })
}

// TestNodeStartedInFutureIsRefused checks that a node with an incarnation in the future is refused:
// its incarnation would always win.
func TestNodeStartedInFutureIsRefused(t *testing.T) {
	a := startNode(t, "a", 1, nil)
	b := startNode(t, "b", uint64(time.Now().Add(time.Hour).UnixNano()), nil)
	c := startNode(t, "c", uint64(time.Now().UnixNano()), nil)
	a.discover(Peer{Node: "b", Incarnation: 1, Addr: b.addr}, c.peer())
	poll.Within(t, deadline, "c is verified and b was dialled", func() bool {
		_, live := a.livePeers()["c"]
		return live && a.r.UndialledNodes() == 0
	})
	if _, live := a.livePeers()["b"]; live {
		t.Error("live nodes: got b, want none")
	}
	if list := a.r.Unverified(9); len(list) != 1 || list[0].Ahead.Round(time.Minute) != time.Hour || !strings.Contains(list[0].Error, "max-clock-ahead") {
		t.Errorf("unverified nodes: got %+v, want the reason", list)
	}
	// A hint with the real incarnation, or with a later one, does not replace a live node.
	a.discover(b.peer(), Peer{Node: "c", Incarnation: b.peer().Incarnation, Addr: closedPort(t)})
	poll.Within(t, deadline, "b was dialled again", func() bool {
		list := a.r.Unverified(9)
		return len(list) == 1 && list[0].Peer == b.peer() && list[0].Ahead > 0
	})
	if live := a.livePeers(); len(live) != 1 || live["c"] != c.peer() {
		t.Errorf("live nodes: got %+v, want c as %+v only", live, c.peer())
	}
}

// TestDiscoveredNodesAreBounded discovers more nodes than maxDiscovered.
func TestDiscoveredNodesAreBounded(t *testing.T) {
	r, _ := newTestReplicator(t)
	hints := make([]Peer, 3*maxDiscovered)
	for i := range hints {
		hints[i] = Peer{Node: fmt.Sprintf("ghost%x", key(i)), Incarnation: 1, Addr: "192.0.2.1:1"}
	}
	r.Discover(hints)
	if n := len(r.verifier.nodes); n != maxDiscovered {
		t.Errorf("discovered nodes: got %d, want %d", n, maxDiscovered)
	}
	r.handleIntroduction(Peer{Node: "a", Incarnation: 1}.owner(), "192.0.2.1:2")
	if r.verifier.nodes["a"] == nil || len(r.verifier.nodes) != maxDiscovered {
		t.Errorf("caller with a certificate: got no room among %d nodes, want it among %d", len(r.verifier.nodes), maxDiscovered)
	}
}

// TestIntroducedNodesAreBounded checks that introduced nodes are bounded, too.
func TestIntroducedNodesAreBounded(t *testing.T) {
	r, _ := newTestReplicator(t)
	r.Discover(nil)
	for i := range 2 * maxDiscovered {
		r.handleIntroduction(Peer{Node: fmt.Sprintf("caller%x", key(i)), Incarnation: 1}.owner(), "192.0.2.1:1")
	}
	if n := len(r.verifier.nodes); n != maxDiscovered {
		t.Errorf("discovered nodes: got %d, want %d", n, maxDiscovered)
	}
}

// stallingRelay relays connections to an address until it stalls. It then relays no data and keeps
// the connections open.
type stallingRelay struct {
	addr  string
	stall func()
}

func newStallingRelay(t *testing.T, to string) *stallingRelay {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: got error %v, want nil", err)
	}
	stalled := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	pass := func(from, to net.Conn) {
		buf := make([]byte, 4096)
		for {
			n, err := from.Read(buf)
			select {
			case <-stalled:
			default:
				if _, failed := to.Write(buf[:n]); failed != nil && err == nil {
					err = failed
				}
			}
			if err != nil {
				_ = to.Close()
				return
			}
		}
	}
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, in, out)
			mu.Unlock()
			wg.Go(func() { pass(in, out) })
			wg.Go(func() { pass(out, in) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return &stallingRelay{l.Addr().String(), sync.OnceFunc(func() { close(stalled) })}
}

// TestFirstPeersAreAwaited checks that a node that starts has no peers before it has dialled each node of gossip, for at
// most 10 s. A member that reaches it first is not its only peer.
func TestFirstPeersAreAwaited(t *testing.T) {
	z := Peer{Node: "z", Incarnation: 1, Addr: verifyAddr}
	fixture := func() (*Replicator, *discoveredNode) {
		r, x := newVerifierFixture(t, discoveredNode{hint: peerX(5), attempted: true, dialling: true})
		r.verifier.liveChanged = true
		r.verifyNodes(t.Context(), at1000) // without a peer
		x.verified = peerX(5)
		y := &discoveredNode{hint: Peer{Node: "y", Incarnation: 1, Addr: verifyAddr}, dialling: true}
		r.verifier.nodes["y"], r.verifier.liveChanged = y, true
		r.verifyNodes(t.Context(), at1000)
		return r, y
	}
	r, y := fixture()
	if live := r.view.Load().live; len(live) != 0 || !r.verifier.liveChanged {
		t.Errorf("while y is dialled: got live nodes %v, want none", live)
	}
	y.attempted = true
	if r.verifyNodes(t.Context(), at1000); len(r.view.Load().live) != 1 {
		t.Errorf("after the attempt: got live nodes %v, want x", r.view.Load().live)
	}
	r.verifier.nodes["z"] = &discoveredNode{hint: z, dialling: true}
	y.verified, r.verifier.liveChanged = y.hint, true
	if r.verifyNodes(t.Context(), at1000); len(r.view.Load().live) != 2 {
		t.Errorf("later, while z is dialled: got live nodes %v, want x and y", r.view.Load().live)
	}
	r, _ = fixture()
	r.verifyNodes(t.Context(), at1000.Add(maxUndialledTime))
	if live := r.view.Load().live; len(live) != 0 {
		t.Errorf("after 10 s: got live nodes %v, want none yet", live)
	}
	if r.verifyNodes(t.Context(), at1000.Add(maxUndialledTime+1)); len(r.view.Load().live) != 1 {
		t.Errorf("after more than 10 s: got live nodes %v, want x", r.view.Load().live)
	}
}
