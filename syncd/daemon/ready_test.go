package daemon_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/peers"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/config"
	"mapsync/syncd/problem"

	"github.com/cilium/ebpf"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// readyz requests /readyz. A code of 0 means that the node does not answer.
func (n *node) readyz() (code int, body string) { return n.get("/readyz") }

// get returns a page of the metrics listener, and 0 if it does not answer.
func (n *node) get(path string) (code int, body string) {
	response, err := http.Get("http://" + n.config.MetricsListen + path)
	if err != nil {
		return 0, ""
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(text)
}

// serving reports whether the gRPC health service reports serving. It must return the same for
// all service names.
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
		n.t.Fatalf("health of the two services: got %v, want them equal", answers)
	}
	return answers[0] == healthv1.HealthCheckResponse_SERVING
}

// lacks returns how many of the entries [0, count) with value v the map does not hold. It begins
// with the last written entries, because they arrive last: this detects a node that reports ready
// too early.
func lacks(m *ebpf.Map, count, v uint64) (missing int) {
	value := make([]byte, m.ValueSize())
	for i := count; i > 0; i-- {
		key, _ := pair(i-1, 0)
		if err := m.Lookup(key, value); err != nil || binary.LittleEndian.Uint64(value) != v {
			missing++
		}
	}
	return missing
}

// readyWith polls n in a tight loop until it is ready. At that moment its map m must hold all
// entries.
func (n *node) readyWith(m *ebpf.Map, entries uint64, round int) {
	n.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; {
		if code, body := n.readyz(); code == http.StatusOK {
			if missing := lacks(m, entries, 7); missing > 0 {
				n.t.Fatalf("round %d: entries missing when ready: got %d, want 0", round, missing)
			}
			return
		} else if time.Now().After(deadline) {
			n.t.Fatalf("round %d: not ready within 30 s: %s", round, body)
		}
	}
}

// The test polls a joiner in a tight loop, and checks its kernel map at the moment at which it
// reports that it is ready.
func TestReadyOnlyWhenInSync(t *testing.T) {
	const entries = 40_000
	dir := pinDir(t)
	path1, path2 := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	m1 := pinned(t, path1, 8, 8, 2*entries)
	n1 := newNode(t, 1, "ct="+path1)
	n1.start()
	poll.Eventually(t, "the first node is ready alone", func() bool { return n1.status().Ready })
	n1.write(m1, 0, entries, 7)
	poll.Eventually(t, "the first node has all events", func() bool { return n1.status().Maps[0].Live == entries })
	for round := range 4 {
		m2 := pinned(t, path2, 8, 8, 2*entries)
		n2 := newNode(t, 2, "ct="+path2)
		n2.config.SyncTimeout = poll.Limit
		stopWrites := func() {}
		if round%2 == 1 { // with traffic during the join
			stopWrites = writeLoop(t, func(v uint64) { n1.write(m1, entries, entries+500, v) })
		}
		n2.start()
		n2.readyWith(m2, entries, round)
		if code, _ := n1.readyz(); code != http.StatusOK {
			t.Errorf("round %d: first node after a join: got not ready, want ready", round)
		}
		stopWrites()
		n2.stop()
		poll.Eventually(t, "the second node has left", func() bool { return len(n1.status().Peers) == 0 })
	}
}

// A load balancer that has created a new map asks whether it may start, before the watcher has
// detected the map.
func TestReadyAfterMapReplacement(t *testing.T) {
	const entries = 2000
	path := filepath.Join(pinDir(t), "one")
	m := pinned(t, path, 8, 8, 2*entries)
	n := newNode(t, 1, "ct="+path)
	n.config.Join = nil
	n.start()
	poll.Eventually(t, "the node is ready", func() bool { return n.status().Ready })
	n.write(m, 0, entries, 7)
	// Events that syncd has not read yet are lost with the map.
	poll.Eventually(t, "the table has the entries", func() bool { return n.status().Maps[0].Live == entries })
	for round := range 10 {
		m = pinned(t, path, 8, 8, 2*entries)
		poll.Eventually(t, "the node is ready with the new map", func() bool {
			code, _ := n.readyz()
			r, err := n.client.Ready(t.Context())
			ready := code == http.StatusOK || err == nil && r.Ready
			if missing := lacks(m, entries, 7); ready && missing > 0 {
				t.Fatalf("round %d: entries missing when ready: got %d, want 0", round, missing)
			}
			return ready
		})
	}
}

// Two nodes start together. When the second node requests the records, the first node has not yet
// adopted the entries found in its map. The second node must wait for these entries, too.
func TestReadyWaitsForEntriesThatAPeerAdopts(t *testing.T) {
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
		n1.config.SyncTimeout, n2.config.SyncTimeout = poll.Limit, poll.Limit
		if round%2 == 0 {
			n1.start()
			n2.start()
		} else {
			n2.start()
			n1.start()
		}
		// A node that has not reached the other node must not be ready alone before sync-timeout.
		n2.readyWith(m2, entries, round)
		n1.stop()
		n2.stop()
	}
}

// silentMember returns the address of the silent member. It differs from those of the nodes.
func silentMember() string { return loopback(9) }

// startSilentMember starts a member of the cluster that gossips and does not replicate. It answers
// the nodes in withoutMap that it lacks their maps.
func startSilentMember(t *testing.T, join string, withoutMap ...string) (leave func()) {
	t.Helper()
	c, err := peers.New(peers.Options{
		NodeName: "mute", Incarnation: 1, BindAddr: silentMember() + ":7946", Join: []string{join},
		ServiceAddr: silentMember() + ":7947", DeadTime: time.Second, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", silentMember()+":7947")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	mapsyncv1.RegisterReplicationServiceServer(server, welcomeOnly{withoutMap: withoutMap})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- c.Run(ctx) }()
	leave = sync.OnceFunc(func() {
		cancel()
		server.Stop()
		<-served
		<-done
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(leave)
	return leave
}

// welcomeOnly proves the name of the silent node, and then sends nothing, except to the nodes in
// withoutMap: it answers their subscriptions with MapPending.
type welcomeOnly struct {
	mapsyncv1.UnimplementedReplicationServiceServer
	withoutMap []string
}

func (s welcomeOnly) Subscribe(stream mapsyncv1.ReplicationService_SubscribeServer) error {
	hello, err := stream.Recv()
	if err != nil {
		return err
	}
	err = stream.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Welcome{
		Welcome: &mapsyncv1.Welcome{ProtocolVersion: 2, Self: &mapsyncv1.Incarnation{Node: "mute", Number: 1}},
	}})
	for err == nil && slices.Contains(s.withoutMap, hello.GetHello().GetSelf().GetNode()) {
		var request *mapsyncv1.SubscribeRequest
		if request, err = stream.Recv(); err != nil {
			break
		}
		switch request := request.GetMessage().(type) {
		case *mapsyncv1.SubscribeRequest_ClockProbe:
			now := uint64(time.Now().UnixNano())
			err = stream.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_ClockReply{
				ClockReply: &mapsyncv1.ClockReply{ProbeSent: request.ClockProbe.GetSent(), Received: now, Clock: now},
			}})
		case *mapsyncv1.SubscribeRequest_Subscribe:
			err = stream.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Pending{
				Pending: &mapsyncv1.MapPending{Map: request.Subscribe.GetMap()},
			}})
		}
	}
	<-stream.Context().Done()
	return err
}

// A peer in its initial sync sends no records yet. A node does not count its map as complete before that
// peer has sent them: absent keys would become deletes at the node's next start.
func TestIdentityIsSavedOnceAllPeersHaveSent(t *testing.T) {
	n1, n2, m1, m2 := twoNodes(t, 100)
	for i := range uint64(10) {
		if err := m2.Put(pair(i, 7)); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []*node{n1, n2} {
		n.config.Join = append(n.config.Join, silentMember()+":7946")
	}
	leave := startSilentMember(t, n2.config.GossipListen, "n1")
	n2.config.SyncTimeout = time.Minute // n2 waits for the silent node
	n2.start()
	poll.Eventually(t, "the silent node is a peer of n2", func() bool { return len(n2.status().Peers) == 1 })
	n1.start()
	poll.Eventually(t, "n1 replicates", func() bool {
		s := n1.status()
		return len(s.Peers) == 2 && s.Maps[0].State == "replicating"
	})
	poll.Stays(t, 300*time.Millisecond, "n2's map is syncing, and n1's state file lacks the map", func() bool {
		return n2.status().Maps[0].State == "syncing" && n1.savedMapID() == nil
	}, func() any { return fmt.Sprintf("%s, id %v", n2.status().Maps[0].State, n1.savedMapID()) })
	leave()
	poll.Eventually(t, "n1 holds the records of n2", func() bool { return holds(t, m1, 10, 7) })
	n1.waitIdentitySaved(m1)
}

func TestOnReadyTimeout(t *testing.T) {
	for _, setting := range []string{config.ReadyClosed, config.ReadyOpen} {
		t.Run(setting, func(t *testing.T) {
			dir := pinDir(t)
			pinned(t, filepath.Join(dir, "ct"), 8, 8, 100)
			n := newNode(t, 1, filepath.Join(dir, "ct"))
			n.config.OnReadyTimeout, n.config.Join = setting, []string{silentMember() + ":7946"}
			n.config.SyncTimeout = 8 * time.Second
			leave := startSilentMember(t, n.config.GossipListen)
			n.start()
			poll.Eventually(t, "the silent node is a peer", func() bool { return len(n.status().Peers) == 1 })
			if s := n.status(); s.Ready || n.serving() {
				t.Fatal("node before sync-timeout: got ready, want not ready")
			}
			n.shows("not-ready", problem.Critical, "mute")
			poll.Eventually(t, "the log reports sync-timeout", func() bool { return n.log.contains("within sync-timeout") })
			if setting == config.ReadyOpen {
				poll.Eventually(t, "the node is ready without proof", func() bool { s := n.status(); return s.Ready && len(s.Unproven) == 1 })
				poll.Eventually(t, "the health service reports serving", n.serving)
				n.shows("ready-unproven", problem.Warning, "mute")
				if s := n.status(); !strings.Contains(s.Unproven[0], "mute") || !n.log.contains("without proof") {
					t.Errorf("unproven: got %q, want the silent peer, and \"without proof\" in the log", s.Unproven)
				}
			} else {
				code, body := 0, ""
				poll.Stays(t, 300*time.Millisecond, "readyz reports 503 and the silent peer", func() bool {
					code, body = n.readyz()
					return code == http.StatusServiceUnavailable && strings.Contains(body, "mute") && !n.serving()
				}, func() any { return fmt.Sprintf("got status %d, %s", code, body) })
			}
			leave()
			poll.Eventually(t, "the node is ready with proof after the silent peer has left", func() bool { s := n.status(); return s.Ready && len(s.Unproven) == 0 })
			n.ends("not-ready")
			n.ends("ready-unproven")
		})
	}
}

// Entries that never fitted into a map do not count as deleted when syncd starts again.
func TestTooSmallMapIdentityIsNotSaved(t *testing.T) {
	n1, _, m1, m2 := syncedPair(t)
	n1.waitIdentitySaved(m1)
	small := pinned(t, n1.pin, 8, 8, 100)
	poll.Eventually(t, "the smaller map is full", func() bool {
		_, body := n1.readyz()
		return n1.status().Maps[0].State == "replicating" && strings.Contains(body, "400 entries do not go into the kernel map")
	})
	absent := func() bool { return n1.savedMapID() != float64(idOf(t, small)) }
	poll.Stays(t, 200*time.Millisecond, "the state file lacks the map that does not hold all entries", absent)
	n1.stop()
	if !absent() {
		t.Error("state file: got a map that does not hold all entries, want it absent")
	}
	n1.start()
	poll.Eventually(t, "the map is replicating again", func() bool { return n1.status().Maps[0].State == "replicating" })
	poll.Stays(t, 200*time.Millisecond, "the peer's map holds 500 entries", func() bool { return holds(t, m2, 500, 7) })
}
