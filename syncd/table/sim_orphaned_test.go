package table

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestOrphanedRecordsAreSentOnce: a joiner receives each orphaned record once, from the node that
// started first, for any names and any number of nodes. The joiner sends the orphaned records to that
// node only. If the clock of the joiner is behind the clocks of all others, it takes the place of that
// node. Then each of the others sends its orphaned records to the joiner once.
func TestOrphanedRecordsAreSentOnce(t *testing.T) {
	tables := newTables(Internals{})
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		nodes := 3 + r.IntN(simMaxNodes-2)
		testOrphanedRecords(t, r, tables, nodes, r.IntN(4) == 0)
		tables.release()
	}
}

func testOrphanedRecords(t *testing.T, r *rand.Rand, tables *simTables, nodes int, behind bool) {
	s := newSim(t, tables, simNames(nodes)...)
	order := r.Perm(nodes)
	joiner, departed, left := s.nodes[order[0]], s.nodes[order[1]], order[2:]
	for _, i := range order[1:] {
		s.now += int64(time.Second)
		s.nodes[i].start()
	}
	mustConverge(t, s)
	orphans := make([]int, 1+r.IntN(20))
	for k := range orphans {
		departed.put(s.key([]byte{byte(k), 7: 1}), entryValue{1}, 0, ContextPacket, true, 0)
	}
	other := s.key([]byte{7: 2})
	s.nodes[left[0]].put(other, entryValue{1}, 0, ContextPacket, true, 0)
	mustConverge(t, s)
	departed.stop()
	mustConverge(t, s)

	first := left[0]
	echoes, wrong := 0, 0
	s.onReceive = func(st *simStream, d *simDelta, _ Outcome) {
		from, to := st.from.n.id, st.to.n.id
		switch {
		case d.key == other && to == joiner.id:
		case to == joiner.id && (from == first || behind):
			orphans[d.key]++
		case from == joiner.id && (to == first || behind):
			echoes++
		default:
			wrong++
		}
	}
	if s.now += int64(time.Second); behind {
		joiner.offset = -int64(time.Hour)
	}
	joiner.start()
	mustConverge(t, s)
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
		t.Fatalf("%d nodes, behind %v: got %d unnecessary records and %d of %d echoes", nodes, behind, wrong, echoes, len(orphans))
	}
}

func mustConverge(t *testing.T, s *sim) {
	t.Helper()
	if err := s.converge(); err != nil {
		t.Fatal(err)
	}
}

// simNames returns names of nodes in ascending order.
func simNames(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = string(rune('a' + i))
	}
	return all
}
