package daemon_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"mapsync/internal/poll"
)

// behind is by how much a clock is behind in these tests, far above max-clock-ahead.
const behind = 20 * time.Minute

// countEntries returns the number of entries of a map.
func countEntries(t *testing.T, m *ebpf.Map) (n int) {
	t.Helper()
	var key, value []byte
	it := m.Iterate()
	for ; it.Next(&key, &value); n++ {
	}
	if err := it.Err(); err != nil {
		t.Fatal(err)
	}
	return n
}

// comparisons returns the number of digest comparisons that a node has made.
func (n *node) comparisons() (sum uint64) {
	n.t.Helper()
	for _, outcome := range []string{"agree", "divergent", "impossible"} {
		sum += n.counter("mapsync_digest_rounds_total", `{outcome="`+outcome+`"}`)
	}
	return sum
}

// counter returns the value of a metric's sample with these labels.
func (n *node) counter(name, labels string) uint64 {
	n.t.Helper()
	v, err := strconv.ParseUint(n.sample(name, labels), 10, 64)
	if err != nil {
		n.t.Fatalf("metric %s%s: got error %v, want a number", name, labels, err)
	}
	return v
}

// nodesWithClockBehind returns two nodes. The first one has started before its clock was set, so that the second one
// accepts its start time with a clock that is behind.
func nodesWithClockBehind(t *testing.T) (n1, n2 *node, m1, m2 *ebpf.Map) {
	t.Helper()
	n1, n2, m1, m2 = twoNodes(t, 1000)
	var right, wrong steppedClock
	right.set(-behind)
	wrong.set(-behind)
	n1.wall, n2.wall = right.now, wrong.now
	n1.start()
	n1.write(m1, 0, 10, 1)
	poll.Eventually(t, "the first node has the entries", func() bool { return n1.status().Maps[0].Live == 10 })
	right.set(0)
	return n1, n2, m1, m2
}

// TestClockBehindKeepsEntries: the clock of a standby is behind. The sessions of the active node that change stay in
// the standby's kernel map at each moment, while repairs and full syncs do not bring them. It receives them once its clock is right.
func TestClockBehindKeepsEntries(t *testing.T) {
	n1, n2, m1, m2 := nodesWithClockBehind(t)
	var clock steppedClock
	clock.set(-behind)
	n2.wall = clock.now
	n2.start()
	within := func(what string, ok func() bool) {
		t.Helper()
		poll.Within(t, time.Minute, what, func() bool {
			if n := countEntries(t, m2); n != 10 {
				t.Fatalf("%s: entries of the standby: got %d, want 10", what, n)
			}
			return ok()
		})
	}
	poll.Within(t, time.Minute, "the standby holds the entries", func() bool { return holds(t, m2, 10, 1) })
	refused := func() uint64 { return n2.counter("mapsync_stream_errors_total", `{cause="clock_ahead"}`) }
	v := uint64(1)
	within("the standby refuses changes", func() bool { v++; n1.write(m1, 0, 10, v); return refused() > 0 }) // once the first node follows its clock
	before := refused()
	v++
	n1.write(m1, 0, 10, v)
	within("the standby refuses the last changes", func() bool { return refused() > before })
	repairs := n2.counter("mapsync_repairs_total", "")
	within("the records are sent again", func() bool { return n2.counter("mapsync_repairs_total", "") > repairs+1 })
	if n := entriesWith(t, m2, v); n != 0 {
		t.Errorf("refused changes in the standby's map: got %d, want 0", n)
	}
	clock.set(0)
	within("the standby holds the changes", func() bool { return holds(t, m2, 10, v) })
}

// TestOwnerLeavesWhileClockBehind: the clock of one of three nodes is behind, and it refuses the last changes of a node, which
// leaves then. It sends no deletes for what it lacks, and keeps what it has, in each reading of the kernel maps. Once its
// clock is right, it receives the changes from the third node.
func TestOwnerLeavesWhileClockBehind(t *testing.T) {
	var right, wrong steppedClock
	right.set(-behind)
	wrong.set(-behind)
	nodes, maps := startCluster(t, 3, func(n *node) {
		n.wall, n.config.DeadTime = right.now, time.Second
		if n.config.NodeName == "n2" {
			n.wall = wrong.now
		}
	})
	a, b, c := nodes[0], nodes[1], nodes[2]
	a.write(maps[0], 0, 10, 1)
	poll.Eventually(t, "all nodes hold the entries", func() bool { return holds(t, maps[1], 10, 1) && holds(t, maps[2], 10, 1) })
	right.set(0)
	least := 10 // number of entries of the third node
	within := func(what string, ok func() bool) {
		t.Helper()
		poll.Within(t, time.Minute, what, func() bool {
			if n, m := countEntries(t, maps[1]), countEntries(t, maps[2]); n < 10 || n > 11 || m < least {
				t.Fatalf("%s: entries: got %d on the node with a wrong clock and %d on the third one, want 10 and %d", what, n, m, least)
			}
			return ok()
		})
	}
	refused := func() uint64 { return b.counter("mapsync_stream_errors_total", `{cause="clock_ahead"}`) }
	v := uint64(1)
	within("the node refuses changes", func() bool { v++; a.write(maps[0], 0, 10, v); return refused() > 0 }) // once the owner follows its clock
	before, repairs := refused(), b.counter("mapsync_repairs_total", "")
	v++
	a.write(maps[0], 0, 11, v)
	within("the third node holds the changes", func() bool { return refused() > before && holds(t, maps[2], 11, v) })
	least = 11
	within("the records are sent again", func() bool { return b.counter("mapsync_repairs_total", "") > repairs })
	a.stop()
	within("the owner has left", func() bool { return len(b.status().Peers) == 1 && len(c.status().Peers) == 1 })
	compared := []uint64{b.comparisons(), c.comparisons(), b.counter("mapsync_repairs_total", "")}
	within("both compare the orphaned records", func() bool {
		return b.comparisons() > compared[0]+1 && c.comparisons() > compared[1]+1 && b.counter("mapsync_repairs_total", "") > compared[2]
	})
	if n := countEntries(t, maps[1]); n != 10 || entriesWith(t, maps[1], v) != 0 {
		t.Errorf("node with a wrong clock: got %d entries, %d with the refused value, want 10 and 0", n, entriesWith(t, maps[1], v))
	}
	wrong.set(0)
	within("both hold the last changes", func() bool { return holds(t, maps[1], 11, v) && holds(t, maps[2], 11, v) })
}

// TestRebootWithClockBehind: a host boots with an empty map and a clock that is behind, and refuses its own earlier
// records. Its clock is corrected and syncd restarted. All nodes hold its sessions at each moment after that.
func TestRebootWithClockBehind(t *testing.T) {
	n1, n2, m1, m2 := nodesWithClockBehind(t)
	wrong := n2.wall
	n2.wall = nil
	n2.start()
	poll.Within(t, time.Minute, "both are ready", func() bool { return n1.status().Ready && n2.status().Ready && len(n1.status().Peers) == 1 })
	n2.write(m2, 0, 20, 7)
	poll.Within(t, time.Minute, "the other node holds the sessions", func() bool { return holds(t, m1, 20, 7) })
	n2.stop()
	m2 = pinned(t, n2.pin, 8, 8, 1000) // the new map after the boot
	n2.wall = wrong
	n2.start()
	poll.Within(t, time.Minute, "the identity of the map is saved", func() bool { return n2.savedMapID() == float64(idOf(t, m2)) })
	if n := countEntries(t, m1); n != 20 {
		t.Fatalf("entries of the other node: got %d, want 20", n)
	}
	n2.stop()
	n2.wall = nil
	n2.start()
	poll.Within(t, time.Minute, "the rebooted node holds its sessions", func() bool {
		if n := countEntries(t, m1); n != 20 {
			t.Fatalf("entries of the other node: got %d, want 20", n)
		}
		return holds(t, m2, 20, 7)
	})
}
