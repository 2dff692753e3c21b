package daemon_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
)

// threeNodes starts nodes, each with a pinned map of the given size, and waits until all are
// ready.
func threeNodes(t *testing.T, entries ...uint32) (nodes []*node, maps []*ebpf.Map) {
	t.Helper()
	dir := pinDir(t)
	for i, size := range entries {
		path := filepath.Join(dir, fmt.Sprint("map", i))
		maps = append(maps, pinned(t, path, 8, 8, size))
		nodes = append(nodes, newNode(t, i+1, "ct="+path))
		nodes[i].start()
	}
	poll.Eventually(t, "all nodes are ready", func() bool {
		for _, n := range nodes {
			if s := n.status(); !s.Ready || len(s.Peers) != len(nodes)-1 {
				return false
			}
		}
		return true
	})
	return nodes, maps
}

// numberOf returns the number of entries in a kernel map.
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

// ownedBy returns the number of live records of owner in n's table.
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

// A node stops, and one of the two other nodes forgets it. Its records disappear from both tables
// and kernel maps. They do not return when nodes restart, not even with the forgotten node.
func TestForgetRemovesAnOwnerEverywhere(t *testing.T) {
	const dead, kept = 3000, 50
	nodes, maps := threeNodes(t, 5000, 5000, 5000)
	n1, n2, n3 := nodes[0], nodes[1], nodes[2]
	n2.write(maps[1], 0, kept, 7)
	n3.write(maps[2], 10_000, 10_000+dead, 7)
	poll.Eventually(t, "all maps hold all entries", func() bool {
		return numberOf(t, maps[0]) == dead+kept && numberOf(t, maps[1]) == dead+kept && numberOf(t, maps[2]) == dead+kept
	})
	if _, err := n1.client.Forget(t.Context(), "n3", "", false); err == nil || !strings.Contains(err.Error(), "the owner is live") {
		t.Errorf("forget a live owner: got error %v, want it refused", err)
	}
	for _, owner := range []string{"n1", ""} {
		if _, err := n1.client.Forget(t.Context(), owner, "", true); !errors.Is(err, daemon.ErrUse) {
			t.Errorf("forget owner %q: got error %v, want ErrUse", owner, err)
		}
	}
	n3.stop()
	poll.Eventually(t, "n3 has left", func() bool { return len(n1.status().Peers) == 1 && len(n2.status().Peers) == 1 })
	if n := n1.ownedBy("n3"); n != dead {
		t.Fatalf("records of n3 before the forget: got %d, want %d", n, dead)
	}
	done, err := n1.client.Forget(t.Context(), "n3", "ct", false)
	if err != nil || len(done.Maps) != 1 || done.Maps[0] != (daemon.RemovedRecords{Map: "ct", Records: dead}) {
		t.Fatalf("forget: got %+v, error %v, want all records of ct removed", done, err)
	}
	removed := func(n *node, m *ebpf.Map) func() bool {
		return func() bool { return numberOf(t, m) == kept && n.ownedBy("n3") == 0 && lacks(m, kept, 7) == 0 }
	}
	poll.Eventually(t, "the records are removed on this node", removed(n1, maps[0]))
	poll.Eventually(t, "the records are removed on the other live node", removed(n2, maps[1]))
	caller := fmt.Sprintf("caller_uid=%d caller_pid=%d map=ct owner=n3 records=%d live=false hint=", os.Getuid(), os.Getpid(), dead)
	if !n1.log.contains("level=WARN msg=\"records of an owner removed from all nodes\" " + caller) {
		t.Error("log: want the caller of the forget")
	}
	if done, err := n1.client.Forget(t.Context(), "n3", "", false); err != nil || done.Maps[0].Records != 0 {
		t.Errorf("second forget: got %+v, error %v, want no records removed", done, err)
	}
	// The other live node restarts, and the owner returns with the entries in its kernel map.
	n2.stop()
	n2.start()
	n3.start()
	poll.Eventually(t, "all nodes are ready again", func() bool {
		return n1.status().Ready && n2.status().Ready && n3.status().Ready && len(n3.status().Peers) == 2 && len(n1.status().Peers) == 2
	})
	for i, n := range nodes {
		poll.Eventually(t, "the records stay removed on "+n.config.NodeName, removed(n, maps[i]))
	}
	// The owner is live and misbehaves.
	n3.write(maps[2], 20_000, 20_100, 7)
	poll.Eventually(t, "n1 holds new records", func() bool { return n1.ownedBy("n3") == 100 })
	if done, err := n1.client.Forget(t.Context(), "n3", "", true); err != nil || done.Maps[0].Records != 100 {
		t.Errorf("forget with force: got %+v, error %v, want 100 records removed", done, err)
	}
	for i, n := range nodes {
		poll.Eventually(t, "the records are removed by force on "+n.config.NodeName, removed(n, maps[i]))
	}
}

// Purge removes orphaned records, and records that do not fit into the kernel map of the node on
// which it runs.
func TestPurgeRemovesOrphanedAndFailedRecords(t *testing.T) {
	const orphans, live, room = 20, 120, 100
	nodes, maps := threeNodes(t, 1000, room, 1000)
	n1, n2, n3 := nodes[0], nodes[1], nodes[2]
	n3.write(maps[2], 10_000, 10_000+orphans, 7)
	poll.Eventually(t, "both maps hold the records of n3", func() bool { return numberOf(t, maps[0]) == orphans && numberOf(t, maps[1]) == orphans })
	n3.stop()
	poll.Eventually(t, "n3 has left", func() bool { return len(n1.status().Peers) == 1 && len(n2.status().Peers) == 1 })
	n1.write(maps[0], 0, live, 7)
	poll.Eventually(t, "n2 is full", func() bool { return n2.status().Maps[0].Failed == orphans+live-room })
	done, err := n2.client.Purge(t.Context(), "ct")
	if err != nil || len(done.Maps) != 1 || done.Maps[0].Records < orphans+live-room {
		t.Fatalf("purge: got %+v, error %v, want at least the orphaned and failed records removed", done, err)
	}
	left := orphans + live - done.Maps[0].Records
	for i, n := range nodes[:2] {
		poll.Eventually(t, "the records are removed on "+n.config.NodeName, func() bool {
			return numberOf(t, maps[i]) == left && n.ownedBy("n3") == 0 && n.ownedBy("n1") == left && n.status().Maps[0].Failed == 0
		})
	}
	if !n2.log.contains(fmt.Sprintf("caller_uid=%d caller_pid=%d map=ct records=%d hint=", os.Getuid(), os.Getpid(), done.Maps[0].Records)) {
		t.Error("log: want the caller of the purge")
	}
	if _, err := n2.client.Purge(t.Context(), "other"); !errors.Is(err, daemon.ErrUse) {
		t.Errorf("purge of an unknown map: got error %v, want ErrUse", err)
	}
}

// Purge with all removes the records of live nodes, too. A later write of a load balancer replicates.
func TestPurgeAllEmptiesTheMapOnAllNodes(t *testing.T) {
	const entries = 200
	nodes, maps := threeNodes(t, 1000, 1000, 1000)
	for i, n := range nodes[:2] {
		n.write(maps[i], uint64(1000*i), uint64(1000*i+entries/2), 7)
	}
	poll.Eventually(t, "all tables have the records", func() bool {
		return nodes[2].ownedBy("n1") == entries/2 && nodes[2].ownedBy("n2") == entries/2 && nodes[1].ownedBy("n1") == entries/2 && nodes[0].ownedBy("n2") == entries/2
	})
	done, err := nodes[0].client.PurgeAll(t.Context(), "ct")
	if err != nil || len(done.Maps) != 1 || done.Maps[0].Records != entries {
		t.Fatalf("purge: got %+v, error %v, want %d records removed", done, err, entries)
	}
	for i, n := range nodes {
		poll.Eventually(t, "the map is empty on "+n.config.NodeName, func() bool { return numberOf(t, maps[i]) == 0 && n.ownedBy("n1")+n.ownedBy("n2") == 0 })
	}
	if !nodes[0].log.contains(fmt.Sprintf("caller_uid=%d caller_pid=%d map=ct records=%d hint=", os.Getuid(), os.Getpid(), entries)) {
		t.Error("log: want the caller of the purge")
	}
	nodes[1].write(maps[1], 1000, 1010, 8)
	for i, n := range nodes {
		poll.Eventually(t, "the next write is on "+n.config.NodeName, func() bool { return numberOf(t, maps[i]) == 10 })
	}
	if _, err := nodes[0].client.PurgeAll(t.Context(), "other"); !errors.Is(err, daemon.ErrUse) {
		t.Errorf("purge of an unknown map: got error %v, want ErrUse", err)
	}
}
