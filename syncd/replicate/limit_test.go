package replicate

import (
	"testing"

	"mapsync/syncd/table"
)

// TestRecordsAboveTheLimit: a peer sends more records than the table may hold. They are counted as
// rejected, and another peer's records enter.
func TestRecordsAboveTheLimit(t *testing.T) {
	tb, err := table.New(table.Options{
		Self: table.Owner{Node: "a", Incarnation: 1}, KeySize: testKeySize, ValueSize: testValueSize, MaxLive: 100,
	})
	if err != nil {
		t.Fatal(err)
	}
	a := startNode(t, "a", 1, tb)
	b, c := startNode(t, "b", 1, nil), startNode(t, "c", 1, nil)
	b.put(0, 1000, 1)
	meet(a, b)
	eventually(t, "records are rejected", func() bool { return a.r.Rejected()["limit"] > 0 })
	if n := len(live(tb)); n > 100 {
		t.Errorf("%d records in a table of 100", n)
	}
	a.r.SetPeers([]Peer{b.peer(), c.peer()})
	c.r.SetPeers([]Peer{a.peer()})
	c.put(2000, 2010, 1)
	eventually(t, "the other peer's records are there", func() bool { return len(live(tb)) >= 10 && hasAll(live(tb), 2000, 2010) })
}

func hasAll[V any](entries map[int]V, from, to int) bool {
	for i := from; i < to; i++ {
		if _, ok := entries[i]; !ok {
			return false
		}
	}
	return true
}
