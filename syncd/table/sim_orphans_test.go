package table

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestOrphansAreToldOnce: what a dead node left behind a joiner is told once, by the node that
// started first, whatever the joiner is called and however many hold it; and nobody else
// is told anything but that node, by the joiner. If the joiner's clock is behind those
// of all others it takes that node's place, and each of them tells it what it has, once.
func TestOrphansAreToldOnce(t *testing.T) {
	tables := &simTables{}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		nodes := 3 + r.IntN(simMaxNodes-2)
		orphanage(t, r, tables, nodes, r.IntN(4) == 0)
		tables.release()
	}
}

func orphanage(t *testing.T, r *rand.Rand, tables *simTables, nodes int, behind bool) {
	s := newSim(t, simNames(nodes)...)
	s.tables = tables
	order := r.Perm(nodes)
	joiner, dead, left := s.nodes[order[0]], s.nodes[order[1]], order[2:]
	for _, i := range order[1:] {
		s.now += int64(time.Second)
		s.nodes[i].start()
	}
	settled(t, s)
	orphans := make([]int, 1+r.IntN(20))
	for k := range orphans {
		dead.put(s.key([]byte{byte(k), 7: 1}), entryValue{1}, 0, ContextPacket, true, 0)
	}
	other := s.key([]byte{7: 2})
	s.nodes[left[0]].put(other, entryValue{1}, 0, ContextPacket, true, 0)
	settled(t, s)
	dead.stop()
	settled(t, s)

	first := left[0]
	echoes, wrong := 0, 0
	s.told = func(st *simStream, d *simDelta, _ Outcome) {
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
	settled(t, s)
	want := 1
	if behind {
		want = len(left)
	}
	for k, n := range orphans {
		if n != want {
			t.Fatalf("%d nodes: orphan %d was told %d times, expected %d", nodes, k, n, want)
		}
	}
	if wrong != 0 || echoes != want*len(orphans) {
		t.Fatalf("%d nodes, behind %v: %d records sent without need, %d echoes of %d", nodes, behind, wrong, echoes, len(orphans))
	}
}

func settled(t *testing.T, s *sim) {
	t.Helper()
	if err := s.settle(); err != nil {
		t.Fatal(err)
	}
}

// simNames returns names in their order.
func simNames(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = string(rune('a' + i))
	}
	return all
}
