package daemon_test

import (
	"path/filepath"
	"strings"
	"testing"

	"mapsync/internal/poll"
)

// A node whose map cannot hold the records of its peers is not ready, and reports the reason.
func TestTooSmallMapIsNotReady(t *testing.T) {
	dir := pinDir(t)
	path1, path2 := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	m1, m2 := pinned(t, path1, 8, 8, 1000), pinned(t, path2, 8, 8, 350)
	n1, n2 := newNode(t, 1, "ct="+path1), newNode(t, 2, "ct="+path2)
	n1.start()
	poll.Eventually(t, "the node is ready", func() bool { return n1.status().Ready })
	n1.write(m1, 0, 500, 7)
	n2.start()
	poll.Eventually(t, "readyz reports the missing entries", func() bool {
		_, body := n2.readyz()
		return strings.Contains(body, "150 entries do not go into the kernel map")
	})
	poll.Eventually(t, "the map holds the newest entries", func() bool {
		for i := range uint64(500) {
			key, _ := pair(i, 0)
			if found := m2.Lookup(key, make([]byte, 8)) == nil; found != (i >= 150) {
				return false
			}
		}
		return true
	})
	// With a larger map it becomes ready.
	larger := pinned(t, path2, 8, 8, 1000)
	poll.Eventually(t, "the node is ready", func() bool { return n2.status().Ready })
	if missing := lacks(larger, 500, 7); missing > 0 {
		t.Errorf("entries missing in the larger map: got %d, want 0", missing)
	}
	// A map that becomes full later does not end readiness.
	n1.write(m1, 500, 1000, 7)
	n1.write(m1, 0, 1, 8)
	poll.Eventually(t, "the last change has arrived", func() bool { return lacks(larger, 1, 8) == 0 })
	if !n2.status().Ready {
		t.Error("node with a map that became full later: got not ready, want ready")
	}
}
