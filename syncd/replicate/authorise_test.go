package replicate

import (
	"math"
	"slices"
	"testing"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// ownedBatch is a batch of the peer x with a record for each owner, whose keys are their
// numbers in the list.
func ownedBatch(owners ...*mapsyncv1.Incarnation) *mapsyncv1.SubscribeResponse {
	keys := make([]int, len(owners))
	for i := range keys {
		keys[i] = i
	}
	m := stockBatch(1, 0, 10, keys...)
	m.GetBatch().Owners = owners
	for i, d := range m.GetBatch().GetDeltas() {
		d.Owner = uint32(i)
	}
	return m
}

// Records come from their owner, or as requested; all others are rejected and counted.
func TestRecordsAreAuthorised(t *testing.T) {
	owners := []*mapsyncv1.Incarnation{
		{Node: "x", Number: 1},              // the peer's own
		{Node: "c", Number: 3},              // another live node's
		{Node: "b", Number: 1},              // of an earlier incarnation of this node
		{Node: "b", Number: 77},             // of a later one
		{Node: "x", Number: 2},              // of a later one of the peer
		{Node: "d", Number: 1},              // orphaned
		{Node: "e", Number: math.MaxUint64}, // of a process that starts in the future
	}
	for name, c := range map[string]struct {
		change func(l *link, in *intake)
		want   []int
		counts map[string]uint64
	}{
		"orphaned records are requested": {
			func(_ *link, in *intake) { in.requesting.permit = &permit{peer: "x", orphaned: true} },
			[]int{0, 2, 5},
			map[string]uint64{"unrequested": 1, "incarnation": 3},
		},
		"nothing is requested": {
			func(_ *link, in *intake) { in.requesting.permit = &permit{peer: "x"} },
			[]int{0, 2},
			map[string]uint64{"unrequested": 2, "incarnation": 3},
		},
		"a live node's records are requested": {
			func(_ *link, in *intake) { in.requesting.permit = &permit{peer: "x", nodes: []string{"c"}} },
			[]int{0, 1, 2},
			map[string]uint64{"unrequested": 1, "incarnation": 3},
		},
		"a full sync for entries without an owner": {
			func(_ *link, in *intake) { in.requesting.permit = &permit{peer: "x", all: true} },
			[]int{0, 1, 2, 5},
			map[string]uint64{"incarnation": 3},
		},
		"write-from has the peer and this node": {
			func(_ *link, in *intake) {
				in.requesting.permit = &permit{peer: "x", all: true}
				in.m.access.Write = func(node string) bool { return node == "x" || node == "b" }
			},
			[]int{0, 2},
			map[string]uint64{"write_from": 2, "incarnation": 3},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, tb := newReceiver(t)
			r.SetPeers([]Peer{{Node: "x", Incarnation: 1, Addr: "127.0.0.1:1"}, {Node: "c", Incarnation: 3, Addr: "127.0.0.1:1"}})
			l, in := acceptedLink(r, Peer{Node: "x", Incarnation: 1})
			c.change(l, in)
			if err := l.take(mustMarshal(t, ownedBatch(owners...))); err != nil {
				t.Fatal(err)
			}
			var got []int
			for k := range live(tb) {
				got = append(got, k)
			}
			if slices.Sort(got); !slices.Equal(got, c.want) {
				t.Errorf("records %v are in the table, want %v", got, c.want)
			}
			for why, n := range r.Rejected() {
				if n != c.counts[why] {
					t.Errorf("%d rejected as %s, want %d", n, why, c.counts[why])
				}
			}
			if want := c.counts["unrequested"] > 0; in.requesting.withheld != want {
				t.Errorf("withheld is %v, want %v", in.requesting.withheld, want)
			}
		})
	}
}

// access restricts the map testMap of a node.
func (n *node) access(a Access) {
	n.t.Helper()
	n.r.opt.Access = func(string) Access { return a }
	n.r.RemoveMap(testMap)
	if err := n.r.AddMap(testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}, n.tb); err != nil {
		n.t.Fatal(err)
	}
}

func only(names ...string) func(string) bool {
	return func(node string) bool { return slices.Contains(names, node) }
}

// A map goes to the nodes of read-from alone, and comes from those of write-from alone;
// no node waits for the others.
func TestAccessOfAMap(t *testing.T) {
	a, b, c := startNode(t, "a", 1, nil), startNode(t, "b", 2, nil), startNode(t, "c", 3, nil)
	for _, n := range []*node{a, b, c} {
		n.access(Access{Read: only("a", "b"), Write: only("a", "c")})
	}
	meet(a, b, c)
	a.put(0, 10, 1)
	b.put(10, 20, 1)
	c.put(20, 30, 1)
	eventually(t, "a and b have what a and c wrote", func() bool { return len(live(a.tb)) == 20 && len(live(b.tb)) == 30 })
	if n := len(live(c.tb)); n != 10 {
		t.Errorf("c has %d records, want its own 10", n)
	}
	if _, ok := live(a.tb)[10]; ok {
		t.Error("a has what b wrote")
	}
	eventually(t, "a is in sync", func() bool {
		synced, _ := a.r.SyncedAll()
		agreed, _ := a.r.Agreed()
		return synced && agreed
	})
	with := func(n *node, peer string) (receive, send State) {
		m, _ := n.status(peer, testMap)
		return m.State, m.SendState
	}
	eventually(t, "the states say so", func() bool {
		receive, send := with(a, "b")
		other, refused := with(a, "c")
		return receive == StateExcluded && send == StateServed && other == StateCaughtUp && refused == StateExcluded
	})
	if receive, send := with(b, "a"); receive != StateCaughtUp || send != StateExcluded {
		t.Errorf("b receives from a: %s, and sends to it: %s", receive, send)
	}
}
