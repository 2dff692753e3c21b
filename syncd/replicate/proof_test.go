package replicate

import (
	"net"
	"strings"
	"sync"
	"testing"
	"time"
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
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// during checks a condition for a while.
func during(t *testing.T, d time.Duration, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if !cond() {
			t.Fatalf("no longer: %s", what)
		}
	}
}

// Names that only gossip has do not become peers. No node waits for them, and they are listed.
func TestUnprovenNamesCountForNothing(t *testing.T) {
	a, b := startNode(t, "a", 1, nil), startNode(t, "b", 1, nil)
	a.discover(b.peer(), Peer{Node: "ghost", Incarnation: 5, Addr: closedPort(t)}, Peer{Node: "c", Incarnation: 5, Addr: b.addr})
	b.discover(a.peer())
	eventually(t, "b is proved, and the others were tried", func() bool {
		_, live := a.livePeers()["b"]
		return live && a.r.Settling() == 0
	})
	if peers := a.livePeers(); len(peers) != 1 {
		t.Errorf("peers %v, want b alone", peers)
	}
	if names := a.r.Unproven(10); len(names) != 2 || names[0].Node != "c" || names[1].Node != "ghost" || names[1].Error == "" {
		t.Errorf("unproven %+v, want c and ghost", names)
	}
	a.put(0, 10, 1)
	eventually(t, "b has all, and a is in sync", func() bool {
		ok, _ := a.r.SyncedAll()
		return ok && len(live(b.tb)) == 10
	})
	if a.r.gone["ghost"] {
		t.Error("a ghost counts as departed")
	}
}

// A node with a healthy stream stays live in its place whatever gossip reports.
func TestHealthyStreamOutranksGossip(t *testing.T) {
	a, b := startNode(t, "a", 1, nil), startNode(t, "b", 7, nil)
	a.discover(b.peer())
	b.discover(a.peer())
	connected := func() bool {
		_, p := a.status("b", testMap)
		return p.Connected && p.Incarnation == 7 && p.Addr == b.addr
	}
	eventually(t, "connected", connected)
	connects := a.r.Stats().Connects
	for what, hint := range map[string][]Peer{
		"dead":      nil,
		"moved":     {{Node: "b", Incarnation: 7, Addr: closedPort(t)}},
		"restarted": {{Node: "b", Incarnation: 8, Addr: closedPort(t)}},
		"both":      {{Node: "b", Incarnation: 9, Addr: b.addr}},
	} {
		a.discover(hint...)
		during(t, 300*time.Millisecond, what+": the peer is as it was", connected)
	}
	if n := a.r.Stats().Connects; n != connects {
		t.Errorf("%d streams were opened meanwhile", n-connects)
	}
	a.discover()
	b.stop()
	eventually(t, "b is dead", func() bool { return len(a.livePeers()) == 0 })
	eventually(t, "b is departed", func() bool {
		a.r.mu.Lock()
		defer a.r.mu.Unlock()
		return a.r.gone["b"]
	})
}

// A node whose stream hangs and that gossip does not have is dead once the stream is silent.
func TestDeathBehindASilentStream(t *testing.T) {
	quick := func(o *Options) { o.silence = 500 * time.Millisecond }
	a, b := startNode(t, "a", 1, nil, quick), startNode(t, "b", 1, nil)
	relay := newStall(t, b.addr)
	a.discover(Peer{Node: "b", Incarnation: 1, Addr: relay.addr})
	eventually(t, "connected", func() bool { _, p := a.status("b", testMap); return p.Connected })
	relay.stall()
	during(t, time.Second, "b is live while gossip has it", func() bool { return len(a.livePeers()) == 1 })
	a.discover()
	eventually(t, "b is dead", func() bool { return len(a.livePeers()) == 0 })
}

// A peer that restarts is found by its welcome, whatever gossip says of its incarnation.
func TestRestartIsProvedByTheStream(t *testing.T) {
	a, b := startNode(t, "a", 1, nil), startNode(t, "b", 1, nil)
	a.discover(b.peer())
	eventually(t, "connected", func() bool { _, p := a.status("b", testMap); return p.Connected })
	b.stop()
	again := startNode(t, "b", 2, nil)
	a.discover(Peer{Node: "b", Incarnation: 1, Addr: again.addr})
	eventually(t, "the later incarnation", func() bool {
		_, p := a.status("b", testMap)
		return p.Connected && p.Incarnation == 2 && p.Addr == again.addr
	})
}

// A caller that has proved its name is found although gossip does not have it.
func TestCallersIntroduceThemselves(t *testing.T) {
	var addr string
	a := startNode(t, "a", 1, nil)
	b := startNode(t, "b", 1, nil, func(o *Options) { o.Addr = func() string { return addr } })
	addr = b.addr
	a.discover()
	b.discover(a.peer())
	eventually(t, "both have each other", func() bool {
		_, p := a.status("b", testMap)
		_, q := b.status("a", testMap)
		return p.Connected && q.Connected
	})
	b.stop()
	eventually(t, "b is dead", func() bool { return len(a.livePeers()) == 0 })
}

// A node that says that it started in the future is refused: its incarnation would win for
// ever.
func TestIncarnationFromTheFuture(t *testing.T) {
	a := startNode(t, "a", 1, nil)
	b := startNode(t, "b", uint64(time.Now().Add(time.Hour).UnixNano()), nil)
	c := startNode(t, "c", uint64(time.Now().UnixNano()), nil)
	a.discover(Peer{Node: "b", Incarnation: 1, Addr: b.addr}, c.peer())
	eventually(t, "c is proved, and b was tried", func() bool {
		_, live := a.livePeers()["c"]
		return live && a.r.Settling() == 0
	})
	if _, live := a.livePeers()["b"]; live {
		t.Error("b is live")
	}
	if list := a.r.Unproven(9); len(list) != 1 || list[0].Ahead.Round(time.Minute) != time.Hour || !strings.Contains(list[0].Error, "max-clock-ahead") {
		t.Errorf("the reason is not there: %+v", list)
	}
	// Gossip with the true incarnation changes nothing, and none replaces a live node.
	a.discover(b.peer(), Peer{Node: "c", Incarnation: b.peer().Incarnation, Addr: closedPort(t)})
	eventually(t, "b was tried again", func() bool {
		list := a.r.Unproven(9)
		return len(list) == 1 && list[0].Peer == b.peer() && list[0].Ahead > 0
	})
	if live := a.livePeers(); len(live) != 1 || live["c"] != c.peer() {
		t.Errorf("live: %+v", live)
	}
}

func TestProspectsAreBounded(t *testing.T) {
	r, _ := newReceiver(t)
	hints := make([]Peer, 3*maxProspects)
	for i := range hints {
		hints[i] = Peer{Node: "ghost" + string(key(i)), Incarnation: 1, Addr: "192.0.2.1:1"}
	}
	r.Discover(hints)
	if n := len(r.proofs.prospects); n != maxProspects {
		t.Errorf("%d prospects, want %d", n, maxProspects)
	}
	r.introduced(Peer{Node: "a", Incarnation: 1}.owner(), "192.0.2.1:2")
	if r.proofs.prospects["a"] == nil || len(r.proofs.prospects) != maxProspects {
		t.Error("no room is left for a caller with a certificate")
	}
}

// TestIntroducedProspectsAreBounded: callers with certificates take bounded memory too.
func TestIntroducedProspectsAreBounded(t *testing.T) {
	r, _ := newReceiver(t)
	r.Discover(nil)
	for i := range 2 * maxProspects {
		r.introduced(Peer{Node: "caller" + string(key(i)), Incarnation: 1}.owner(), "192.0.2.1:1")
	}
	if n := len(r.proofs.prospects); n != maxProspects {
		t.Errorf("%d prospects, want %d", n, maxProspects)
	}
}

// stalling relays connections to an address until it stalls: then nothing passes, and
// nothing ends.
type stalling struct {
	addr  string
	stall func()
}

func newStall(t *testing.T, to string) *stalling {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
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
	return &stalling{l.Addr().String(), sync.OnceFunc(func() { close(stalled) })}
}
