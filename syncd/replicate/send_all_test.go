package replicate

import (
	"testing"

	"mapsync/internal/poll"
	"mapsync/syncd/table"
)

// TestNodeWithUnadoptedEntriesIsSentAll checks that a node that starts with a full map does not
// adopt entries of an unreachable owner: b still has a as live, and only c can send its records.
func TestNodeWithUnadoptedEntriesIsSentAll(t *testing.T) {
	a, b, c := startNode(t, "a", 1, nil), startNode(t, "b", 1, nil), startNode(t, "c", 1, nil)
	connectNodes(a, b, c)
	a.put(0, 500, 1)
	poll.Within(t, deadline, "the tables are equal", func() bool { return len(live(b.tb)) == 500 && tablesEqual(a, b, c)() })
	b.stop()
	a.put(0, 100, 2) // the map of b does not have these
	poll.Within(t, deadline, "c holds the changes of a", tablesEqual(a, c))
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
	poll.Within(t, deadline, "all entries are adopted", func() bool { return tb.Stats().Unversioned == 0 })
	poll.Within(t, deadline, "b has received the records of a from c", tablesEqual(b2, c))
}
