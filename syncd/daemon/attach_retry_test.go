package daemon_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// occupy makes the next attempts to attach m fail after the conversion of the table: its hooks
// report to another table. Each failed attempt ends that, so occupy repeats it until stop.
func (n *node) occupy(m *ebpf.Map, keySize, valueSize int) (stop func()) {
	n.t.Helper()
	other, err := table.New(table.Options{Self: table.Owner{Node: "other", Incarnation: 1}, KeySize: keySize, ValueSize: valueSize})
	if err != nil {
		n.t.Fatal(err)
	}
	id := idOf(n.t, m)
	if err := n.capture.Watch(id, other); err != nil {
		n.t.Fatal(err)
	}
	return writeLoop(n.t, func(uint64) {
		_ = n.capture.Watch(id, other) // an error while it is still occupied
		time.Sleep(time.Millisecond)   // the rate of the attempts
	})
}

// The map of a new layout cannot be attached, and the load balancer returns to the former layout.
// The table has not lost the fields that only the former layout has.
func TestFailedAttachKeepsTable(t *testing.T) {
	path := filepath.Join(pinDir(t), "ct")
	short := layout{{"state", 4}}
	m := typed(t, path, keyV1, valueV1, 1000)
	n := newNode(t, 1, "ct="+path)
	n.config.Join = nil
	n.start()
	poll.Eventually(t, "the node is ready", func() bool { return n.status().Ready })
	n.writeSessions(m, keyV1, valueV1, 0, 100, 3)
	poll.Eventually(t, "the table has all records", func() bool { return n.status().Maps[0].Live == 100 })

	next := filepath.Join(filepath.Dir(path), "next")
	broken := typed(t, next, keyV1, short, 1000)
	stop := n.occupy(broken, 8, 4)
	rename(t, next, path)
	poll.Eventually(t, "the map of the new layout is refused", func() bool { return n.status().Maps[0].State == daemon.MapRefused })
	m = typed(t, path, keyV1, valueV1, 1000)
	stop()
	poll.Eventually(t, "the map of the former layout is attached", func() bool { return n.status().Ready })
	poll.Eventually(t, "it holds the entries with all fields", func() bool { return holdsSessions(m, keyV1, valueV1, 100, 3) })
}

// The load balancer has another kernel map before the former one returns. After a restart, the
// former one must not count as the map that syncd replicated last: sessions of the other map are
// absent from it, and were not deleted.
func TestFormerMapIsNotTheSavedOne(t *testing.T) {
	n1, _, m1, _ := syncedPair(t)
	n1.waitIdentitySaved(m1)
	pinned(t, n1.pin, 8, 8, 100) // too small, so its identity is not saved
	poll.Eventually(t, "the small map is attached and full", func() bool {
		s := n1.status().Maps[0]
		return s.MaxEntries == 100 && s.Failed > 0
	})
	poll.Eventually(t, "the state file does not contain the former map", func() bool { return n1.savedMapID() == nil })
}

// rename pins the map at from at to, in one step.
func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}
