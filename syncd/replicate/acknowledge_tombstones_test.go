package replicate

import (
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/table"
)

// acknowledgedPosition returns the position that all nodes have acknowledged.
func (n *node) acknowledgedPosition() uint64 {
	return n.r.ackSnapshot(time.Now()).position(n.r.localMaps()[testMap])
}

// TestTombstonesAreKeptWhileNodeIsAbsent has three nodes acknowledge a delete, so that the owner
// may forget it. The owner keeps tombstones while one of the nodes is absent.
func TestTombstonesAreKeptWhileNodeIsAbsent(t *testing.T) {
	a := startNode(t, "a", 1, nil, func(o *Options) { o.Expected = 2 })
	b, c := startNode(t, "b", 1, nil), startNode(t, "c", 1, nil)
	connectNodes(a, b)
	a.put(0, 10, 1)
	poll.Within(t, deadline, "b holds all records", func() bool { return len(live(b.tb)) == 10 })
	if p := a.acknowledgedPosition(); p != 0 {
		t.Fatalf("acknowledged position while an expected peer is missing: got %d, want 0", p)
	}
	connectNodes(a, b, c)
	poll.Within(t, deadline, "all nodes have acknowledged", func() bool { return a.acknowledgedPosition() >= 10 })
	a.r.SetPeers([]Peer{b.peer()})
	if p := a.acknowledgedPosition(); p != 0 {
		t.Errorf("acknowledged position after a peer has left: got %d, want 0", p)
	}
	a.r.SetPeers([]Peer{b.peer(), c.peer()})
	poll.Within(t, deadline, "the node is back", func() bool { return a.acknowledgedPosition() >= 10 })
	// The peer has been absent for longer than the TombstoneTTL.
	a.r.SetPeers([]Peer{b.peer()})
	a.r.mu.Lock()
	a.r.goneAt["c"] = time.Now().Add(-2 * time.Hour)
	a.r.membershipSince = a.r.goneAt["c"]
	a.r.mu.Unlock()
	poll.Within(t, deadline, "the position no longer waits for a node that left long ago", func() bool { return a.acknowledgedPosition() >= 10 })
}

// TestAcknowledgedDeletesLeaveTheTable checks with short-lived entries that tables forget
// acknowledged tombstones.
func TestAcknowledgedDeletesLeaveTheTable(t *testing.T) {
	var nodes []*node
	for _, name := range []string{"a", "b", "c"} {
		tb, err := table.New(table.Options{
			Self: table.Owner{Node: name, Incarnation: 1}, KeySize: testKeySize, ValueSize: testValueSize,
			TombstoneTTL: time.Hour, TombstoneGrace: time.Millisecond,
		})
		if err != nil {
			t.Fatalf("new table: got error %v, want nil", err)
		}
		nodes = append(nodes, startNode(t, name, 1, tb))
	}
	connectNodes(nodes...)
	a := nodes[0]
	a.put(0, 100, 1)
	poll.Within(t, deadline, "all nodes hold all records", func() bool { return len(live(nodes[1].tb)) == 100 && len(live(nodes[2].tb)) == 100 })
	a.tb.Update(func(tx *table.Tx) {
		now := time.Now().UnixNano()
		for i := range 100 {
			tx.Local(&table.Change{Key: key(i), Time: now, Op: table.OpDelete})
		}
	})
	poll.Within(t, deadline, "all tombstones are forgotten", func() bool {
		left := 0
		for _, n := range nodes {
			n.tb.Update(func(tx *table.Tx) {
				for tx.Expire(time.Now().UnixNano(), 100) {
				}
			})
			left += n.tb.Stats().Tombstones + n.tb.Stats().Live
		}
		return left == 0
	})
}
