package replicate

import (
	"math/rand/v2"
	"testing"
	"time"

	"mapsync/syncd/table"
)

// TestChaos lets three nodes change the same keys while streams are cut, nodes
// leave and come back, and one of them starts anew with what its map held.
func TestChaos(t *testing.T) {
	nodes := []*node{startNode(t, "a", 1, nil), startNode(t, "b", 1, nil), startNode(t, "c", 1, nil)}
	meet(nodes...)
	rnd := rand.New(rand.NewPCG(1, uint64(time.Now().UnixNano())))
	life := uint64(1)
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
		switch rnd.IntN(60) {
		case 0:
			nodes[rnd.IntN(3)].lis.cut()
		case 1:
			i := rnd.IntN(3)
			meet(nodes[(i+1)%3], nodes[(i+2)%3])
			nodes[i].r.SetPeers(nil)
		case 2, 3:
			meet(nodes...)
		case 4:
			life++
			nodes[rnd.IntN(3)].restart(life, rnd, nodes)
		default:
			scribble(nodes[rnd.IntN(3)].tb, rnd)
		}
		time.Sleep(time.Millisecond)
	}
	meet(nodes...)
	eventually(t, "all synced", func() bool {
		for _, n := range nodes {
			if ok, _ := n.r.SyncedAll(); !ok {
				return false
			}
			n.claim()
		}
		return true
	})
	t.Cleanup(func() {
		if t.Failed() {
			for k, v := range dump(nodes[0].tb) {
				if b, c := dump(nodes[1].tb)[k], dump(nodes[2].tb)[k]; v != b || v != c {
					t.Logf("key %x: %s | %s | %s", k, v, b, c)
				}
			}
		}
	})
	eventually(t, "all equal", equal(nodes...))
	for _, n := range nodes {
		if s := n.r.Stats(); s.GapsOrErrors() != 0 {
			t.Errorf("errors on the way: %+v", s)
		}
	}
}

// scribble makes a few changes of the data plane.
func scribble(tb *table.Table, rnd *rand.Rand) {
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

// restart replaces a node by a new life, while whose daemon was down the map
// went on to change.
func (n *node) restart(life uint64, rnd *rand.Rand, nodes []*node) {
	n.stop()
	scribble(n.tb, rnd)
	content := live(n.tb)
	self := table.Owner{Node: n.self.Node, Incarnation: life}
	tb := newTable(n.t, self, true)
	tb.Update(func(tx *table.Tx) {
		for k, v := range content {
			tx.Load(key(k), value(v))
		}
	})
	*n = *startNode(n.t, self.Node, life, tb)
	meet(nodes...)
	eventually(n.t, "synced after a restart", func() bool { ok, _ := n.r.SyncedAll(); return ok })
	n.claim()
}

func (n *node) claim() {
	n.tb.Update(func(tx *table.Tx) {
		for tx.Claim(100) {
		}
	})
}
