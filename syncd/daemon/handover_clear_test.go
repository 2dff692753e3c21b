package daemon_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"mapsync/internal/poll"

	"github.com/cilium/ebpf"
)

// handoverEntries is the number of sessions of the node that is drained.
const handoverEntries = 1000

// handoverCluster is three nodes. The first one has all sessions.
type handoverCluster struct {
	*testing.T
	nodes [3]*node
	maps  [3]*ebpf.Map
}

// newHandoverCluster returns three nodes in sync. change changes the settings of a node.
func newHandoverCluster(t *testing.T, spec *ebpf.MapSpec, change func(*node)) *handoverCluster {
	t.Helper()
	c, dir := &handoverCluster{T: t}, pinDir(t)
	for i := range c.nodes {
		pin := filepath.Join(dir, fmt.Sprint(i))
		c.maps[i] = pinnedAs(t, pin, spec.Copy())
		c.nodes[i] = newNode(t, i+1, "ct="+pin)
		c.nodes[i].pin = pin
		c.nodes[i].config.SyncTimeout = poll.Limit // a restarted node waits for its peers
		c.nodes[i].config.ScanInterval, c.nodes[i].config.MaxScanInterval = 200*time.Millisecond, 200*time.Millisecond
		if change != nil {
			change(c.nodes[i])
		}
		c.nodes[i].start()
	}
	c.ready(0, 1, 2)
	c.nodes[0].write(c.maps[0], 0, handoverEntries, 7)
	poll.Eventually(t, "all nodes have the sessions", func() bool { return c.held(0, 1, 2) == 3*handoverEntries })
	return c
}

// ready waits until nodes are ready, and connected to each other.
func (c *handoverCluster) ready(which ...int) {
	c.Helper()
	poll.Eventually(c, "the nodes are ready", func() bool {
		for _, i := range which {
			if s := c.nodes[i].status(); !s.Ready || len(s.Peers) != 2 {
				return false
			}
		}
		return true
	})
}

// held returns the number of sessions in the maps of nodes.
func (c *handoverCluster) held(which ...int) (n int) {
	for _, i := range which {
		n += handoverEntries - lacks(c.maps[i], handoverEntries, 7)
	}
	return n
}

// handedOver waits for the handover of a drained node.
func (c *handoverCluster) handedOver(i int) {
	c.Helper()
	poll.Eventually(c, "the handover is complete", func() bool {
		h, err := c.nodes[i].client.Handover(c.Context())
		return err == nil && h.Done
	})
}

// undrain puts a node into service again. Then its map has its sessions at once.
func (c *handoverCluster) undrain(i int) {
	c.Helper()
	if h, err := c.nodes[i].client.Undrain(c.Context()); err != nil || h.Drained {
		c.Fatalf("undrain: got %+v, error %v, want the node in service", h, err)
	}
}

// clear clears the map of the first node like a load balancer that stops.
func (c *handoverCluster) clear(how string) {
	c.Helper()
	m := c.maps[0]
	switch how {
	case "single calls":
		for i := range uint64(handoverEntries) {
			if err := m.Delete(&i); err != nil {
				c.Fatalf("delete session %d: %v", i, err)
			}
		}
	case "batch calls":
		keys := make([]uint64, handoverEntries)
		for i := range keys {
			keys[i] = uint64(i)
		}
		if n, err := m.BatchDelete(keys, nil); err != nil || n != handoverEntries {
			c.Fatalf("delete the sessions: got %d, error %v, want all", n, err)
		}
	case "another map":
		if err := os.Remove(c.nodes[0].pin); err != nil {
			c.Fatal(err)
		}
		time.Sleep(300 * time.Millisecond) // syncd detects that the map is gone
		c.maps[0] = pinned(c.T, c.nodes[0].pin, 8, 8, m.MaxEntries())
	}
}

// marker is the key of an entry beside the sessions.
const marker = handoverEntries

// deleteMarker writes an entry on a drained node and deletes it by bpf(2), until that has replicated to the peers. Deletes by
// bpf(2) that were found before, and replicate, have arrived then. The peers must have this number of sessions at each reading.
func (c *handoverCluster) deleteMarker(drained, sessions int, peers ...int) {
	c.Helper()
	everywhere := func(there bool) func() bool {
		return func() bool {
			if n := c.held(peers...); n != sessions {
				c.Fatalf("sessions of the peers: got %d, want %d", n, sessions)
			}
			for _, i := range peers {
				if has(c.maps[i], marker) != there {
					return false
				}
			}
			return true
		}
	}
	c.nodes[drained].write(c.maps[drained], marker, marker+1, 1)
	poll.Eventually(c, "a new entry replicates", everywhere(true))
	if err := c.maps[drained].Delete(uint64(marker)); err != nil {
		c.Fatal(err)
	}
	poll.Eventually(c, "its delete replicates", everywhere(false))
}

// keptUntilDecided checks that peers keep all sessions at each reading until a drained node has decided about all deletes
// of its map.
func (c *handoverCluster) keptUntilDecided(drained int, peers ...int) {
	c.Helper()
	kept := func() bool { return c.held(peers...) == len(peers)*handoverEntries }
	n := c.nodes[drained]
	scans := func() uint64 { // 0 before the node has read its map
		if scan := n.status().Maps[0].Scan; scan != nil {
			return scan.Scans
		}
		return 0
	}
	before := scans()
	poll.Eventually(c, "the map is scanned", func() bool { return !kept() || scans() > before+1 })
	// Hooks ignore the deletes of this process, and an absence in an LRU map counts as an eviction. No delete replicates.
	if c.maps[drained].Type() == ebpf.LRUHash && !n.config.EvictionDeletes {
		poll.Stays(c, 5*time.Second, "the peers keep the sessions", kept)
		return
	}
	c.deleteMarker(drained, len(peers)*handoverEntries, peers...)
}

// TestLoadBalancerClearsItsMapAfterADrain is the planned failover of docs/operations.md with a load balancer that clears
// its map when it stops, while syncd runs or while it is stopped. The peers keep all sessions, a peer's collector may end
// them, and the end of the drain refills the map.
func TestLoadBalancerClearsItsMapAfterADrain(t *testing.T) {
	for _, how := range []string{"single calls", "batch calls", "another map"} {
		for _, stopped := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s stopped=%t", how, stopped), func(t *testing.T) {
				c := newHandoverCluster(t, &ebpf.MapSpec{Name: "ct", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 2000}, nil)
				c.nodes[0].drain()
				if stopped {
					c.nodes[0].stop()
				}
				c.clear(how)
				if stopped {
					c.nodes[0].start()
					c.handedOver(0)
				}
				poll.Stays(t, 2*time.Second, "the peers keep the sessions", func() bool { return c.held(1, 2) == 2*handoverEntries })
				// A peer's collector ends 100 sessions, the third node restarts and forgets nothing.
				for i := range uint64(100) {
					if err := c.maps[1].Delete(&i); err != nil {
						t.Fatalf("delete session %d on a peer: %v", i, err)
					}
				}
				poll.Eventually(t, "the sessions end on both peers", func() bool { return c.held(1, 2) == 2*(handoverEntries-100) })
				c.nodes[2].stop()
				c.nodes[2].start()
				c.ready(2)
				c.undrain(0)
				if n := c.held(0); n != handoverEntries-100 {
					t.Errorf("sessions at the return to service: got %d, want %d", n, handoverEntries-100)
				}
				c.ready(0)
				poll.Stays(t, time.Second, "all nodes keep the sessions", func() bool { return c.held(0, 1, 2) == 3*(handoverEntries-100) })
				// The sessions are those of a node in service again: its control plane ends them, a peer's does not.
				for i := uint64(100); i < 200; i++ {
					if err := c.maps[0].Delete(&i); err != nil {
						t.Fatalf("delete session %d: %v", i, err)
					}
					if err := c.maps[2].Delete(i + 100); err != nil {
						t.Fatalf("delete session %d on a peer: %v", i+100, err)
					}
				}
				poll.Eventually(t, "the deletes of the owner replicate", func() bool { return c.held(0, 1, 2) == 3*(handoverEntries-200) })
			})
		}
	}
}
