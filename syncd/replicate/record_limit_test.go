package replicate

import (
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/table"
)

// TestRecordLimit has a peer send more records than the table may hold: they are counted as
// rejected, and the records of another peer are accepted.
func TestRecordLimit(t *testing.T) {
	tb, err := table.New(table.Options{
		Self: table.Owner{Node: "a", Incarnation: 1}, KeySize: testKeySize, ValueSize: testValueSize, MaxLive: 100,
	})
	if err != nil {
		t.Fatalf("new table: got error %v, want nil", err)
	}
	a := startNode(t, "a", 1, tb)
	b, c := startNode(t, "b", 1, nil), startNode(t, "c", 1, nil)
	b.put(0, 1000, 1)
	connectNodes(a, b)
	poll.Within(t, deadline, "records are rejected", func() bool { return a.r.Rejected()["limit"] > 0 })
	if n := len(live(tb)); n > 100 {
		t.Errorf("records in a table of 100: got %d, want at most 100", n)
	}
	a.r.SetPeers([]Peer{b.peer(), c.peer()})
	c.r.SetPeers([]Peer{a.peer()})
	c.put(2000, 2010, 1)
	poll.Within(t, deadline, "the records of the other peer were accepted", func() bool { return len(live(tb)) >= 10 && hasAll(live(tb), 2000, 2010) })
}

func hasAll[V any](entries map[int]V, from, to int) bool {
	for i := from; i < to; i++ {
		if _, ok := entries[i]; !ok {
			return false
		}
	}
	return true
}

// TestFullTablesConverge has three active nodes with LRU maps of 50 entries, each of which has
// evicted as many records as it holds. The tables have room for the entries of the maps and no
// more. They converge, because evicted records expire in favour of the others.
func TestFullTablesConverge(t *testing.T) {
	const entries = 50
	var nodes []*node
	for i, name := range []string{"a", "b", "c"} {
		tb, err := table.New(table.Options{
			Self: table.Owner{Node: name, Incarnation: 1}, KeySize: testKeySize, ValueSize: testValueSize,
			LRU: true, MaxEntries: entries, MaxLive: 3 * entries, EvictedTTL: time.Hour,
		})
		if err != nil {
			t.Fatalf("new table: got error %v, want nil", err)
		}
		n := startNode(t, name, 1, tb, shortCompare)
		n.put(1000*i, 1000*i+2*entries, 1)
		tb.Update(func(tx *table.Tx) {
			for k := range entries {
				tx.Local(&table.Change{Key: key(1000*i + k), Op: table.OpEvict, Time: time.Now().UnixNano()})
			}
		})
		nodes = append(nodes, n)
	}
	connectNodes(nodes...)
	for i, n := range nodes {
		for k, p := range nodes {
			poll.Within(t, deadline, "every table holds exactly the entries of the maps", func() bool {
				records := live(n.tb)
				return len(records) == 3*entries && hasAll(records, 1000*k+entries, 1000*k+2*entries)
			})
			poll.Within(t, deadline, "digests agree", func() bool {
				m, _ := n.status(p.self.Node, testMap)
				return i == k || m.InSync
			})
		}
	}
}
