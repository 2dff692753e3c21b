package peers

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
)

const (
	keyOne = "0123456789abcdef"
	keyTwo = "fedcba9876543210fedcba9876543210"
)

// TestJoined checks that Joined ends with the members of the other nodes, and after a first attempt that reached none.
func TestJoined(t *testing.T) {
	t.Parallel()
	awaited := func(c *node) []Member {
		t.Helper()
		select {
		case <-c.Joined():
		case <-time.After(poll.Limit):
			t.Fatal("Joined: got not closed, want closed")
		}
		return c.Members()
	}
	slow := func(o *Options) { o.DeadTime = 2 * poll.Limit } // no node suspects another one
	a := start(t, "a", keys(keyOne), slow)
	if got := awaited(a); len(got) != 0 {
		t.Errorf("members without join: got %v, want none", got)
	}
	b := start(t, "b", keys(keyOne), slow, joining(a))
	poll.Eventually(t, "a and b see each other", func() bool { return a.sees(b) && b.sees(a) })
	c := start(t, "c", keys(keyOne), slow, joining(b))
	if got := awaited(c); len(got) != 2 {
		t.Errorf("members after the join: got %v, want a and b", got)
	}
	if got := awaited(start(t, "d", keys(keyOne), func(o *Options) { o.Join = []string{"127.0.0.1:1"} })); len(got) != 0 {
		t.Errorf("members after a failed join: got %v, want none", got)
	}
}

// TestJoinedWaitsForAllAddresses checks that Joined does not end with the first address that answers: its node may not have all
// members.
func TestJoinedWaitsForAllAddresses(t *testing.T) {
	t.Parallel()
	slow := func(o *Options) { o.DeadTime = 2 * poll.Limit }
	a := start(t, "a", keys(keyOne), slow)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatalf("listen: got error %v, want nil", err)
	}
	b := start(t, "b", keys(keyOne), slow, func(o *Options) { o.Join = []string{a.GossipAddr(), silent.Addr().String()} })
	conn, err := silent.Accept()
	if err != nil {
		t.Fatalf("accept: got error %v, want nil", err)
	}
	poll.Eventually(t, "b has joined a", func() bool { return b.sees(a) })
	if b.hasJoined() {
		t.Error("Joined before the second address has answered: got closed, want open")
	}
	_, _ = conn.Close(), silent.Close()
	poll.Eventually(t, "the first attempt has ended", b.hasJoined)
}

func TestJoinAndLeave(t *testing.T) {
	t.Parallel()
	// A node that leaves is gone long before it would count as dead.
	slow := func(o *Options) { o.DeadTime = 2 * poll.Limit }
	a := start(t, "a", keys(keyOne), slow)
	changes := make(chan struct{}, 1)
	cancel := a.Subscribe(changes)
	// c joins only b, so gossip must spread the membership.
	b := start(t, "b", keys(keyOne), slow, joining(a))
	c := start(t, "c", keys(keyOne), slow, joining(b))
	poll.Eventually(t, "all see each other", func() bool { return a.sees(b, c) && b.sees(a, c) && c.sees(a, b) })
	select {
	case <-changes:
	default:
		t.Error("subscriber: got no notification of two joins, want one")
	}
	if err := b.JoinError(); err != nil {
		t.Errorf("JoinError after joining: got %v, want nil", err)
	}

	if err := c.stop(); err != nil {
		t.Fatal(err)
	}
	poll.Eventually(t, "c has left", func() bool { return a.sees(b) && b.sees(a) })
	cancel()
	cancel()
	for len(changes) > 0 {
		<-changes
	}
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	poll.Eventually(t, "b has left", func() bool { return a.sees() })
	if len(changes) > 0 {
		t.Error("subscriber: got a notification after cancel, want none")
	}
	if s := a.Stats(); s.Joined != 2 || s.Gone != 2 || s.Members != 0 {
		t.Errorf("stats: got %+v, want 2 joined, 2 gone", s)
	}
	if err := a.Run(t.Context()); err == nil {
		t.Error("second Run: got nil, want an error")
	}
}

// TestNodesLeaveTogether checks that nodes that stop at the same moment stop without an error, also if
// the leave message of one of them reaches no other node.
func TestNodesLeaveTogether(t *testing.T) {
	t.Parallel()
	for range 2 {
		a := start(t, "a", keys(keyOne))
		b := start(t, "b", keys(keyOne), joining(a))
		poll.Within(t, 5*time.Second, "both see each other", func() bool { return a.sees(b) && b.sees(a) })
		stopped := make(chan error, 2)
		for _, n := range []*node{a, b} {
			go func() { stopped <- n.stop() }()
		}
		for range 2 {
			if err := <-stopped; err != nil {
				t.Errorf("stop: got %v, want nil", err)
			}
		}
	}
}

// TestJoinRetriesUntilPeerStarts verifies that a node may start before the nodes that it joins.
func TestJoinRetriesUntilPeerStarts(t *testing.T) {
	t.Parallel()
	reserved, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := reserved.Addr().String()
	_ = reserved.Close()
	a := start(t, "a", func(o *Options) { o.Join = []string{addr, "no-such-host.invalid:7946"} })
	poll.Within(t, 20*time.Second, "an error for each address", func() bool {
		err := a.JoinError()
		return err != nil && strings.Contains(err.Error(), addr) && strings.Contains(err.Error(), "no-such-host")
	})
	if a.logs.count("level=WARN", "failed to reach any other node, retrying") != 1 {
		t.Error("failed join: want exactly one log line")
	}
	b := start(t, "b", func(o *Options) { o.BindAddr = addr })
	poll.Within(t, 20*time.Second, "a joins b", func() bool { return a.sees(b) && b.sees(a) })
	if err := a.JoinError(); err != nil {
		t.Errorf("JoinError after joining: got %v, want nil", err)
	}
}

func TestRestartAtOldAndNewAddress(t *testing.T) {
	t.Parallel()
	a := start(t, "a")
	b := start(t, "b", joining(a))
	c := start(t, "c", joining(a))
	poll.Within(t, 5*time.Second, "all see each other", func() bool { return a.sees(b, c) && b.sees(a, c) })

	// Restart on the same address at once: the peers detect only another incarnation, no death.
	c.kill(t)
	addr := c.GossipAddr()
	c = start(t, "c", joining(a), func(o *Options) { o.BindAddr = addr })
	poll.Within(t, 10*time.Second, "c's new incarnation", func() bool { return a.sees(b, c) && b.sees(a, c) && c.sees(a, b) })

	// Restart on another address at once: the peers accept it after they detect the old address as
	// dead.
	c.kill(t)
	began := time.Now()
	c = start(t, "c", joining(a))
	poll.Within(t, 15*time.Second, "c at its new address", func() bool { return a.sees(b, c) && b.sees(a, c) && c.sees(a, b) })
	t.Logf("accepted at another address after %v", time.Since(began))

	// Stay dead for some time.
	c.kill(t)
	began = time.Now()
	poll.Within(t, 10*time.Second, "c is detected as dead", func() bool { return a.sees(b) && b.sees(a) })
	t.Logf("detected as dead after %v", time.Since(began))
	c = start(t, "c", joining(b))
	poll.Within(t, 10*time.Second, "c is back", func() bool { return a.sees(b, c) && b.sees(a, c) && c.sees(a, b) })
	for _, n := range []*node{a, b, c} {
		if s := n.Stats(); s.NameConflicts != 0 || n.logs.count("level=ERROR") > 0 {
			t.Errorf("%s: after restarts: got %+v and %d errors in the log, want no name conflict and no errors",
				n.opts.NodeName, s, n.logs.count("level=ERROR"))
		}
	}
}

// TestDeadTimeOnLAN verifies the documented detection time of the default profile.
func TestDeadTimeOnLAN(t *testing.T) {
	t.Parallel()
	lan := func(o *Options) { o.Profile = "" }
	a := start(t, "a", lan)
	b := start(t, "b", lan, joining(a))
	c := start(t, "c", lan, joining(a))
	poll.Within(t, 5*time.Second, "all see each other", func() bool { return a.sees(b, c) && b.sees(a, c) && c.sees(a, b) })
	began := time.Now()
	c.kill(t)
	// A busy machine delays acknowledgements, and memberlist then probes more slowly.
	poll.Within(t, 3*defaultDeadTime(ProfileLAN), "c is detected as dead", func() bool { return a.sees(b) && b.sees(a) })
	took := time.Since(began)
	t.Logf("detected as dead after %v", took)
	if took < time.Second {
		t.Errorf("detection time: got %v, want about %v", took, defaultDeadTime(ProfileLAN))
	}
}

// TestRejoin verifies that a node finds a lost node again without a Join address.
func TestRejoin(t *testing.T) {
	t.Parallel()
	a := start(t, "a")
	b := start(t, "b", joining(a))
	poll.Within(t, 5*time.Second, "both see each other", func() bool { return a.sees(b) && b.sees(a) })
	b.kill(t)
	poll.Within(t, 10*time.Second, "b is detected as dead", func() bool { return a.sees() })
	addr := b.GossipAddr()
	b = start(t, "b", func(o *Options) { o.BindAddr = addr })
	poll.Within(t, 15*time.Second, "a rejoins b", func() bool { return a.sees(b) && b.sees(a) })
}

// TestRefresh verifies that Refresh contacts only the given member. Gossip alone would update the
// member later.
func TestRefresh(t *testing.T) {
	t.Parallel()
	a := start(t, "a")
	b := start(t, "b", joining(a))
	poll.Within(t, 5*time.Second, "both see each other", func() bool { return a.sees(b) && b.sees(a) })
	<-a.Joined() // the first attempt contacts the nodes that gossip knows by then
	before := a.Stats().JoinAttempts
	a.Refresh("absent")
	poll.Stays(t, 3*a.tick(), "no joins without a known member", func() bool { return a.Stats().JoinAttempts == before })
	a.Refresh("b")
	poll.Within(t, 5*time.Second, "a contacts b", func() bool { return a.Stats().JoinAttempts > before })
	if s := a.Stats(); s.JoinFailures != 0 || !a.sees(b) {
		t.Errorf("stats: got %+v with members %v, want no join failures, and b as the only member", s, a.Members())
	}
}

func TestNameConflict(t *testing.T) {
	t.Parallel()
	a := start(t, "a")
	b := start(t, "b", joining(a))
	poll.Within(t, 5*time.Second, "both see each other", func() bool { return a.sees(b) && b.sees(a) })
	impostor := start(t, "b", joining(a))
	for _, n := range []*node{a, impostor} {
		poll.Within(t, 10*time.Second, "the conflict is detected", func() bool {
			return n.Stats().NameConflicts > 0 && n.logs.count("level=ERROR", "two live nodes have the same name", "name=b") == 1
		})
	}
	if !a.sees(b) {
		t.Errorf("members: got %v, want only the first owner of the name", a.Members())
	}
}

func TestCloseWithoutRun(t *testing.T) {
	t.Parallel()
	c, err := New(Options{NodeName: "a", Incarnation: 1, BindAddr: "127.0.0.1:0", ServiceAddr: "127.0.0.1:7947"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := c.Run(context.Background()); err != nil {
		t.Errorf("Run after Close: got %v, want nil", err)
	}
}

// TestStopWhileJoining verifies that an unresponsive peer does not delay a shutdown.
func TestStopWhileJoining(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }()
	a := start(t, "a", func(o *Options) { o.Join = []string{silent.Addr().String()}; o.Profile = ProfileWAN })
	conn, err := silent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	began := time.Now()
	if err := a.stop(); err != nil {
		t.Error(err)
	}
	if took, most := time.Since(began), defaultDeadTime(ProfileWAN); took > most/2 {
		t.Errorf("stop: got %v, want less than the %v that a connection may take", took, most)
	}
}

func TestNewRejectsInvalidOptions(t *testing.T) {
	t.Parallel()
	good := Options{NodeName: "a", Incarnation: 1, BindAddr: "127.0.0.1:0", ServiceAddr: "127.0.0.1:7947"}
	taken, err := New(good)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	for want, change := range map[string]func(*Options){
		"node name is empty":       func(o *Options) { o.NodeName = "" },
		"characters other than":    func(o *Options) { o.NodeName = "a/b" },
		"incarnation is zero":      func(o *Options) { o.Incarnation = 0 },
		"wildcard or multicast":    func(o *Options) { o.ServiceAddr = "0.0.0.0:7947" },
		"has port 0":               func(o *Options) { o.ServiceAddr = "10.0.0.1:0" },
		"set the address to adv":   func(o *Options) { o.BindAddr = ":7946" },
		"advertised gossip addr":   func(o *Options) { o.AdvertiseAddr = "[::]:7946" },
		"has no plain IP address":  func(o *Options) { o.BindAddr = "localhost:7946" },
		"has 5 bytes":              keys("short"),
		"profile \"moon\" is unkn": func(o *Options) { o.Profile = "moon" },
		"dead time 1ms is shorter": func(o *Options) { o.DeadTime = time.Millisecond },
		"join: parse address":      func(o *Options) { o.Join = []string{"10.0.0.2"} },
		"address already in use":   func(o *Options) { o.BindAddr = taken.GossipAddr() },
	} {
		opts := good
		change(&opts)
		c, err := New(opts)
		if err == nil {
			_ = c.Close()
			t.Errorf("New: got nil, want an error with %q", want)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("New: got error %q, want it to contain %q", err, want)
		}
	}
}
