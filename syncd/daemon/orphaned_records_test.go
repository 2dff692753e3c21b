package daemon_test

import (
	"path/filepath"
	"testing"

	"mapsync/internal/poll"
)

// n1, which started first, runs without its map. n2 and n3 serve, and n3 leaves. n4 must not
// become ready before it holds the records of n3.
func TestJoinerHoldsOrphanedRecords(t *testing.T) {
	const sessions = 500
	dir := pinDir(t)
	pin := func(i int) string { return filepath.Join(dir, string(rune('a'+i))) }
	m2, m3, m4 := pinned(t, pin(2), 8, 8, 1000), pinned(t, pin(3), 8, 8, 1000), pinned(t, pin(4), 8, 8, 1000)
	var nodes []*node
	for i := 1; i <= 4; i++ {
		n := newNode(t, i, "ct="+pin(i))
		n.config.AllowUnservedMaps = true // n1 does not serve its map
		nodes = append(nodes, n)
	}
	n1, n2, n3, n4 := nodes[0], nodes[1], nodes[2], nodes[3]
	n1.start()
	poll.Eventually(t, "n1 runs and waits for its map", func() bool {
		code, _ := n1.readyz()
		return code != 0 && n1.log.contains("waiting for map")
	})
	n2.start()
	n3.start()
	poll.Eventually(t, "n2 and n3 are ready", func() bool { return n2.status().Ready && n3.status().Ready })
	n3.write(m3, 0, sessions, 7)
	poll.Eventually(t, "n2 holds all entries", func() bool { return holds(t, m2, sessions, 7) })
	n3.stop()
	poll.Eventually(t, "n3 has left", func() bool { return len(n2.status().Peers) == 1 })
	n4.config.SyncTimeout = poll.Limit // it finds n2 before
	n4.start()
	poll.Eventually(t, "n4 is ready", func() bool { code, _ := n4.readyz(); return code == 200 })
	if !holds(t, m4, sessions, 7) {
		t.Errorf("map of n4 when it is ready: got some sessions missing, want all %d", sessions)
	}
}
