package replicate

import (
	"errors"
	"testing"
	"time"

	"mapsync/internal/poll"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// handoverOf returns what a table holds as the handover of a node.
func handoverOf(tb *table.Table, node string) (h table.Handover) {
	tb.View(func(tx *table.Tx) { h = tx.Handover(node) })
	return h
}

// TestHandoverReachesPeers: all peers receive the handover of a node and its end: a third node, one that joins later, one
// whose stream was broken, and one that has restarted. A restart of the drained node keeps it.
func TestHandoverReachesPeers(t *testing.T) {
	a, b, c := startNode(t, "a", 1, nil), startNode(t, "b", 1, nil), startNode(t, "c", 1, nil)
	connectNodes(a, b, c)
	a.put(0, 10, 1)
	has := func(h table.Handover, nodes ...*node) {
		t.Helper()
		for _, n := range nodes {
			poll.Within(t, deadline, "node "+n.self.Node+" has the handover", func() bool { return handoverOf(n.tb, "a") == h })
		}
	}
	poll.Within(t, deadline, "the peers have the records", func() bool { return len(live(b.tb)) == 10 && len(live(c.tb)) == 10 })
	var h table.Handover
	a.tb.Update(func(tx *table.Tx) { h = tx.BeginHandover() })
	has(h, b, c)
	d := startNode(t, "d", 1, nil)
	connectNodes(a, b, c, d)
	has(h, d)
	a.lis.cut()
	has(h, b, c, d)
	c.stop()
	c = startNode(t, "c", 2, nil)
	connectNodes(a, b, c, d)
	has(h, b, c, d)
	// The drained node restarts, and its records of the earlier incarnation stay handed over.
	a.stop()
	tb := newTable(t, table.Owner{Node: "a", Incarnation: 2}, false)
	tb.Update(func(tx *table.Tx) { tx.SetHandover("a", h) })
	a = startNode(t, "a", 2, tb)
	connectNodes(a, b, c, d)
	poll.Within(t, deadline, "the node has its records", func() bool { return len(live(a.tb)) == 10 })
	has(h, b, c, d)
	b.tb.Update(func(tx *table.Tx) {
		if o := tx.Local(&table.Change{Key: key(3), Op: table.OpDelete, Context: table.ContextSyscall, Time: time.Now().UnixNano()}); o != table.Accepted {
			t.Errorf("delete a handed over record: got %s, want accepted", o)
		}
	})
	poll.Within(t, deadline, "the record is deleted on all nodes", func() bool {
		return len(live(a.tb)) == 9 && len(live(c.tb)) == 9 && len(live(d.tb)) == 9
	})
	a.tb.Update(func(tx *table.Tx) { tx.EndHandover(time.Now().UnixNano()) })
	has(table.Handover{}, a, b, c, d)
	// The drain may end while a peer does not reach the node.
	a.tb.Update(func(tx *table.Tx) { h = tx.BeginHandover() })
	has(h, b, c, d)
	a.stop()
	has(table.Handover{}, b, c, d)
}

// TestHandoverMessages: the first message of a map has the handover, and a change is sent once.
func TestHandoverMessages(t *testing.T) {
	o := newOutboundFixture(t)
	putTable(t, o.tb, 0, 3, 1)
	if a := o.sendPending()[0].GetAccepted(); a == nil || a.GetHandover() != nil {
		t.Errorf("first message: got %v, want no handover", a)
	}
	handovers := func() (n int, last *mapsyncv1.MapHandover) {
		for _, m := range o.sendPending() {
			if h, ok := m.GetMessage().(*mapsyncv1.SubscribeResponse_Handover); ok {
				n, last = n+1, h.Handover
			}
		}
		return n, last
	}
	var h table.Handover
	o.tb.Update(func(tx *table.Tx) { h = tx.BeginHandover() })
	if n, m := handovers(); n != 1 || m.GetMap() != 1 || m.GetHandover().GetVersion() != uint64(h.Version) || m.GetHandover().GetIncarnation() != 2 {
		t.Errorf("begin: got %d messages, the last one %v, want 1 with %+v", n, m, h)
	}
	if n, _ := handovers(); n != 0 {
		t.Errorf("no change: got %d messages, want 0", n)
	}
	o.tb.Update(func(tx *table.Tx) { tx.EndHandover(1) })
	if n, m := handovers(); n != 1 || m.GetHandover() != nil {
		t.Errorf("end: got %d messages, the last one %v, want 1 without a handover", n, m)
	}
	o.tb.Update(func(tx *table.Tx) { tx.BeginHandover() })
	o.subscribe()
	if a := o.sendPending()[0].GetAccepted(); a.GetHandover().GetVersion() != uint64(h.Version) {
		t.Errorf("first message of a drained node: got %v, want handover %+v", a, h)
	}
}

// TestHandoverOfAnotherIncarnation: a peer announces only what it has handed over itself, and not of an incarnation that
// does not exist yet. The end of its stream withdraws the handover, unless another incarnation has followed.
func TestHandoverOfAnotherIncarnation(t *testing.T) {
	x := newInboundFixture(t)
	message := func(incarnation, version uint64) *mapsyncv1.SubscribeResponse {
		return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Handover{Handover: &mapsyncv1.MapHandover{
			Map: x.in.index, Handover: &mapsyncv1.Handover{Incarnation: incarnation, Version: version},
		}}}
	}
	want := table.Handover{Incarnation: 1, Version: 70}
	x.handle(message(1, 70))
	for _, incarnation := range []uint64{0, 2} {
		if err := x.stream.handle(mustMarshal(t, message(incarnation, 90))); !errors.Is(err, errProtocol) {
			t.Errorf("handover of incarnation %d: got error %v, want a protocol violation", incarnation, err)
		}
	}
	if h := handoverOf(x.tb, "x"); h != want || handoverOf(x.tb, "b") != (table.Handover{}) {
		t.Errorf("handover: got %+v, want %+v of x only", h, want)
	}
	x.r.inboundStreams["x"] = newInboundStream(x.r, Peer{Node: "x", Incarnation: 2})
	x.stream.withdrawHandovers()
	if h := handoverOf(x.tb, "x"); h != want {
		t.Errorf("handover after the end of a replaced stream: got %+v, want %+v", h, want)
	}
	x.r.inboundStreams["x"] = x.stream
	x.stream.withdrawHandovers()
	if h := handoverOf(x.tb, "x"); h != (table.Handover{}) {
		t.Errorf("handover after the end of the stream: got %+v, want none", h)
	}
}

// TestChangesOfHandoverAreLimited has a peer change its handover all the time. Each change looks at all owners of the table.
func TestChangesOfHandoverAreLimited(t *testing.T) {
	x := newInboundFixture(t)
	for i := range uint64(2 * scanBurst) {
		err := x.stream.handle(mustMarshal(t, &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Handover{Handover: &mapsyncv1.MapHandover{
			Map: x.in.index, Handover: &mapsyncv1.Handover{Incarnation: 1, Version: 1 + i},
		}}}))
		if tooMany := i >= scanBurst; errors.Is(err, errProtocol) != tooMany {
			t.Errorf("change %d: got %v, want a protocol error: %t", i, err, tooMany)
		}
	}
}
