package replicate

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"mapsync/internal/poll"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// TestCommandsWhilePeersReconnect calls every function that operators and membership call, in a
// loop, while streams in both directions break and reconnect. Each call must return.
func TestCommandsWhilePeersReconnect(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	a := startNode(t, "a", 1, newKeyedTable(t, table.Owner{Node: "a", Incarnation: 1}, "k"), shortCompare)
	b := startNode(t, "b", 1, newKeyedTable(t, table.Owner{Node: "b", Incarnation: 1}, "k"), shortCompare)
	c := startNode(t, "c", 1, newKeyedTable(t, table.Owner{Node: "c", Incarnation: 1}, "k"), shortCompare)
	a.put(0, 100, 1)
	connectNodes(a, b, c)
	poll.Within(t, deadline, "the nodes are in sync", nodesInSync(a, b, c))

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() { resubscribe(ctx, t, b, a.addr, fmt.Sprint("p", i)) })
	}
	calls := newCallMonitor(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	short := func(fn func(context.Context) error) func() {
		return func() {
			ctx, stop := context.WithTimeout(ctx, 2*time.Millisecond)
			defer stop()
			_ = fn(ctx)
		}
	}
	for name, fn := range map[string]func(){
		"resync":   short(func(ctx context.Context) error { return a.r.Resync(ctx, testMap, func([]string, int, int) {}) }),
		"diff":     short(func(ctx context.Context) error { _, err := a.r.Diff(ctx, testMap, "b"); return err }),
		"status":   func() { a.r.Status() },
		"stats":    func() { a.r.Stats() },
		"synced":   func() { a.r.InitialSyncDone() },
		"agreed":   func() { a.r.InSync() },
		"dump":     func() { live(a.tb) },
		"scribble": func() { applyRandomChanges(a.tb, rnd) },
		"cut":      func() { a.lis.cut(); b.lis.cut(); time.Sleep(5 * time.Millisecond) }, // the rate of the cuts
		"peers": func() {
			connectNodes(a, b, c)
			time.Sleep(time.Millisecond) // c is a peer for this time
			connectNodes(a, b)
			time.Sleep(time.Millisecond) // c is not a peer for this time
		},
		"forgotten": func() { a.r.RemoveMap("other"); a.addOther(t) },
	} {
		wg.Go(func() { calls.repeat(ctx, name, fn) })
	}
	time.Sleep(2 * time.Second) // the duration of the load
	cancel()
	calls.join(&wg)
	connectNodes(a, b, c)
	poll.Within(t, deadline, "the nodes are in sync afterwards", func() bool { return nodesInSync(a, b, c)() && sameLive(a, b) && sameLive(a, c) })
	for _, n := range []*node{a, b, c} {
		n.stop()
	}
}

// addOther adds a second map with an empty table without a writer.
func (n *node) addOther(t *testing.T) {
	tb := newTable(t, n.self, false)
	if err := n.r.AddMap("other", Layout{KeySize: testKeySize, ValueSize: testValueSize}, tb); err != nil {
		t.Errorf("add map: got error %v, want nil", err)
	}
}

// resubscribe opens one stream after another. Each replaces the one before.
func resubscribe(ctx context.Context, t *testing.T, from *node, addr, name string) {
	conn, err := from.dial(addr)
	if err != nil {
		t.Errorf("dial: got error %v, want nil", err)
		return
	}
	defer conn.Close()
	for ctx.Err() == nil {
		once, stop := context.WithTimeout(ctx, time.Second)
		stream, err := mapsyncv1.NewReplicationServiceClient(conn).Subscribe(once)
		if err == nil {
			_ = stream.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Hello{Hello: &mapsyncv1.Hello{
				ProtocolVersion: supportedVersions.highest, Self: &mapsyncv1.Incarnation{Node: name, Number: 1},
			}}})
			_ = stream.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Subscribe{
				Subscribe: subscription(1, testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}),
			}})
			_, _ = stream.Recv()
			_, _ = stream.Recv()
		}
		stop()
	}
}

// callMonitor records the start of the latest call of each of several loops, and fails the test if
// a call does not return.
type callMonitor struct {
	t     *testing.T
	mu    sync.Mutex
	count map[string]int
}

func newCallMonitor(t *testing.T) *callMonitor {
	return &callMonitor{t: t, count: make(map[string]int)}
}

func (c *callMonitor) repeat(ctx context.Context, name string, fn func()) {
	for ctx.Err() == nil {
		fn()
		c.mu.Lock()
		c.count[name]++
		c.mu.Unlock()
		time.Sleep(100 * time.Microsecond) // the rate of the calls
	}
}

// errCallTimeout is the panic value for a call that does not return.
var errCallTimeout = errors.New("a call has not returned for 30 s: lock order inversion")

func (c *callMonitor) join(wg *sync.WaitGroup) {
	c.t.Helper()
	ended := make(chan struct{})
	go func() { wg.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(30 * time.Second):
		panic(errCallTimeout) // the panic shows where each goroutine waits; the goroutines cannot be stopped
	}
	for name, n := range c.count {
		if n == 0 {
			c.t.Errorf("calls of %s: got 0, want at least 1", name)
		}
	}
}
