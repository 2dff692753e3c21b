package replicate

import (
	"testing"
	"time"

	"mapsync/syncd/table"
)

// position returns up to where all nodes have acknowledged.
func (n *node) acknowledgedPosition() uint64 {
	return n.r.ackView(time.Now()).position(n.r.localMaps()[testMap])
}

// TestTombstonesAreKeptWhileANodeIsAway: three nodes acknowledge a delete, so that the owner may
// forget it. When one of them leaves, or has not come yet, tombstones are kept.
func TestTombstonesAreKeptWhileANodeIsAway(t *testing.T) {
	a := startNode(t, "a", 1, nil, func(o *Options) { o.Expected = 2 })
	b, c := startNode(t, "b", 1, nil), startNode(t, "c", 1, nil)
	meet(a, b)
	a.put(0, 10, 1)
	eventually(t, "b has all", func() bool { return len(live(b.tb)) == 10 })
	if p := a.acknowledgedPosition(); p != 0 {
		t.Fatalf("position %d without an expected peer", p)
	}
	meet(a, b, c)
	eventually(t, "all have acknowledged", func() bool { return a.acknowledgedPosition() >= 10 })
	a.r.SetPeers([]Peer{b.peer()})
	if p := a.acknowledgedPosition(); p != 0 {
		t.Errorf("position %d although a peer left", p)
	}
	a.r.SetPeers([]Peer{b.peer(), c.peer()})
	eventually(t, "it is back", func() bool { return a.acknowledgedPosition() >= 10 })
	// It left for longer than a tombstone lives.
	a.r.SetPeers([]Peer{b.peer()})
	a.r.mu.Lock()
	a.r.goneAt["c"] = time.Now().Add(-2 * time.Hour)
	a.r.known = a.r.goneAt["c"]
	a.r.mu.Unlock()
	eventually(t, "a node that left long ago is not waited for", func() bool { return a.acknowledgedPosition() >= 10 })
}

// TestAcknowledgedDeletesLeaveTheTable: short sessions come and go, and no table keeps their
// tombstones.
func TestAcknowledgedDeletesLeaveTheTable(t *testing.T) {
	var nodes []*node
	for _, name := range []string{"a", "b", "c"} {
		tb, err := table.New(table.Options{
			Self: table.Owner{Node: name, Incarnation: 1}, KeySize: testKeySize, ValueSize: testValueSize,
			TombstoneTTL: time.Hour, TombstoneGrace: time.Millisecond,
		})
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, startNode(t, name, 1, tb))
	}
	meet(nodes...)
	a := nodes[0]
	a.put(0, 100, 1)
	eventually(t, "all have all", func() bool { return len(live(nodes[1].tb)) == 100 && len(live(nodes[2].tb)) == 100 })
	a.tb.Update(func(tx *table.Tx) {
		now := time.Now().UnixNano()
		for i := range 100 {
			tx.Local(&table.Change{Key: key(i), Time: now, Op: table.OpDelete})
		}
	})
	eventually(t, "no tombstone is left", func() bool {
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
