package replicate

import (
	"testing"

	"mapsync/syncd/table"
)

// A node that starts with a full map must not take for its own what an owner
// owns that is away just now: b still counts a as live, and only c can tell.
func TestNodeWithUnclaimedEntriesIsToldAll(t *testing.T) {
	a, b, c := startNode(t, "a", 1, nil), startNode(t, "b", 1, nil), startNode(t, "c", 1, nil)
	meet(a, b, c)
	a.put(0, 500, 1)
	eventually(t, "equal", func() bool { return len(live(b.tb)) == 500 && equal(a, b, c)() })
	b.stop()
	a.put(0, 100, 2) // what b's map will not have
	eventually(t, "c has a's changes", equal(a, c))
	a.stop()

	self := table.Owner{Node: "b", Incarnation: 2}
	tb := newTable(t, self, true)
	tb.Update(func(tx *table.Tx) {
		for i := range 500 {
			tx.Load(key(i), value(1))
		}
	})
	b2 := startNode(t, "b", 2, tb)
	b2.r.SetPeers([]Peer{a.peer(), c.peer()})
	c.r.SetPeers([]Peer{a.peer(), b2.peer()})
	eventually(t, "nothing is left to claim", func() bool { return tb.Stats().Unversioned == 0 })
	eventually(t, "b has what c knows of a", equal(b2, c))
}
