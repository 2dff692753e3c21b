package replicate

import (
	"math"
	"slices"
	"testing"

	"mapsync/internal/poll"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// ownedBatch returns a batch of peer x with one record for each owner. The key of a record is the
// index of its owner.
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

// loadUnadopted enters an unadopted entry, and permits the records of all owners as a subscription does then.
func loadUnadopted(in *inboundMap) {
	in.owners.permit = &permit{peer: "x", all: true}
	in.m.table.Update(func(tx *table.Tx) { tx.Load(key(99), value(1)) })
}

// TestRecordsAreAuthorised checks that records are accepted from their owner or on request, and
// that all others are rejected and counted.
func TestRecordsAreAuthorised(t *testing.T) {
	owners := []*mapsyncv1.Incarnation{
		{Node: "x", Number: 1},              // the peer
		{Node: "c", Number: 3},              // another live node
		{Node: "b", Number: 1},              // an earlier incarnation of this node
		{Node: "b", Number: 77},             // a later incarnation of this node
		{Node: "x", Number: 2},              // a later incarnation of the peer
		{Node: "d", Number: 1},              // orphaned
		{Node: "e", Number: math.MaxUint64}, // an incarnation in the future
	}
	for name, c := range map[string]struct {
		change func(s *inboundStream, in *inboundMap)
		want   []int
		counts map[string]uint64
	}{
		"orphaned records are requested": {
			func(_ *inboundStream, in *inboundMap) { in.owners.permit = &permit{peer: "x", orphaned: true} },
			[]int{0, 2, 5},
			map[string]uint64{"unrequested": 1, "incarnation": 3},
		},
		"nothing is requested": {
			func(_ *inboundStream, in *inboundMap) { in.owners.permit = &permit{peer: "x"} },
			[]int{0, 2},
			map[string]uint64{"unrequested": 2, "incarnation": 3},
		},
		"the records of a live node are requested": {
			func(_ *inboundStream, in *inboundMap) { in.owners.permit = &permit{peer: "x", nodes: []string{"c"}} },
			[]int{0, 1, 2},
			map[string]uint64{"unrequested": 1, "incarnation": 3},
		},
		"a full sync for unadopted entries": {
			func(_ *inboundStream, in *inboundMap) { loadUnadopted(in) },
			[]int{0, 2, 5},
			map[string]uint64{"incarnation": 3},
		},
		"a full sync for entries that are adopted by now": {
			func(_ *inboundStream, in *inboundMap) { in.owners.permit = &permit{peer: "x", all: true} },
			[]int{0, 2},
			map[string]uint64{"unrequested": 2, "incarnation": 3},
		},
		"write-from lists the peer and this node": {
			func(_ *inboundStream, in *inboundMap) {
				in.owners.permit = &permit{peer: "x", all: true}
				in.m.access.Write = func(node string) bool { return node == "x" || node == "b" }
			},
			[]int{0, 2},
			map[string]uint64{"write_from": 2, "incarnation": 3},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, tb := newTestReplicator(t)
			r.SetPeers([]Peer{{Node: "x", Incarnation: 1, Addr: "127.0.0.1:1"}, {Node: "c", Incarnation: 3, Addr: "127.0.0.1:1"}})
			s, in := newAcceptedStream(r, Peer{Node: "x", Incarnation: 1})
			c.change(s, in)
			if err := s.handle(mustMarshal(t, ownedBatch(owners...))); err != nil {
				t.Fatalf("handle message: got error %v, want nil", err)
			}
			var got []int
			for k := range live(tb) {
				got = append(got, k)
			}
			if slices.Sort(got); !slices.Equal(got, c.want) {
				t.Errorf("records in the table: got %v, want %v", got, c.want)
			}
			for why, n := range r.Rejected() {
				if n != c.counts[why] {
					t.Errorf("rejected: got %d as %s, want %d", n, why, c.counts[why])
				}
			}
			if want := c.counts["unrequested"] > 0 || name == "a full sync for unadopted entries"; in.owners.rejectedUnrequested != want {
				t.Errorf("rejectedUnrequested: got %v, want %v", in.owners.rejectedUnrequested, want)
			}
		})
	}
}

// restrictAccess sets the access of testMap on a node.
func (n *node) restrictAccess(a Access) {
	n.t.Helper()
	n.r.opt.Access = func(string) Access { return a }
	n.r.RemoveMap(testMap)
	if err := n.r.AddMap(testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}, n.tb); err != nil {
		n.t.Fatalf("add map: got error %v, want nil", err)
	}
}

// matchOnly returns a function that matches the given names.
func matchOnly(names ...string) func(string) bool {
	return func(node string) bool { return slices.Contains(names, node) }
}

// TestAccessOfAMap checks that only the nodes of read-from receive a map, that records are accepted
// only from the nodes of write-from, and that no node waits for the others.
func TestAccessOfAMap(t *testing.T) {
	a, b, c := startNode(t, "a", 1, nil), startNode(t, "b", 2, nil), startNode(t, "c", 3, nil)
	for _, n := range []*node{a, b, c} {
		n.restrictAccess(Access{Read: matchOnly("a", "b"), Write: matchOnly("a", "c")})
	}
	connectNodes(a, b, c)
	a.put(0, 10, 1)
	b.put(10, 20, 1)
	c.put(20, 30, 1)
	poll.Within(t, deadline, "a and b hold the records of a and c", func() bool { return len(live(a.tb)) == 20 && len(live(b.tb)) == 30 })
	if n := len(live(c.tb)); n != 10 {
		t.Errorf("records of c: got %d, want its own 10", n)
	}
	if _, ok := live(a.tb)[10]; ok {
		t.Error("records of a: got a record of b, want none")
	}
	poll.Within(t, deadline, "a is in sync", func() bool {
		synced, _ := a.r.InitialSyncDone()
		agreed, _ := a.r.InSync()
		return synced && agreed
	})
	with := func(n *node, peer string) (receive, send State) {
		m, _ := n.status(peer, testMap)
		return m.State, m.SendState
	}
	poll.Within(t, deadline, "the states show the access", func() bool {
		receive, send := with(a, "b")
		other, refused := with(a, "c")
		fromA, toA := with(b, "a")
		return receive == StateExcluded && send == StateServed && other == StateCaughtUp && refused == StateExcluded &&
			fromA == StateCaughtUp && toA == StateExcluded
	})
}
