package daemon_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
)

// threeNodes starts three nodes, each with a pinned map for so many entries.
func threeNodes(t *testing.T, entries ...uint32) (nodes []*node, maps []*ebpf.Map) {
	t.Helper()
	dir := pinDir(t)
	for i, size := range entries {
		path := filepath.Join(dir, fmt.Sprint("map", i))
		maps = append(maps, pinned(t, path, 8, 8, size))
		nodes = append(nodes, newNode(t, i+1, "ct="+path))
		nodes[i].start()
	}
	eventually(t, "all are ready", func() bool {
		for _, n := range nodes {
			if s := n.status(); !s.Ready || len(s.Peers) != len(nodes)-1 {
				return false
			}
		}
		return true
	})
	return nodes, maps
}

// numberOf returns the number of entries of a kernel map.
func numberOf(t *testing.T, m *ebpf.Map) (n int) {
	t.Helper()
	var key, value []byte
	entries := m.Iterate()
	for entries.Next(&key, &value) {
		n++
	}
	if err := entries.Err(); err != nil {
		t.Fatal(err)
	}
	return n
}

// ownedBy returns how many live records of a node another node's table has.
func (n *node) ownedBy(owner string) (count int) {
	n.t.Helper()
	err := n.client.Entries(n.t.Context(), "ct", daemon.EntryQuery{Form: daemon.FormRaw}, func(e *daemon.Entry) error {
		if e.Owner == owner {
			count++
		}
		return nil
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return count
}

// A node dies, and one of the two survivors forgets it. Its records go from both tables and kernel
// maps, and do not come back when nodes restart, its own included.
func TestForgetRemovesAnOwnerEverywhere(t *testing.T) {
	const dead, kept = 3000, 50
	nodes, maps := threeNodes(t, 5000, 5000, 5000)
	n1, n2, n3 := nodes[0], nodes[1], nodes[2]
	n2.write(maps[1], 0, kept, 7)
	n3.write(maps[2], 10_000, 10_000+dead, 7)
	eventually(t, "all hold all", func() bool {
		return numberOf(t, maps[0]) == dead+kept && numberOf(t, maps[1]) == dead+kept && numberOf(t, maps[2]) == dead+kept
	})
	if _, err := n1.client.Forget(t.Context(), "n3", "", false); err == nil || !strings.Contains(err.Error(), "the owner is live") {
		t.Errorf("a live owner is forgotten: %v", err)
	}
	for _, owner := range []string{"n1", ""} {
		if _, err := n1.client.Forget(t.Context(), owner, "", true); !errors.Is(err, daemon.ErrUse) {
			t.Errorf("owner %q: %v", owner, err)
		}
	}
	n3.stop()
	eventually(t, "n3 has left", func() bool { return len(n1.status().Peers) == 1 && len(n2.status().Peers) == 1 })
	if n := n1.ownedBy("n3"); n != dead {
		t.Fatalf("%d of %d records are there before the command", n, dead)
	}
	done, err := n1.client.Forget(t.Context(), "n3", "ct", false)
	if err != nil || len(done.Maps) != 1 || done.Maps[0] != (daemon.RemovedRecords{Map: "ct", Records: dead}) {
		t.Fatalf("%+v %v", done, err)
	}
	removed := func(n *node, m *ebpf.Map) func() bool {
		return func() bool { return numberOf(t, m) == kept && n.ownedBy("n3") == 0 && lacks(m, kept, 7) == 0 }
	}
	eventually(t, "removed here", removed(n1, maps[0]))
	eventually(t, "removed on the other survivor", removed(n2, maps[1]))
	caller := fmt.Sprintf("caller_uid=%d caller_pid=%d map=ct owner=n3 records=%d live=false hint=", os.Getuid(), os.Getpid(), dead)
	if !n1.log.contains("level=WARN msg=\"records of an owner removed from all nodes\" " + caller) {
		t.Error("the log does not name the caller")
	}
	if done, err := n1.client.Forget(t.Context(), "n3", "", false); err != nil || done.Maps[0].Records != 0 {
		t.Errorf("again: %+v %v", done, err)
	}
	// A survivor restarts, and the owner returns with the entries in its kernel map.
	n2.stop()
	n2.start()
	n3.start()
	eventually(t, "all are ready again", func() bool {
		return n1.status().Ready && n2.status().Ready && n3.status().Ready && len(n3.status().Peers) == 2 && len(n1.status().Peers) == 2
	})
	for i, n := range nodes {
		eventually(t, "removed for good on "+n.config.NodeName, removed(n, maps[i]))
	}
	// The owner is live and misbehaves.
	n3.write(maps[2], 20_000, 20_100, 7)
	eventually(t, "n1 holds new records", func() bool { return n1.ownedBy("n3") == 100 })
	if done, err := n1.client.Forget(t.Context(), "n3", "", true); err != nil || done.Maps[0].Records != 100 {
		t.Errorf("by force: %+v %v", done, err)
	}
	for i, n := range nodes {
		eventually(t, "removed by force on "+n.config.NodeName, removed(n, maps[i]))
	}
}

// Purge removes orphaned records, and those that do not fit into the kernel map of the node at which
// it runs.
func TestPurgeRemovesOrphansAndWhatDoesNotFit(t *testing.T) {
	const orphans, live, room = 20, 120, 100
	nodes, maps := threeNodes(t, 1000, room, 1000)
	n1, n2, n3 := nodes[0], nodes[1], nodes[2]
	n3.write(maps[2], 10_000, 10_000+orphans, 7)
	eventually(t, "all hold the orphans", func() bool { return numberOf(t, maps[0]) == orphans && numberOf(t, maps[1]) == orphans })
	n3.stop()
	eventually(t, "n3 has left", func() bool { return len(n1.status().Peers) == 1 && len(n2.status().Peers) == 1 })
	n1.write(maps[0], 0, live, 7)
	eventually(t, "n2 is full", func() bool { return n2.status().Maps[0].Failed == orphans+live-room })
	done, err := n2.client.Purge(t.Context(), "ct")
	if err != nil || len(done.Maps) != 1 || done.Maps[0].Records < orphans+live-room {
		t.Fatalf("%+v %v", done, err)
	}
	left := orphans + live - done.Maps[0].Records
	for i, n := range nodes[:2] {
		eventually(t, "purged on "+n.config.NodeName, func() bool {
			return numberOf(t, maps[i]) == left && n.ownedBy("n3") == 0 && n.ownedBy("n1") == left && n.status().Maps[0].Failed == 0
		})
	}
	if !n2.log.contains(fmt.Sprintf("caller_uid=%d caller_pid=%d map=ct records=%d hint=", os.Getuid(), os.Getpid(), done.Maps[0].Records)) {
		t.Error("the log does not name the caller")
	}
	if _, err := n2.client.Purge(t.Context(), "other"); !errors.Is(err, daemon.ErrUse) {
		t.Errorf("a map that is not there: %v", err)
	}
}
