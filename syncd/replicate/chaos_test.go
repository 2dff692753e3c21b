package replicate

import (
	"math/rand/v2"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/table"
)

// TestChaos has three nodes change the same keys while streams are cut, nodes leave and come back,
// and one node restarts with the content of its map.
func TestChaos(t *testing.T) {
	nodes := []*node{startNode(t, "a", 1, nil), startNode(t, "b", 1, nil), startNode(t, "c", 1, nil)}
	connectNodes(nodes...)
	rnd := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	inc := uint64(1)
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		switch rnd.IntN(60) {
		case 0:
			nodes[rnd.IntN(3)].lis.cut()
		case 1:
			i := rnd.IntN(3)
			connectNodes(nodes[(i+1)%3], nodes[(i+2)%3])
			nodes[i].r.SetPeers(nil)
		case 2, 3:
			connectNodes(nodes...)
		case 4:
			inc++
			nodes[rnd.IntN(3)].restart(inc, rnd, nodes)
		default:
			applyRandomChanges(nodes[rnd.IntN(3)].tb, rnd)
		}
		time.Sleep(time.Millisecond) // the rate of faults and changes
	}
	connectNodes(nodes...)
	poll.Within(t, deadline, "all nodes are in sync", func() bool {
		for _, n := range nodes {
			if ok, _ := n.r.InitialSyncDone(); !ok {
				return false
			}
			n.adopt()
		}
		return true
	})
	t.Cleanup(func() {
		if t.Failed() {
			for k, v := range dump(nodes[0].tb) {
				if b, c := dump(nodes[1].tb)[k], dump(nodes[2].tb)[k]; v != b || v != c {
					t.Logf("key %x: got %s | %s | %s", k, v, b, c)
				}
			}
		}
	})
	poll.Within(t, deadline, "all tables are equal", tablesEqual(nodes...))
	for _, n := range nodes {
		if s := n.r.Stats(); s.GapsOrErrors() != 0 {
			t.Errorf("errors during the test: got %+v, want none", s)
		}
	}
}

// applyRandomChanges makes a few random changes of the data plane.
func applyRandomChanges(tb *table.Table, rnd *rand.Rand) {
	tb.Update(func(tx *table.Tx) {
		for range 20 {
			c := table.Change{Key: key(rnd.IntN(500)), Time: time.Now().UnixNano(), Op: table.OpDelete}
			if rnd.IntN(3) > 0 {
				c.Op, c.Value = table.OpUpdate, value(rnd.IntN(1000))
			}
			tx.Local(&c)
		}
	})
}

// restart replaces a node by a new incarnation. The map has changed while the daemon was down.
func (n *node) restart(inc uint64, rnd *rand.Rand, nodes []*node) {
	n.stop()
	applyRandomChanges(n.tb, rnd)
	content := live(n.tb)
	self := table.Owner{Node: n.self.Node, Incarnation: inc}
	tb := newTable(n.t, self, true)
	tb.Update(func(tx *table.Tx) {
		for k, v := range content {
			tx.Load(key(k), value(v))
		}
	})
	*n = *startNode(n.t, self.Node, inc, tb)
	connectNodes(nodes...)
	poll.Within(n.t, deadline, "synced after a restart", func() bool { ok, _ := n.r.InitialSyncDone(); return ok })
	n.adopt()
}

func (n *node) adopt() {
	n.tb.Update(func(tx *table.Tx) {
		for tx.Adopt(100) {
		}
	})
}
