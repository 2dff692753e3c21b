package replicate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema/schematest"
	"mapsync/syncd/table"
)

// inSyncWith reports whether a node holds everything that another node sent, except for exceptions.
func inSyncWith(n *node, peer string) func() bool {
	return func() bool {
		m, _ := n.status(peer, "typed")
		ok, _ := n.r.InSync()
		return ok && m.InSync && m.Divergent == 0 && m.State == StateCaughtUp
	}
}

// TestExceptionsDoNotBlockInSync checks that entries which cannot be held or sent are listed and do
// not prevent nodes from being in sync. A record lost besides them is still detected and repaired.
func TestExceptionsDoNotBlockInSync(t *testing.T) {
	eth := func(i byte) []byte { return []byte{i, 0, 0, 0} }
	for name, c := range map[string]struct {
		nodes    func(t *testing.T) (a, b *node)
		bad      func(t *testing.T, a *node)        // makes three entries of a that b does not get
		good     func(t *testing.T, a *node) []byte // makes one that b gets, and returns its key
		unsent   bool
		key, why string
	}{
		"a number in another layout": {
			nodes: func(t *testing.T) (a, b *node) {
				return typedNode(t, "a", schematest.NewVersion(), nil, shortCompare), typedNode(t, "b", schematest.OldVersion(), nil, shortCompare)
			},
			bad: func(t *testing.T, a *node) {
				for i := range byte(3) {
					putValue(t, a, flow(i), ct{Packets: 1 << 40}.new())
				}
			},
			good: func(t *testing.T, a *node) []byte { putValue(t, a, flow(7), ct{Packets: 7}.new()); return flow(7) },
			key:  "addr=10.0.0.1", why: "packets",
		},
		"an interface in a key": {
			nodes: func(t *testing.T) (a, b *node) {
				return typedNode(t, "a", schematest.InterfaceKey(), &testInterfaces{names: []string{"eth0", "eth1", "eth2", "eth3"}}, shortCompare),
					typedNode(t, "b", schematest.InterfaceKey(), &testInterfaces{names: []string{"eth0"}}, shortCompare)
			},
			bad: func(t *testing.T, a *node) {
				for i := range byte(3) {
					putValue(t, a, eth(2+i), []byte{1})
				}
			},
			good: func(t *testing.T, a *node) []byte { putValue(t, a, eth(1), []byte{7}); return eth(1) },
			key:  "ifindex=eth2", why: `unknown interface "eth2"`,
		},
		"padding, and another layout": {
			nodes: func(t *testing.T) (a, b *node) {
				return typedNode(t, "a", schematest.NewVersion(), nil, shortCompare), typedNode(t, "b", schematest.OldVersion(), nil, shortCompare)
			},
			bad: func(t *testing.T, a *node) {
				for i := range byte(3) {
					k := flow(i)
					k[7] = 1
					putValue(t, a, k, ct{Packets: 1}.new())
				}
			},
			good:   func(t *testing.T, a *node) []byte { putValue(t, a, flow(7), ct{Packets: 7}.new()); return flow(7) },
			unsent: true, key: "addr=10.0.0.1", why: "padding of the key is not zero",
		},
		"padding": {
			nodes: func(t *testing.T) (a, b *node) {
				return typedNode(t, "a", schematest.OldVersion(), nil, shortCompare), typedNode(t, "b", schematest.OldVersion(), nil, shortCompare)
			},
			bad: func(t *testing.T, a *node) {
				for i := range byte(3) {
					k := flow(i)
					k[7] = 1
					putValue(t, a, k, ct{Packets: 1}.old())
				}
			},
			good:   func(t *testing.T, a *node) []byte { putValue(t, a, flow(7), ct{Packets: 7}.old()); return flow(7) },
			unsent: true, key: "addr=10.0.0.1", why: "padding of the key is not zero",
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := c.nodes(t)
			c.bad(t, a)
			connectNodes(a, b)
			poll.Within(t, deadline, "the nodes are in sync except for the exceptions", func() bool { return inSyncWith(a, "b")() && inSyncWith(b, "a")() })
			list := func() []Exception {
				m, _ := b.status("a", "typed")
				count, list := m.ExceptionCount, m.Exceptions
				if c.unsent {
					count, list = a.r.Unsent("typed")
				}
				if count != len(list) {
					t.Fatalf("exceptions: got %d, listed %d, want equal numbers", count, len(list))
				}
				return list
			}
			has := func(l []Exception) bool {
				return len(l) == 3 && strings.Contains(fmt.Sprint(l), c.key) && strings.Contains(fmt.Sprint(l), c.why)
			}
			poll.Within(t, deadline, "three exceptions are listed", func() bool { return has(list()) })
			poll.Within(t, deadline, "the other node lists them, too", func() bool {
				there, _ := b.status("a", "typed")
				here, _ := a.status("b", "typed")
				return c.unsent && there.Unsent == 3 || here.Report.Refused == 3 && has(here.Report.Exceptions)
			})
			// A lost record is not an exception.
			key := c.good(t, a)
			poll.Within(t, deadline, "the valid entry was received", func() bool { return valueOf(b.tb, key) != nil })
			rounds := b.r.Stats().Digests
			poll.Within(t, deadline, "the nodes are in sync again", func() bool { return b.r.Stats().Digests > rounds+2 && inSyncWith(b, "a")() })
			deleteSilently(b, key)
			poll.Within(t, deadline, "the lost record is repaired", func() bool { return valueOf(b.tb, key) != nil })
			poll.Within(t, deadline, "the nodes are in sync after the repair", inSyncWith(b, "a"))
		})
	}
}

// deleteSilently deletes a peer's record in a node's table without an event.
func deleteSilently(n *node, key []byte) {
	c := n.tb.NewCursor(0)
	defer c.Close()
	n.tb.Update(func(tx *table.Tx) {
		var set table.BucketSet
		set.Add(tx.Bucket(key))
		tx.Sweep(&table.Absence{Peer: table.Owner{Node: "a"}, Acknowledged: 1 << 60, Before: 1 << 60, Buckets: &set, DigestID: n.tb.DigestID()}, 1, c, 1<<20)
	})
}

// TestExceptionEndsWhenEntryFits checks that an exception ends once its entry fits.
func TestExceptionEndsWhenEntryFits(t *testing.T) {
	a, b := typedNode(t, "a", schematest.NewVersion(), nil, shortCompare), typedNode(t, "b", schematest.OldVersion(), nil, shortCompare)
	for i := range byte(3) {
		putValue(t, a, flow(i), ct{Packets: 1 << 40}.new())
	}
	connectNodes(a, b)
	count := func(want int) func() bool {
		return func() bool {
			there, _ := b.status("a", "typed")
			here, _ := a.status("b", "typed")
			return there.ExceptionCount == want && here.Report.Refused == uint64(want) && inSyncWith(b, "a")()
		}
	}
	poll.Within(t, deadline, "three exceptions", count(3))
	putValue(t, a, flow(0), ct{Packets: 1}.new())
	poll.Within(t, deadline, "two exceptions after a change that fits", count(2))
	a.tb.Update(func(tx *table.Tx) {
		tx.Local(&table.Change{Key: flow(1), Op: table.OpDelete, Time: time.Now().UnixNano()})
	})
	poll.Within(t, deadline, "one exception after a delete", count(1))
}

// TestExceptionsAreBounded checks that exceptions are bounded for any number of records.
func TestExceptionsAreBounded(t *testing.T) {
	var e exceptions
	for i := range 2 * maxExceptions {
		e.add(fmt.Appendf(nil, "key %d", i), 1, table.Owner{Node: "x"}, fmt.Errorf("reason %s", strings.Repeat("y", 1000)))
	}
	e.add(make([]byte, maxExceptionKey+1), 1, table.Owner{Node: "x"}, errGap)
	if len(e.byKey) != maxExceptions || e.count() != 2*maxExceptions+1 {
		t.Errorf("exceptions: got %d stored, %d counted, want %d and %d", len(e.byKey), e.count(), maxExceptions, 2*maxExceptions+1)
	}
	for _, x := range e.byKey {
		if len(x.reason) > maxReason {
			t.Fatalf("reason: got %d bytes, want at most %d", len(x.reason), maxReason)
		}
	}
	logged := 0
	for range 10 {
		e.log(time.Now(), func(int, []byte, error) { logged++ })
	}
	if logged != 1 {
		t.Errorf("log lines: got %d, want 1", logged)
	}
	e.beginSync()
	e.endSync()
	if e.count() != 0 {
		t.Errorf("exceptions after a full sync without any: got %d, want 0", e.count())
	}
}

// TestReportValidation checks that an invalid report ends the stream of the peer.
func TestReportValidation(t *testing.T) {
	r, _ := newTestReplicator(t)
	exception := func(key, reason int) []*mapsyncv1.MapException {
		return []*mapsyncv1.MapException{{Key: make([]byte, key), Reason: strings.Repeat("r", reason)}}
	}
	for want, m := range map[string]*mapsyncv1.MapReport{
		"unknown subscription 2":      {Map: 2},
		"unknown subscription 0":      {},
		"report of 17 exceptions":     {Map: 1, Exceptions: make([]*mapsyncv1.MapException, 17)},
		"exception of 1025 + 0 bytes": {Map: 1, Exceptions: exception(1025, 0)},
		"exception of 0 + 257 bytes":  {Map: 1, Exceptions: exception(0, 257)},
	} {
		s := newOutboundStream(r, table.Owner{Node: "x", Incarnation: 1}, nil)
		s.lastIndex = 1
		err := s.handle(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Report{Report: m}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("handle report: want error %q, got: %v", want, err)
		}
	}
}
