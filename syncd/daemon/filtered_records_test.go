package daemon_test

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"mapsync/internal/poll"
)

// behind is by how much the clock of the second node is behind in these tests, above maxAhead.
const (
	behind   = 6 * time.Second
	maxAhead = time.Second
)

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

// nodesWithClockBehind returns two nodes. The first one has run for so long that the second one accepts its start
// time with a clock that is behind.
func nodesWithClockBehind(t *testing.T) (n1, n2 *node, m1, m2 *ebpf.Map) {
	t.Helper()
	n1, n2, m1, m2 = twoNodes(t, 1000)
	n1.config.MaxClockAhead, n2.config.MaxClockAhead = maxAhead, maxAhead
	began := time.Now()
	n1.start()
	n1.write(m1, 0, 10, 1)
	poll.Within(t, time.Minute, "the first node has started before the clock of the second one", func() bool { return time.Since(began) > behind })
	n2.wall = func() time.Time { return time.Now().Add(-behind) }
	return n1, n2, m1, m2
}

// TestClockBehindKeepsEntries: the clock of a standby is behind. The sessions of the active node that change stay in
// the standby's kernel map at each moment, and it receives them once its clock has passed their time.
func TestClockBehindKeepsEntries(t *testing.T) {
	n1, n2, m1, m2 := nodesWithClockBehind(t)
	n2.start()
	poll.Within(t, time.Minute, "the standby holds the entries", func() bool { return holds(t, m2, 10, 1) })
	n1.write(m1, 0, 10, 2)
	poll.Within(t, time.Minute, "the standby refuses the changes", func() bool {
		if n := countEntries(t, m2); n != 10 {
			t.Fatalf("entries of the standby: got %d, want 10", n)
		}
		return n2.sample("mapsync_stream_errors_total", `{cause="clock_ahead"}`) != "0"
	})
	poll.Within(t, time.Minute, "the standby holds the changes", func() bool {
		if n := countEntries(t, m2); n != 10 {
			t.Fatalf("entries of the standby: got %d, want 10", n)
		}
		return holds(t, m2, 10, 2)
	})
}

// TestRebootWithClockBehind: a host boots with an empty map and a clock that is behind, and refuses its own earlier
// records. Its clock is corrected and syncd restarted. All nodes hold its sessions at each moment after that.
func TestRebootWithClockBehind(t *testing.T) {
	n1, n2, m1, m2 := nodesWithClockBehind(t)
	right := n2.wall
	n2.wall = nil
	n2.start()
	poll.Within(t, time.Minute, "both are ready", func() bool { return n1.status().Ready && n2.status().Ready && len(n1.status().Peers) == 1 })
	n2.write(m2, 0, 20, 7)
	poll.Within(t, time.Minute, "the other node holds the sessions", func() bool { return holds(t, m1, 20, 7) })
	n2.stop()
	m2 = pinned(t, n2.pin, 8, 8, 1000) // the new map after the boot
	n2.wall = right
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
