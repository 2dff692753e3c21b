package table_test

import (
	"testing"
	"time"

	"mapsync/syncd/table"
	"mapsync/syncd/table/tabletest"
)

// TestTombstoneBelowAFilteredRecord: the clock of a was set back, so that a filters a record of its earlier incarnation, and has
// a new map. Its load balancer writes and deletes the entry. The tombstone stays although b has acknowledged it: b keeps the
// newer record, which a receives in the end.
func TestTombstoneBelowAFilteredRecord(t *testing.T) {
	w := tabletest.NewWorld(t, tabletest.NewTables(table.Internals{}), "a", "b")
	a, k := w.Nodes[0], w.Key([]byte{7: 1})
	a.Offset = int64(time.Hour)
	run := func() {
		for range 40 {
			w.Now += int64(300 * time.Millisecond)
			for _, n := range w.Nodes {
				n.Daemon.RunUntilIdle()
			}
			w.PumpAll()
		}
	}
	for _, n := range w.Nodes {
		n.Start()
	}
	run()
	a.Put(k, tabletest.Value{1}, 0, table.ContextPacket, true, 0)
	run()

	a.Stop()
	a.Offset, a.Map = 0, w.NewMap()
	a.FilterLater()
	a.Start()
	run()
	a.Put(k, tabletest.Value{2}, 0, table.ContextPacket, true, 0)
	run()
	a.Remove(k, 0, table.ContextPacket, true, 0)
	run()
	if c := w.Nodes[1].Daemon.Content(k); !c.Live() {
		t.Fatalf("b: got %v, want the record of the earlier incarnation", &c)
	}
	w.Heal()
	mustConverge(t, w)
	for _, n := range w.Nodes {
		if c := n.Daemon.Content(k); c.Live() {
			t.Errorf("%s: got %v, want a delete", n.Name, &c)
		}
	}
}
