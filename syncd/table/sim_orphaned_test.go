package table_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"mapsync/syncd/table"
	"mapsync/syncd/table/tabletest"
)

// TestOrphanedRecordsAreSentOnce: a joiner receives each orphaned record once, from the node that
// started first, for any names and any number of nodes. The joiner sends the orphaned records to that
// node only. If the clock of the joiner is behind the clocks of all others, it takes the place of that
// node. Then each of the others sends its orphaned records to the joiner once.
func TestOrphanedRecordsAreSentOnce(t *testing.T) {
	tables := tabletest.NewTables(table.Internals{})
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		nodes := 3 + r.IntN(tabletest.MaxNodes-2)
		testOrphanedRecords(t, r, tables, nodes, r.IntN(4) == 0)
		tables.Release()
	}
}

func testOrphanedRecords(t *testing.T, r *rand.Rand, tables *tabletest.Tables, nodes int, behind bool) {
	w := tabletest.NewWorld(t, tables, tabletest.NodeNames(nodes)...)
	order := r.Perm(nodes)
	joiner, departed, left := w.Nodes[order[0]], w.Nodes[order[1]], order[2:]
	for _, i := range order[1:] {
		w.Now += int64(time.Second)
		w.Nodes[i].Start()
	}
	mustConverge(t, w)
	orphans := make([]int, 1+r.IntN(20))
	for k := range orphans {
		departed.Put(w.Key([]byte{byte(k), 7: 1}), tabletest.Value{1}, 0, table.ContextPacket, true, 0)
	}
	other := w.Key([]byte{7: 2})
	w.Nodes[left[0]].Put(other, tabletest.Value{1}, 0, table.ContextPacket, true, 0)
	mustConverge(t, w)
	departed.Stop()
	mustConverge(t, w)

	first := left[0]
	echoes, wrong := 0, 0
	w.OnReceive = func(from, to *tabletest.Node, key int) {
		switch {
		case key == other && to == joiner:
		case to == joiner && (from.ID == first || behind):
			orphans[key]++
		case from == joiner && (to.ID == first || behind):
			echoes++
		default:
			wrong++
		}
	}
	if w.Now += int64(time.Second); behind {
		joiner.Offset = -int64(time.Hour)
	}
	joiner.Start()
	mustConverge(t, w)
	want := 1
	if behind {
		want = len(left)
	}
	for k, n := range orphans {
		if n != want {
			t.Fatalf("%d nodes: orphaned record %d: got sent %d times, want %d", nodes, k, n, want)
		}
	}
	if wrong != 0 || echoes != want*len(orphans) {
		t.Fatalf("%d nodes, behind %v: got %d unnecessary records and %d of %d echoes, want 0 and %d", nodes, behind, wrong, echoes, len(orphans), want*len(orphans))
	}
}

func mustConverge(t *testing.T, w *tabletest.World) {
	t.Helper()
	if err := w.Converge(); err != nil {
		t.Fatal(err)
	}
}
