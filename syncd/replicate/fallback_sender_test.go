package replicate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"mapsync/internal/poll"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// addOrphaned adds records of a node that has left.
func (n *node) addOrphaned(node string, from, to, v int) {
	n.tb.Update(func(tx *table.Tx) {
		tx.SetGone(map[string]bool{node: true})
		id := tx.Intern(table.Owner{Node: node, Incarnation: 5})
		for i := from; i < to; i++ {
			d := table.Delta{Key: key(i), Value: value(v), Version: table.Version(1000 + v), Owner: id}
			tx.Remote(&d, 1000, table.RemoteOptions{})
		}
	})
}

// blockedRoutes is the set of nodes that a node cannot reach.
type blockedRoutes struct {
	mu    sync.Mutex
	nodes []string
}

func (b *blockedRoutes) set(nodes ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nodes = nodes
}

func (b *blockedRoutes) option(o *Options) {
	dial := o.Dial
	o.Dial = func(p Peer) (*grpc.ClientConn, error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if slices.Contains(b.nodes, p.Node) {
			return nil, errors.New("no route to host")
		}
		return dial(p)
	}
}

// shortTimeouts shortens the times after which a peer is replaced.
func shortTimeouts(o *Options) {
	o.rerouteDelay, o.stallTimeout = 100*time.Millisecond, 200*time.Millisecond
}

func startKeyedNode(t *testing.T, name string, inc uint64, opts ...nodeOption) *node {
	t.Helper()
	return startNode(t, name, inc, newKeyedTable(t, table.Owner{Node: name, Incarnation: inc}, "k"), append(opts, shortCompare, shortTimeouts)...)
}

// TestFallbackSenderPerMap has a node join that must receive the orphaned records from a, because
// x, which started first, cannot send them.
func TestFallbackSenderPerMap(t *testing.T) {
	const orphaned = 1000
	for name, prepare := range map[string]func(t *testing.T, joiner *blockedRoutes) (x *node){
		"x lacks the map": func(t *testing.T, _ *blockedRoutes) *node {
			x := startKeyedNode(t, "x", 1)
			x.r.RemoveMap(testMap)
			return x
		},
		"layout of x does not fit": func(t *testing.T, _ *blockedRoutes) *node {
			self := table.Owner{Node: "x", Incarnation: 1}
			return startNode(t, "x", 1, newSizedTable(t, self, testKeySize, 2*testValueSize, false), shortCompare, shortTimeouts)
		},
		"x is unreachable": func(t *testing.T, joiner *blockedRoutes) *node {
			joiner.set("x")
			return startKeyedNode(t, "x", 1)
		},
		"x does not reach the node": func(t *testing.T, _ *blockedRoutes) *node {
			var b blockedRoutes
			b.set("a")
			return startKeyedNode(t, "x", 1, b.option)
		},
		"x fails before the node joins": func(t *testing.T, _ *blockedRoutes) *node {
			x := startKeyedNode(t, "x", 1)
			x.stop() // membership still has it
			return x
		},
	} {
		t.Run(name, func(t *testing.T) {
			var route blockedRoutes
			x := prepare(t, &route)
			a, b := startKeyedNode(t, "a", 100), startKeyedNode(t, "b", 110)
			a.addOrphaned("z", 0, orphaned, 1)
			connectNodes(a, b, x)
			poll.Within(t, deadline, "b holds the records of a", func() bool { return len(live(b.tb)) == orphaned })
			// A sender that a starved machine delays does not count as stalled, or others would send the records again.
			d := startNode(t, "d", 200, newKeyedTable(t, table.Owner{Node: "d", Incarnation: 200}, "k"), route.option, shortCompare, shortTimeouts,
				func(o *Options) { o.stallTimeout = deadline })
			connectNodes(a, b, x, d)
			poll.Within(t, deadline, "the joiner holds all records", func() bool {
				inSync, _ := d.r.InSync()
				n := len(live(d.tb))
				if inSync && n < orphaned {
					t.Fatalf("in sync with %d records missing, want none missing", orphaned-n)
				}
				return n == orphaned
			})
			if name == "x is unreachable" || strings.HasPrefix(name, "x fails") {
				// x is live, and may be the only node with its last records.
				if ok, missing := d.r.InSync(); ok {
					t.Errorf("in sync without a stream from x: got true, missing %v, want false", missing)
				}
				return
			}
			poll.Within(t, deadline, "the nodes are in sync", nodesInSync(d))
			if sum := d.r.Stats().Received.Deltas; sum > 3*orphaned { // each peer sends them once at most
				t.Errorf("received deltas: got %d for %d records, want at most %d", sum, orphaned, 3*orphaned)
			}
		})
	}
}

// TestFallbackSenderStalls has the fallback sender serve the map and never send the requested records.
// Its messages show only that it is alive.
func TestFallbackSenderStalls(t *testing.T) {
	for name, alive := range map[string]func(index uint32) *mapsyncv1.SubscribeResponse{
		"heartbeats": func(uint32) *mapsyncv1.SubscribeResponse {
			return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Heartbeat{}}
		},
		"batches that are caught up": func(index uint32) *mapsyncv1.SubscribeResponse { return stockBatch(index, 0, 0) },
	} {
		t.Run(name, func(t *testing.T) { testFallbackSenderStalls(t, alive) })
	}
}

func testFallbackSenderStalls(t *testing.T, alive func(index uint32) *mapsyncv1.SubscribeResponse) {
	t.Helper()
	var requested atomic.Bool
	x := startStock(t, func(stream mapsyncv1.ReplicationService_SubscribeServer) error {
		if err := welcomeWith(stream, &mapsyncv1.Welcome{
			ProtocolVersion: supportedVersions.highest, Self: &mapsyncv1.Incarnation{Node: "x", Number: 1}, OwnerRequests: true,
		}); err != nil {
			return err
		}
		sub, err := accept(stream)
		if err != nil {
			return err
		}
		requested.Store(sub.GetOwners().GetOrphaned())
		if err := stream.Send(stockBatch(sub.GetMap(), 0, 0)); err != nil {
			return err
		}
		for {
			if err := stream.Send(alive(sub.GetMap())); err != nil {
				return err
			}
			time.Sleep(20 * time.Millisecond) // the rate of messages
		}
	})
	a, d := startKeyedNode(t, "a", 100), startKeyedNode(t, "d", 200)
	a.addOrphaned("z", 0, 100, 1)
	d.r.SetPeers([]Peer{x, a.peer()})
	a.r.SetPeers([]Peer{d.peer()})
	poll.Within(t, deadline, "the records were received from a", func() bool { return len(live(d.tb)) == 100 })
	if !requested.Load() {
		t.Error("fallback sender: got another node, want x, which started first")
	}
}

// TestOrphanedRecordsComparedByEveryPair has a node hold orphaned records that x, the fallback
// sender, does not receive from it. c requests orphaned records from x only, and must detect the
// difference by a comparison with a.
func TestOrphanedRecordsComparedByEveryPair(t *testing.T) {
	var route blockedRoutes
	route.set("a")
	x, a, c := startKeyedNode(t, "x", 1, route.option, func(o *Options) { o.rerouteDelay = time.Hour }), startKeyedNode(t, "a", 100), startKeyedNode(t, "c", 120)
	a.addOrphaned("z", 0, 100, 1)
	connectNodes(x, a, c)
	poll.Within(t, deadline, "c is repaired from a", func() bool { return len(live(c.tb)) == 100 && c.r.Stats().Repaired >= 100 })
	if m, _ := c.status("a", testMap); m.FallbackSender {
		t.Error("fallback sender: got a, want x")
	}
	poll.Within(t, deadline, "x, the fallback sender, has received the records from c", func() bool { return tablesEqual(x, a, c)() })
	poll.Within(t, deadline, "the nodes are in sync", nodesInSync(a, c))
	// The other direction: a record that only c has, with a version that a does not have.
	c.tb.Update(func(tx *table.Tx) {
		id := tx.Intern(table.Owner{Node: "z", Incarnation: 5})
		tx.Remote(&table.Delta{Key: key(7), Value: value(9), Version: 2000, Owner: id}, 2000, table.RemoteOptions{})
	})
	poll.Within(t, deadline, "the tables are equal and in sync again", func() bool { return live(a.tb)[7] == 9 && tablesEqual(x, a, c)() && nodesInSync(a, c)() })
}

// TestOrphanedRecordsAreNotResent has streams break and reconnect: the sender stores which
// records the peer has.
func TestOrphanedRecordsAreNotResent(t *testing.T) {
	x, a := startKeyedNode(t, "x", 1), startKeyedNode(t, "a", 100)
	x.addOrphaned("z", 0, 1000, 1)
	connectNodes(x, a)
	poll.Within(t, deadline, "the tables are equal and in sync", func() bool { return tablesEqual(x, a)() && nodesInSync(x, a)() })
	waitIdle(t, x, a) // a repair may have been requested while only a part was received
	sentX, sentA := deltasSentBy(x), deltasSentBy(a)
	for i := range 5 {
		resumes := x.r.Stats().Resumes
		x.lis.cut()
		x.put(5000+i, 5001+i, 1)
		poll.Within(t, deadline, "the stream has resumed", func() bool { return x.r.Stats().Resumes > resumes && len(live(a.tb)) == 1001+i })
		poll.Within(t, deadline, "the nodes are in sync again", nodesInSync(x, a))
	}
	if x, a := deltasSentBy(x)-sentX, deltasSentBy(a)-sentA; x+a > 20 {
		t.Errorf("deltas sent for 5 changes: got %d from x and %d from a, want at most 20", x, a)
	}
}

// TestCutOffNodeReceivesThroughRelay breaks only the stream from b to a.
func TestCutOffNodeReceivesThroughRelay(t *testing.T) {
	var route, other blockedRoutes
	a, b, c := startKeyedNode(t, "a", 1, route.option), startKeyedNode(t, "b", 2), startKeyedNode(t, "c", 3, other.option)
	connectNodes(a, b, c)
	b.put(0, 100, 1)
	poll.Within(t, deadline, "the tables are equal and in sync", func() bool { return len(live(a.tb)) == 100 && tablesEqual(a, b, c)() && nodesInSync(a, b, c)() })
	route.set("b")
	b.lis.cut()
	poll.Within(t, deadline, "the records of b are received from c", func() bool { m, _ := a.status("b", testMap); return m.Via == "c" })
	b.put(100, 300, 2)
	b.del(0, 50)
	b.put(50, 60, 3)
	poll.Within(t, deadline, "changes and deletes reach a", func() bool { return len(live(a.tb)) == 250 && live(a.tb)[55] == 3 && tablesEqual(a, b, c)() })
	if ok, missing := a.r.InSync(); ok || len(missing) != 1 || !strings.Contains(missing[0], "b/"+testMap+" (nothing is received from it, its records come through c") {
		t.Errorf("in sync without a stream from b: got %t %v, want false and b/%s only, through c", ok, missing, testMap)
	}
	poll.Within(t, deadline, "the status has the reason", func() bool {
		m, _ := a.status("b", testMap)
		return !m.InSync && strings.Contains(m.Incomparable, "its records come through c")
	})
	other.set("b") // now c does not receive from b either
	b.lis.cut()
	poll.Within(t, deadline, "no peer sends the records of b", func() bool {
		m, _ := a.status("b", testMap)
		return m.Via == "" && !m.InSync && strings.Contains(m.Incomparable, "no other peer receives from it")
	})
	b.del(50, 60)
	route.set()
	other.set()
	poll.Within(t, deadline, "all records are received directly again", func() bool {
		m, _ := a.status("b", testMap)
		return m.Via == "" && m.Incomparable == "" && tablesEqual(a, b, c)() && nodesInSync(a, b, c)()
	})
	// c relays until a's new request has reached it.
	poll.Within(t, deadline, "c has confirmed a request without the records of b", func() bool {
		a.r.mu.Lock()
		s := a.r.inboundStreams["c"]
		a.r.mu.Unlock()
		s.mu.Lock()
		defer s.mu.Unlock()
		in := s.maps[testMap]
		return in.requestsComplete() && len(in.owners.requested.nodes) == 0
	})
	sent := c.r.Stats().Sent.Deltas
	b.put(300, 400, 1)
	poll.Within(t, deadline, "the tables are equal", func() bool { return len(live(a.tb)) == 340 && tablesEqual(a, b, c)() })
	if n := c.r.Stats().Sent.Deltas - sent; n != 0 {
		t.Errorf("records of b sent by c: got %d, want 0", n)
	}
}

// TestDepartedNodesAreBounded has thousands of nodes join and leave: memory is bounded, and
// orphaned records are compared for any number of departed nodes.
func TestDepartedNodesAreBounded(t *testing.T) {
	a, b := startKeyedNode(t, "a", 1), startKeyedNode(t, "b", 2)
	a.r.opt.UnknownGrace, b.r.opt.UnknownGrace = time.Millisecond, time.Millisecond
	for i := range 3000 {
		a.r.SetPeers([]Peer{b.peer(), {Node: fmt.Sprint("ip-10-0-", i), Incarnation: uint64(i), Addr: "127.0.0.1:1"}})
	}
	a.addOrphaned("ip-10-0-7", 0, 10, 1)
	connectNodes(a, b)
	names := func() (links, gone int) {
		a.r.mu.Lock()
		defer a.r.mu.Unlock()
		return len(a.r.inboundStreams), len(a.r.gone)
	}
	poll.Within(t, deadline, "names without records are forgotten", func() bool { _, gone := names(); return gone == 1 })
	poll.Within(t, deadline, "positions of long departed nodes are forgotten", func() bool { links, _ := names(); return links <= 1+maxDeparted })
	poll.Within(t, deadline, "the nodes are in sync", func() bool { return nodesInSync(a, b)() && sameLive(a, b) })
}

// TestOrphanedRecordsOfManyNodes has more departed nodes than fit into a message of digests. One of
// them has left different records on the two nodes.
func TestOrphanedRecordsOfManyNodes(t *testing.T) {
	a, b := startKeyedNode(t, "a", 1), startKeyedNode(t, "b", 2)
	for _, n := range []*node{a, b} {
		for i := range 200 {
			n.addOrphaned(fmt.Sprint("z", i), 10*i, 10*i+10, 1)
		}
	}
	connectNodes(a, b)
	poll.Within(t, deadline, "the nodes are in sync", nodesInSync(a, b))
	corruptValue(t, b, 1717)
	poll.Within(t, deadline, "the difference is repaired", func() bool { return sameLive(a, b) && b.r.Stats().Repaired == 1 })
}
