package daemon_test

import (
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"mapsync/internal/poll"

	"github.com/cilium/ebpf"
)

// TestNodeThatIsNotReadyDeletesNothing: the garbage collector of a node that joins removes all entries of a map, because
// a related map has not arrived yet. With deletes: any, the entries come back. Once the node is ready, its deletes count.
func TestNodeThatIsNotReadyDeletesNothing(t *testing.T) {
	const sessions = 2000
	dir := pinDir(t)
	pin := func(i int, name string) string { return filepath.Join(dir, fmt.Sprint(name, i)) }
	var nodes [2]*node
	var cts [2]*ebpf.Map
	for i := range nodes {
		cts[i] = pinned(t, pin(i, "ct"), 8, 8, 2*sessions)
		nodes[i] = newNode(t, i+1, "ct="+pin(i, "ct"), "rel="+pin(i, "rel"))
		nodes[i].config.ScanInterval, nodes[i].config.Deletes = 200*time.Millisecond, []string{"ct=any"}
	}
	related := pinned(t, pin(0, "rel"), 8, 8, 100)
	nodes[0].start()
	poll.Eventually(t, "the active node has its peers' records", func() bool { return nodes[0].status().Maps[0].State == "replicating" })
	nodes[0].write(cts[0], 0, sessions, 1)
	nodes[0].write(related, 0, 10, 1)
	nodes[1].start() // its map rel does not exist
	poll.Eventually(t, "the joiner has the sessions", func() bool { return holds(t, cts[1], sessions, 1) })
	if nodes[1].status().Ready {
		t.Fatal("joiner without a map: got ready, want not ready")
	}
	for i := range uint64(sessions) {
		if err := cts[1].Delete(&i); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Fatal(err)
		}
	}
	poll.Stays(t, 3*time.Second, "the active node's map holds all sessions", func() bool { return holds(t, cts[0], sessions, 1) })
	poll.Eventually(t, "the joiner's map holds all sessions again", func() bool { return holds(t, cts[1], sessions, 1) })

	pinned(t, pin(1, "rel"), 8, 8, 100)
	poll.Eventually(t, "the joiner is ready", func() bool { return nodes[1].status().Ready })
	one := uint64(sessions - 1)
	if err := cts[1].Delete(&one); err != nil {
		t.Fatal(err)
	}
	poll.Eventually(t, "the delete of a ready node counts", func() bool { return holds(t, cts[0], sessions-1, 1) })
}
