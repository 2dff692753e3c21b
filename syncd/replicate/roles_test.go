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

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// orphan gives a node records of one that has left.
func (n *node) orphan(node string, from, to, v int) {
	n.tb.Update(func(tx *table.Tx) {
		tx.SetGone(map[string]bool{node: true})
		id := tx.Intern(table.Owner{Node: node, Incarnation: 5})
		for i := from; i < to; i++ {
			d := table.Delta{Key: key(i), Value: value(v), Version: table.Version(1000 + v), Owner: id}
			tx.Remote(&d, 1000, table.RemoteOptions{})
		}
	})
}

// blocked is what a node cannot reach while the test has it so.
type blocked struct {
	mu    sync.Mutex
	nodes []string
}

func (b *blocked) set(nodes ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.nodes = nodes
}

func (b *blocked) option(o *Options) {
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

// impatient nodes replace a peer soon.
func impatient(o *Options) { o.reroute, o.stall = 100*time.Millisecond, 200*time.Millisecond }

func keyedNode(t *testing.T, name string, inc uint64, opts ...nodeOption) *node {
	t.Helper()
	return startNode(t, name, inc, keyed(t, table.Owner{Node: name, Incarnation: inc}, "k"), append(opts, quick, impatient)...)
}

// TestFallbackSenderPerMap has a node join that must receive what a departed node left from
// a, because x, which started first, cannot send it.
func TestFallbackSenderPerMap(t *testing.T) {
	const orphaned = 1000
	for name, prepare := range map[string]func(t *testing.T, joiner *blocked) (x *node){
		"without the map": func(t *testing.T, _ *blocked) *node {
			x := keyedNode(t, "x", 1)
			x.r.RemoveMap(testMap)
			return x
		},
		"layout does not fit": func(t *testing.T, _ *blocked) *node {
			self := table.Owner{Node: "x", Incarnation: 1}
			return startNode(t, "x", 1, newSizedTable(t, self, testKeySize, 2*testValueSize, false), quick, impatient)
		},
		"not reached": func(t *testing.T, joiner *blocked) *node {
			joiner.set("x")
			return keyedNode(t, "x", 1)
		},
		"does not reach": func(t *testing.T, _ *blocked) *node {
			var b blocked
			b.set("a")
			return keyedNode(t, "x", 1, b.option)
		},
		"fails before it joins": func(t *testing.T, _ *blocked) *node {
			x := keyedNode(t, "x", 1)
			x.stop() // membership has it all the same
			return x
		},
	} {
		t.Run(name, func(t *testing.T) {
			var route blocked
			x := prepare(t, &route)
			a, b := keyedNode(t, "a", 100), keyedNode(t, "b", 110)
			a.orphan("z", 0, orphaned, 1)
			meet(a, b, x)
			eventually(t, "b has what a has", func() bool { return len(live(b.tb)) == orphaned })
			d := keyedNode(t, "d", 200, route.option)
			meet(a, b, x, d)
			eventually(t, "the joiner has all", func() bool {
				proven, _ := d.r.Agreed()
				n := len(live(d.tb))
				if proven && n < orphaned {
					t.Fatalf("proven to hold all, and lacks %d", orphaned-n)
				}
				return n == orphaned
			})
			if name == "not reached" || strings.HasPrefix(name, "fails") {
				// x is live, and what it wrote last only it may have.
				if ok, missing := d.r.Agreed(); ok {
					t.Errorf("nothing is received from x and all is proven: %v", missing)
				}
				return
			}
			eventually(t, "proven", agreed(d))
			if sum := d.r.Stats().Received.Deltas; sum > 2*orphaned {
				t.Errorf("received %d deltas for %d records", sum, orphaned)
			}
		})
	}
}

// TestFallbackSenderStalls has the fallback sender serve the map and never send what was
// requested.
func TestFallbackSenderStalls(t *testing.T) {
	var requested atomic.Bool
	x := startStock(t, func(stream mapsyncv1.ReplicationService_SubscribeServer) error {
		if err := welcomeWith(stream, &mapsyncv1.Welcome{
			ProtocolVersion: 1, Self: &mapsyncv1.Incarnation{Node: "x", Number: 1}, OwnerRequests: true,
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
			if err := stream.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Heartbeat{}}); err != nil {
				return err
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	a, d := keyedNode(t, "a", 100), keyedNode(t, "d", 200)
	a.orphan("z", 0, 100, 1)
	d.r.SetPeers([]Peer{x, a.peer()})
	a.r.SetPeers([]Peer{d.peer()})
	eventually(t, "received from a", func() bool { return len(live(d.tb)) == 100 })
	if !requested.Load() {
		t.Error("x, which started first, was not the fallback sender")
	}
}

// TestOrphanedRecordsComparedByEveryPair has a node hold orphaned records that x, the
// fallback sender, does not receive from it. c requests them from x alone, and must find the
// difference by comparing with a.
func TestOrphanedRecordsComparedByEveryPair(t *testing.T) {
	var route blocked
	route.set("a")
	x, a, c := keyedNode(t, "x", 1, route.option, func(o *Options) { o.reroute = time.Hour }), keyedNode(t, "a", 100), keyedNode(t, "c", 120)
	a.orphan("z", 0, 100, 1)
	meet(x, a, c)
	eventually(t, "c is repaired from a", func() bool { return len(live(c.tb)) == 100 && c.r.Stats().Repaired >= 100 })
	if m, _ := c.status("a", testMap); m.FallbackSender {
		t.Error("a is the fallback sender, so nothing was tested")
	}
	eventually(t, "x, which collects from all, has them from c", func() bool { return equal(x, a, c)() })
	eventually(t, "proven", agreed(a, c))
	// The other direction: what only c has, of a version that a does not have.
	c.tb.Update(func(tx *table.Tx) {
		id := tx.Intern(table.Owner{Node: "z", Incarnation: 5})
		tx.Remote(&table.Delta{Key: key(7), Value: value(9), Version: 2000, Owner: id}, 2000, table.RemoteOptions{})
	})
	eventually(t, "equal and proven again", func() bool { return live(a.tb)[7] == 9 && equal(x, a, c)() && agreed(a, c)() })
}

// TestOrphanedRecordsAreNotSentAgain has streams break and come back: the sender remembers
// what the peer has.
func TestOrphanedRecordsAreNotSentAgain(t *testing.T) {
	x, a := keyedNode(t, "x", 1), keyedNode(t, "a", 100)
	x.orphan("z", 0, 1000, 1)
	meet(x, a)
	eventually(t, "equal and proven", func() bool { return equal(x, a)() && agreed(x, a)() })
	sent := sentBy(x, a)
	for i := range 5 {
		resumes := x.r.Stats().Resumes
		x.lis.cut()
		x.put(5000+i, 5001+i, 1)
		eventually(t, "resumed", func() bool { return x.r.Stats().Resumes > resumes && len(live(a.tb)) == 1001+i })
		eventually(t, "proven again", agreed(x, a))
	}
	if n := sentBy(x, a) - sent; n > 20 {
		t.Errorf("%d deltas sent for 5 changes", n)
	}
}

// TestCutOffNodeReceivesThroughAnother breaks the stream from b to a alone.
func TestCutOffNodeReceivesThroughAnother(t *testing.T) {
	var route, other blocked
	a, b, c := keyedNode(t, "a", 1, route.option), keyedNode(t, "b", 2), keyedNode(t, "c", 3, other.option)
	meet(a, b, c)
	b.put(0, 100, 1)
	eventually(t, "equal and proven", func() bool { return len(live(a.tb)) == 100 && equal(a, b, c)() && agreed(a, b, c)() })
	route.set("b")
	b.lis.cut()
	eventually(t, "records of b come through c", func() bool { m, _ := a.status("b", testMap); return m.Via == "c" })
	b.put(100, 300, 2)
	b.del(0, 50)
	b.put(50, 60, 3)
	eventually(t, "changes and deletes reach a", func() bool { return len(live(a.tb)) == 250 && live(a.tb)[55] == 3 && equal(a, b, c)() })
	if ok, missing := a.r.Agreed(); ok || len(missing) != 1 || !strings.Contains(missing[0], "b/"+testMap+" (nothing is received from it, its records come through c") {
		t.Errorf("proven without a stream from b: %t %v", ok, missing)
	}
	eventually(t, "the status has the reason", func() bool {
		m, _ := a.status("b", testMap)
		return !m.Agreed && strings.Contains(m.Incomparable, "its records come through c")
	})
	other.set("b") // now c does not receive from b either
	b.lis.cut()
	eventually(t, "no peer is left to receive from", func() bool {
		m, _ := a.status("b", testMap)
		return m.Via == "" && !m.Agreed && strings.Contains(m.Incomparable, "no other peer receives from it")
	})
	b.del(50, 60)
	route.set()
	other.set()
	eventually(t, "all is received directly again", func() bool {
		m, _ := a.status("b", testMap)
		return m.Via == "" && m.Incomparable == "" && equal(a, b, c)() && agreed(a, b, c)()
	})
	sent := c.r.Stats().Sent.Deltas
	b.put(300, 400, 1)
	eventually(t, "equal", func() bool { return len(live(a.tb)) == 340 && equal(a, b, c)() })
	if n := c.r.Stats().Sent.Deltas - sent; n != 0 {
		t.Errorf("c sends %d records of b although a receives from b", n)
	}
}

// TestManyNamesOverALife has thousands of nodes come and go: memory stays bounded, and
// orphaned records are compared, however many nodes left them.
func TestManyNamesOverALife(t *testing.T) {
	a, b := keyedNode(t, "a", 1), keyedNode(t, "b", 2)
	a.r.opt.UnknownGrace, b.r.opt.UnknownGrace = time.Millisecond, time.Millisecond
	for i := range 3000 {
		a.r.SetPeers([]Peer{b.peer(), {Node: fmt.Sprint("ip-10-0-", i), Incarnation: uint64(i), Addr: "127.0.0.1:1"}})
	}
	a.orphan("ip-10-0-7", 0, 10, 1)
	meet(a, b)
	names := func() (links, gone int) {
		a.r.mu.Lock()
		defer a.r.mu.Unlock()
		return len(a.r.links), len(a.r.gone)
	}
	eventually(t, "names without records are forgotten", func() bool { _, gone := names(); return gone == 1 })
	eventually(t, "positions of long departed nodes are forgotten", func() bool { links, _ := names(); return links <= 1+maxDeparted })
	eventually(t, "proven", func() bool { return agreed(a, b)() && sameLive(a, b) })
}

// TestOrphanedRecordsOfManyNodes has more departed nodes than a message of digests had room
// for, one of which left something else on either node.
func TestOrphanedRecordsOfManyNodes(t *testing.T) {
	a, b := keyedNode(t, "a", 1), keyedNode(t, "b", 2)
	for _, n := range []*node{a, b} {
		for i := range 200 {
			n.orphan(fmt.Sprint("z", i), 10*i, 10*i+10, 1)
		}
	}
	meet(a, b)
	eventually(t, "proven", agreed(a, b))
	silently(t, b, 1717)
	eventually(t, "repaired", func() bool { return sameLive(a, b) && b.r.Stats().Repaired == 1 })
}
