package daemon_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
)

// stopping is a cluster whose nodes are stopped while its load balancers continue. The first node has all entries.
type stopping struct {
	*testing.T
	nodes []*node
	maps  []*ebpf.Map
	pins  []string
}

// stoppedEntries is the number of entries.
const stoppedEntries = 500

// newStopping returns n nodes that have the entries of the first one, with value 7, and that are stopped.
func newStopping(t *testing.T, n int, spec *ebpf.MapSpec, change func(*node)) *stopping {
	t.Helper()
	c, dir := &stopping{T: t}, pinDir(t)
	for i := range n {
		pin := filepath.Join(dir, fmt.Sprint(i))
		c.pins = append(c.pins, pin)
		c.maps = append(c.maps, pinnedAs(t, pin, spec.Copy()))
		c.nodes = append(c.nodes, newNode(t, i+1, "ct="+pin))
		if change != nil {
			change(c.nodes[i])
		}
	}
	c.start(c.all()...)
	c.nodes[0].write(c.maps[0], 0, stoppedEntries, 7)
	poll.Eventually(t, "all nodes have the entries", func() bool { return c.hold(c.all(), stoppedEntries, 0) })
	c.stop(c.all()...)
	return c
}

// newStoppedPair returns two stopped nodes with hash maps.
func newStoppedPair(t *testing.T) *stopping {
	return newStopping(t, 2, &ebpf.MapSpec{Name: "ct", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 2 * stoppedEntries}, nil)
}

func newStoppedThree(t *testing.T) *stopping {
	return newStopping(t, 3, &ebpf.MapSpec{Name: "ct", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 2 * stoppedEntries}, nil)
}

func (c *stopping) all() (which []int) {
	for i := range c.nodes {
		which = append(which, i)
	}
	return which
}

// start starts nodes, and waits until they are ready.
func (c *stopping) start(which ...int) {
	c.Helper()
	for _, i := range which {
		c.nodes[i].start()
	}
	poll.Eventually(c, "the nodes are ready", func() bool {
		for _, i := range which {
			if s := c.nodes[i].status(); !s.Ready || len(s.Peers) < len(which)-1 {
				return false
			}
		}
		return true
	})
}

func (c *stopping) stop(which ...int) {
	for _, i := range which {
		c.nodes[i].stop()
	}
}

// kill makes stopped nodes look as if they had been killed.
func (c *stopping) kill(which ...int) {
	c.Helper()
	for _, i := range which {
		if err := os.Remove(c.file(i)); err != nil {
			c.Fatal(err)
		}
	}
}

// file returns the path of the stop file of a node.
func (c *stopping) file(i int) string {
	return filepath.Join(c.nodes[i].config.StateDir, c.nodes[i].config.NodeName+".ct.stop")
}

// end deletes the entries [from, to) from the map of a node.
func (c *stopping) end(i int, from, to uint64) {
	c.Helper()
	for ; from < to; from++ {
		if err := c.maps[i].Delete(&from); err != nil {
			c.Fatalf("delete entry %d: %v", from, err)
		}
	}
}

// use changes the values of the entries [from, to) of a node to 8.
func (c *stopping) use(i int, from, to uint64) {
	c.Helper()
	for ; from < to; from++ {
		if err := c.maps[i].Update(from, uint64(8), ebpf.UpdateExist); err != nil {
			c.Fatalf("change entry %d: %v", from, err)
		}
	}
}

// hold reports whether the maps of nodes have exactly n entries with value 7 and changed ones with value 8.
func (c *stopping) hold(which []int, n, changed uint64) bool {
	for _, i := range which {
		var key, value uint64
		values := make(map[uint64]uint64)
		for entries := c.maps[i].Iterate(); entries.Next(&key, &value); {
			values[value]++
		}
		if values[7] != n || values[8] != changed {
			return false
		}
	}
	return true
}

// wait waits until nodes hold n entries with value 7 and changed ones with value 8, and checks that this stays.
func (c *stopping) wait(which []int, n, changed uint64) {
	c.Helper()
	defer func() {
		if !c.Failed() {
			return
		}
		for _, i := range which {
			for v := uint64(7); v <= 8; v++ {
				c.Logf("node %d: got %d entries with value %d", i+1, stoppedEntries-lacks(c.maps[i], stoppedEntries, v), v)
			}
		}
	}()
	hold := func() bool { return c.hold(which, n, changed) }
	poll.Eventually(c, fmt.Sprintf("the nodes have %d entries and %d changed ones", n, changed), hold)
	poll.Stays(c, time.Second, "the entries stay", hold)
}

// TestEndedWhileAllStopped: entries of the first node end while syncd is stopped on all nodes. They are deleted on all nodes
// unless a copy has changed, or may have changed.
func TestEndedWhileAllStopped(t *testing.T) {
	for _, order := range [][]int{{0, 1}, {1, 0}} {
		t.Run(fmt.Sprintf("order %d", order), func(t *testing.T) {
			c := newStoppedPair(t)
			c.end(0, 300, 500)
			c.use(1, 450, 500)
			c.start(order...)
			c.wait(order, 300, 50)
			// Entries that stay are replicated as before, and their owner may end them.
			c.nodes[0].write(c.maps[0], 0, 100, 8)
			c.wait(order, 200, 150)
			c.end(0, 100, 110)
			c.stop(order...)
			c.end(0, 110, 120)
			c.start(order...)
			c.wait(order, 180, 150)
		})
	}
}

// TestEndedAndStartsWithoutTheMap: what a clean stop has saved outlives a start that fails, and one that does not find the map.
func TestEndedAndStartsWithoutTheMap(t *testing.T) {
	c := newStoppedPair(t)
	c.end(0, 300, 500)
	n := c.nodes[1] // its copies would bring the entries back
	address := n.config.GRPCListen
	n.config.GRPCListen = "192.0.2.1:1" // no address of this machine
	if _, err := daemon.New(daemon.Options{Config: n.config, Logger: slog.New(slog.DiscardHandler)}); err == nil {
		t.Fatal("start with a foreign address: got no error, want one")
	}
	n.config.GRPCListen = address
	if err := os.Rename(c.pins[1], c.pins[1]+"-away"); err != nil {
		t.Fatal(err)
	}
	n.start()
	poll.Eventually(t, "the node waits for its map", func() bool { return n.status().Maps[0].State == daemon.MapWaiting })
	n.stop()
	if err := os.Rename(c.pins[1]+"-away", c.pins[1]); err != nil {
		t.Fatal(err)
	}
	c.start(0, 1)
	c.wait(c.all(), 300, 0)
}

// TestEndedWhileThreeAreStopped: each of the three nodes has the entries.
func TestEndedWhileThreeAreStopped(t *testing.T) {
	for _, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}} {
		t.Run(fmt.Sprintf("order %d", order), func(t *testing.T) {
			c := newStoppedThree(t)
			c.end(0, 400, 500)
			c.use(2, 450, 500)
			c.start(order...)
			c.wait(order, 400, 50)
		})
	}
}

// TestEndedWhileANodeStartsLater: the third node starts when the others have deleted the entries. Those that it has used come
// back on all nodes.
func TestEndedWhileANodeStartsLater(t *testing.T) {
	c := newStoppedThree(t)
	c.end(0, 400, 500)
	c.use(2, 450, 500)
	c.start(0, 1)
	c.wait([]int{0, 1}, 400, 0)
	c.start(2)
	c.wait(c.all(), 400, 50)
}

// TestEndedWithoutTheOwner: the owner starts later than the other nodes.
func TestEndedWithoutTheOwner(t *testing.T) {
	c := newStoppedThree(t)
	c.end(0, 400, 500)
	c.use(2, 450, 500)
	c.start(1, 2)
	c.wait([]int{1, 2}, 450, 50)
	c.start(0)
	c.wait(c.all(), 400, 50)
}

// TestKilledWhileAllStopped: a node that was killed cannot prove that its copies have not changed. The entries stay.
func TestKilledWhileAllStopped(t *testing.T) {
	t.Run("copies", func(t *testing.T) {
		c := newStoppedPair(t)
		c.kill(1)
		c.end(0, 400, 500)
		c.start(0, 1)
		c.wait(c.all(), 500, 0)
	})
	t.Run("one of two copies", func(t *testing.T) {
		c := newStoppedThree(t)
		c.kill(2)
		c.end(0, 400, 500)
		c.start(0, 1, 2)
		c.wait(c.all(), 500, 0)
	})
	t.Run("owner", func(t *testing.T) {
		c := newStoppedPair(t)
		c.kill(0)
		c.end(0, 400, 500)
		c.start(0, 1)
		c.wait(c.all(), 400, 0)
	})
}

// TestStopFileCountsOnce: a start removes the file before it replicates, so that it does not count after a kill.
func TestStopFileCountsOnce(t *testing.T) {
	c := newStoppedPair(t)
	former, err := os.ReadFile(c.file(1))
	if err != nil {
		t.Fatal(err)
	}
	c.start(0, 1)
	for i := range c.nodes {
		if _, err := os.Stat(c.file(i)); !os.IsNotExist(err) {
			t.Errorf("file of node %d while syncd runs: got error %v, want none there", i+1, err)
		}
	}
	c.stop(0, 1)
	// The node was killed, and its file system has the former file again.
	if err := os.WriteFile(c.file(1), former, 0o600); err != nil {
		t.Fatal(err)
	}
	c.end(0, 400, 500)
	c.start(0, 1)
	c.wait(c.all(), 500, 0)
}

// TestUnusableStopFile: a file that syncd cannot read counts as none. The log has the reason.
func TestUnusableStopFile(t *testing.T) {
	c := newStoppedPair(t)
	data, err := os.ReadFile(c.file(1))
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2]++
	if err := os.WriteFile(c.file(1), data, 0o600); err != nil {
		t.Fatal(err)
	}
	c.end(0, 400, 500)
	c.start(0, 1)
	c.wait(c.all(), 500, 0)
	if !c.nodes[1].log.contains("failed to read the entries of the last stop") {
		t.Error("log: got no warning about the stop file, want one")
	}
}

// TestClearWhileAllStopped: the load balancer of the first node clears its map while syncd is stopped on all nodes.
func TestClearWhileAllStopped(t *testing.T) {
	const more = 540 // so that the last of three batches has few entries
	c := newStopping(t, 2, &ebpf.MapSpec{Name: "ct", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 2 * (stoppedEntries + more)}, nil)
	c.start(0, 1)
	c.nodes[0].write(c.maps[0], stoppedEntries, stoppedEntries+more, 7)
	c.wait(c.all(), stoppedEntries+more, 0)
	c.stop(0, 1)
	c.end(0, 0, stoppedEntries+more)
	c.start(0, 1)
	c.wait(c.all(), stoppedEntries+more, 0)
	if s := c.nodes[0].status().Maps[0].Clear; s == nil || s.Entries != stoppedEntries+more {
		t.Errorf("clear: got %+v, want one of %d entries", s, stoppedEntries+more)
	}
}

// TestMapReplacedWhileAllStopped: another kernel map proves nothing, also if it holds a copy.
func TestMapReplacedWhileAllStopped(t *testing.T) {
	for i := range 2 {
		t.Run(fmt.Sprintf("node %d", i+1), func(t *testing.T) {
			c := newStoppedPair(t)
			c.maps[i] = pinned(t, c.pins[i], 8, 8, 2*stoppedEntries)
			for key := range uint64(stoppedEntries) {
				if err := c.maps[i].Put(key, uint64(7)); err != nil {
					t.Fatal(err)
				}
			}
			c.end(0, 400, 500)
			c.start(0, 1)
			c.wait(c.all(), 500, 0)
		})
	}
}

// TestEvictedWhileAllStopped: the absence of an entry of an LRU map may be an eviction. The copies stay.
func TestEvictedWhileAllStopped(t *testing.T) {
	c := newStopping(t, 2, &ebpf.MapSpec{Name: "ct", Type: ebpf.LRUHash, KeySize: 8, ValueSize: 8, MaxEntries: 8 * stoppedEntries}, nil)
	c.end(0, 400, 500)
	c.start(0, 1)
	poll.Eventually(t, "the first node has decided about the absent entries", func() bool {
		s := c.nodes[0].status().Maps[0]
		return s.Live == stoppedEntries && s.Unversioned == 0
	})
	// A delete would arrive before this later change.
	c.nodes[0].write(c.maps[0], 0, 1, 8)
	c.wait([]int{1}, 499, 1)
}

// TestEndedWhileAllStoppedWithHooks: the same with each attach method.
func TestEndedWhileAllStoppedWithHooks(t *testing.T) {
	for _, offer := range probeOnce(controlMethods()...) {
		t.Run(string(offer.Attach), func(t *testing.T) {
			if offer.Err != nil {
				refused(t, &offer)
			}
			spec := &ebpf.MapSpec{Name: "ct", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 2 * stoppedEntries}
			c := newStopping(t, 2, spec, func(n *node) { n.attach = offer.Attach })
			c.end(0, 400, 500)
			c.start(0, 1)
			c.wait(c.all(), 400, 0)
		})
	}
}
