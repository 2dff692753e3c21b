package daemon_test

import (
	"context"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mapsync/peers"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/config"

	"github.com/cilium/ebpf"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// readyz asks /readyz; 0 says that nobody answers.
func (n *node) readyz() (code int, body string) {
	response, err := http.Get("http://" + n.config.MetricsListen + "/readyz")
	if err != nil {
		return 0, ""
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(text)
}

// serving asks the gRPC health service, of which it wants one answer for all names.
func (n *node) serving() bool {
	n.t.Helper()
	conn, err := grpc.NewClient(n.config.GRPCListen, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	defer conn.Close()
	var answers []healthv1.HealthCheckResponse_ServingStatus
	for _, service := range []string{"", "mapsync.v1.ReplicationService"} {
		r, err := healthv1.NewHealthClient(conn).Check(n.t.Context(), &healthv1.HealthCheckRequest{Service: service})
		if err != nil {
			n.t.Fatal(err)
		}
		answers = append(answers, r.Status)
	}
	if answers[0] != answers[1] {
		n.t.Fatalf("health is %v", answers)
	}
	return answers[0] == healthv1.HealthCheckResponse_SERVING
}

// lacks returns how many of the entries [0, count) with value v the map does not hold. It
// begins with those that were written last, as they are the last to come: whoever
// lies is caught before the truth has caught up.
func lacks(m *ebpf.Map, count, v uint64) (missing int) {
	value := make([]byte, 8)
	for i := count; i > 0; i-- {
		key, _ := pair(i-1, 0)
		if err := m.Lookup(key, value); err != nil || binary.LittleEndian.Uint64(value) != v {
			missing++
		}
	}
	return missing
}

// readyWith asks n in a tight loop until it is ready, and looks at that very moment whether its
// map m lacks any of the entries.
func (n *node) readyWith(m *ebpf.Map, entries uint64, round int) {
	n.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; {
		if code, body := n.readyz(); code == http.StatusOK {
			if missing := lacks(m, entries, 7); missing > 0 {
				n.t.Fatalf("round %d: ready, and %d entries are missing", round, missing)
			}
			return
		} else if time.Now().After(deadline) {
			n.t.Fatalf("round %d: not ready: %s", round, body)
		}
	}
}

// A joiner is asked in a tight loop, and its kernel map looked at the moment that
// it says that it is ready.
func TestReadyNeverComesBeforeEquality(t *testing.T) {
	const entries = 40_000
	dir := pinDir(t)
	path1, path2 := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	m1 := pinned(t, path1, 8, 8, 2*entries)
	n1 := newNode(t, 1, "ct="+path1)
	n1.start()
	eventually(t, "the first is ready alone", func() bool { return n1.status().Ready })
	n1.write(m1, 0, entries, 7)
	for round := range 4 {
		m2 := pinned(t, path2, 8, 8, 2*entries)
		n2 := newNode(t, 2, "ct="+path2)
		quiet := func() {}
		if round%2 == 1 { // traffic goes on meanwhile
			quiet = busy(t, func(v uint64) { n1.write(m1, entries, entries+500, v) })
		}
		n2.start()
		n2.readyWith(m2, entries, round)
		if code, _ := n1.readyz(); code != http.StatusOK {
			t.Errorf("round %d: the first is not ready any more because a peer joined", round)
		}
		quiet()
		n2.stop()
		eventually(t, "the second has left", func() bool { return len(n1.status().Peers) == 0 })
	}
}

// A load balancer that has made a new map asks whether it may begin, before anybody can
// have noticed the map.
func TestReadyIsNotThatOfAnOldMap(t *testing.T) {
	const entries = 2000
	path := filepath.Join(pinDir(t), "one")
	m := pinned(t, path, 8, 8, 2*entries)
	n := newNode(t, 1, "ct="+path)
	n.config.Join = nil
	n.start()
	eventually(t, "ready", func() bool { return n.status().Ready })
	n.write(m, 0, entries, 7)
	for round := range 10 {
		m = pinned(t, path, 8, 8, 2*entries)
		eventually(t, "ready with the new map", func() bool {
			code, _ := n.readyz()
			r, err := n.client.Ready(t.Context())
			ready := code == http.StatusOK || err == nil && r.Ready
			if missing := lacks(m, entries, 7); ready && missing > 0 {
				t.Fatalf("round %d: ready, and %d entries are missing", round, missing)
			}
			return ready
		})
	}
}

// Two nodes start together, and what the one has found in its map is not yet its own
// when the other asks: that is not all that it has to tell.
func TestReadyWaitsForWhatAPeerHasYetToClaim(t *testing.T) {
	const entries = 20_000
	dir := pinDir(t)
	for round := range 4 {
		path1, path2 := filepath.Join(dir, "one"), filepath.Join(dir, "two")
		m1, m2 := pinned(t, path1, 8, 8, entries), pinned(t, path2, 8, 8, entries)
		for i := range uint64(entries) {
			key, value := pair(i, 7)
			if err := m1.Put(key, value); err != nil {
				t.Fatal(err)
			}
		}
		n1, n2 := newNode(t, 1, "ct="+path1), newNode(t, 2, "ct="+path2)
		if round%2 == 0 {
			n1.start()
			n2.start()
		} else {
			n2.start()
			n1.start()
		}
		// A node that has not met the other yet is ready alone, and must not be: sync-timeout is 2 s.
		n2.readyWith(m2, entries, round)
		n1.stop()
		n2.stop()
	}
}

// mute is a member of the cluster that gossips and does not replicate.
func mute(t *testing.T, join string) (leave func()) {
	t.Helper()
	c, err := peers.New(peers.Options{
		NodeName: "mute", Incarnation: 1, BindAddr: "127.0.1.9:7946", Join: []string{join},
		ServiceAddr: "127.0.1.9:7947", DeadTime: time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.1.9:7947")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	mapsyncv1.RegisterReplicationServiceServer(server, welcomer{})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- c.Run(ctx) }()
	return func() {
		cancel()
		server.Stop()
		<-served
		<-done
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
}

// welcomer proves the name of the mute node, and then sends nothing.
type welcomer struct {
	mapsyncv1.UnimplementedReplicationServiceServer
}

func (welcomer) Subscribe(stream mapsyncv1.ReplicationService_SubscribeServer) error {
	err := stream.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Welcome{
		Welcome: &mapsyncv1.Welcome{ProtocolVersion: 1, Self: &mapsyncv1.Incarnation{Node: "mute", Number: 1}},
	}})
	<-stream.Context().Done()
	return err
}

func TestOnReadyTimeout(t *testing.T) {
	for _, setting := range []string{config.ReadyClosed, config.ReadyOpen} {
		t.Run(setting, func(t *testing.T) {
			dir := pinDir(t)
			pinned(t, filepath.Join(dir, "ct"), 8, 8, 100)
			n := newNode(t, 1, filepath.Join(dir, "ct"))
			n.config.OnReadyTimeout, n.config.Join = setting, []string{"127.0.1.9:7946"}
			leave := mute(t, n.config.GossipListen)
			n.start()
			eventually(t, "the mute peer is known", func() bool { return len(n.status().Peers) == 1 })
			if s := n.status(); s.Ready || n.serving() {
				t.Fatal("ready before sync-timeout")
			}
			eventually(t, "sync-timeout", func() bool { return n.log.contains("within sync-timeout") })
			if setting == config.ReadyOpen {
				eventually(t, "ready without proof", func() bool { s := n.status(); return s.Ready && len(s.Unproven) == 1 })
				eventually(t, "healthy", n.serving)
				if s := n.status(); !strings.Contains(s.Unproven[0], "mute") || !n.log.contains("WITHOUT proof") {
					t.Errorf("it does not say what is missing: %q", s.Unproven)
				}
			} else {
				time.Sleep(300 * time.Millisecond)
				code, body := n.readyz()
				if code != http.StatusServiceUnavailable || !strings.Contains(body, "mute") || n.serving() {
					t.Errorf("readyz: %d %s", code, body)
				}
			}
			leave()
			eventually(t, "proven once nobody is missing", func() bool { s := n.status(); return s.Ready && len(s.Unproven) == 0 })
		})
	}
}

// A node whose map cannot hold what peers know is not ready, and says why.
func TestAMapThatIsTooSmallIsNotReady(t *testing.T) {
	dir := pinDir(t)
	path1, path2 := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	m1, m2 := pinned(t, path1, 8, 8, 1000), pinned(t, path2, 8, 8, 350)
	n1, n2 := newNode(t, 1, "ct="+path1), newNode(t, 2, "ct="+path2)
	n1.start()
	eventually(t, "ready", func() bool { return n1.status().Ready })
	n1.write(m1, 0, 500, 7)
	n2.start()
	eventually(t, "it says what is missing", func() bool {
		_, body := n2.readyz()
		return strings.Contains(body, "150 entries do not go into the kernel map")
	})
	eventually(t, "the newest are there", func() bool {
		for i := range uint64(500) {
			key, _ := pair(i, 0)
			if found := m2.Lookup(key, make([]byte, 8)) == nil; found != (i >= 150) {
				return false
			}
		}
		return true
	})
	// A larger map, and it is.
	larger := pinned(t, path2, 8, 8, 1000)
	eventually(t, "ready", func() bool { return n2.status().Ready })
	if missing := lacks(larger, 500, 7); missing > 0 {
		t.Errorf("%d entries are missing", missing)
	}
	// What is full later takes nothing back.
	n1.write(m1, 500, 1000, 7)
	n1.write(m1, 0, 1, 8)
	eventually(t, "all came", func() bool { return lacks(larger, 1, 8) == 0 })
	if !n2.status().Ready {
		t.Error("not ready any more")
	}
}

// What never fitted into a map is not taken for deleted when syncd starts again.
func TestAMapThatIsTooSmallIsNotRemembered(t *testing.T) {
	n1, _, m1, m2 := equalPair(t)
	n1.waitRemembered(m1)
	small := pinned(t, n1.pin, 8, 8, 100)
	eventually(t, "the smaller map is full", func() bool {
		_, body := n1.readyz()
		return n1.status().Maps[0].State == "replicating" && strings.Contains(body, "400 entries do not go into the kernel map")
	})
	time.Sleep(200 * time.Millisecond)
	n1.stop()
	_, state := n1.readState()
	if id := state["kernel_maps"].(map[string]any)["ct"].(map[string]any)["id"]; id == float64(idOf(t, small)) {
		t.Error("the state file names a map that does not hold all")
	}
	n1.start()
	eventually(t, "replicating again", func() bool { return n1.status().Maps[0].State == "replicating" })
	time.Sleep(200 * time.Millisecond)
	if !holds(t, m2, 500, 7) {
		t.Error("the peer has lost entries")
	}
}
