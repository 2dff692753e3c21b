package daemon_test

import (
	"fmt"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/capture"

	"github.com/cilium/ebpf"
)

// hashSpec describes a map of sessions.
func hashSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{Name: "ct", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 2000}
}

// TestClearsAfterADrainByMap is the clear of a drained node's map with other kinds of maps, settings and hooks.
func TestClearsAfterADrainByMap(t *testing.T) {
	for name, c := range map[string]struct {
		spec   func(*ebpf.MapSpec)
		change func(*node)
	}{
		"LRU map":          {func(s *ebpf.MapSpec) { s.Type = ebpf.LRUHash }, nil},
		"deletes any":      {nil, func(n *node) { n.config.Deletes = []string{"ct=any"} }},
		"eviction deletes": {func(s *ebpf.MapSpec) { s.Type = ebpf.LRUHash }, func(n *node) { n.config.EvictionDeletes = true }},
		"hook on bpf(2)":   {nil, hookedWith(capture.AttachSyscall)},
		"LRU map and hook": {func(s *ebpf.MapSpec) { s.Type = ebpf.LRUHash }, hookedWith(capture.AttachSyscall)},
		"hooks":            {nil, hookedWith(capture.AttachAuto)},
	} {
		t.Run(name, func(t *testing.T) {
			spec := hashSpec()
			if c.spec != nil {
				c.spec(spec)
			}
			c := newHandoverCluster(t, spec, c.change)
			c.nodes[0].drain()
			c.clear("single calls")
			c.keptUntilDecided(0, 1, 2)
			c.nodes[0].stop()
			c.nodes[0].start()
			c.handedOver(0)
			c.keptUntilDecided(0, 1, 2)
			c.undrain(0)
			if n := c.held(0); n != handoverEntries {
				t.Errorf("sessions at the return to service: got %d, want %d", n, handoverEntries)
			}
			poll.Stays(t, time.Second, "all nodes keep the sessions", func() bool { return c.held(0, 1, 2) == 3*handoverEntries })
		})
	}
}

// hookedWith sets the attach method of the first node, if the kernel has it. Each kernel of the test matrix has it.
func hookedWith(method capture.Attach) func(*node) {
	return func(n *node) {
		if n.config.NodeName == "n1" && (kernelName() != "" || probeOnce(method)[0].Err == nil) {
			n.attach = method
		}
	}
}

// TestTrafficOfADrainedNode: deletes by packets, and entries that are written after the handover, replicate as usual.
func TestTrafficOfADrainedNode(t *testing.T) {
	c := newHandoverCluster(t, hashSpec(), nil)
	n1, m1 := c.nodes[0], c.maps[0]
	c.nodes[0].drain()
	n1.applyEntries(m1, 100, func(i int) (key, value []byte) { key, _ = pair(uint64(i), 0); return key, nil })
	poll.Eventually(t, "deletes by packets replicate", func() bool { return c.held(0, 1, 2) == 3*(handoverEntries-100) })
	n1.write(m1, 0, 100, 7)
	poll.Eventually(t, "later writes replicate", func() bool { return c.held(0, 1, 2) == 3*handoverEntries })
	c.handedOver(0)
	for i := uint64(200); i > 50; i-- { // those of handed over entries first; all later entries would be a clear
		if err := m1.Delete(i - 1); err != nil {
			t.Fatalf("delete session %d: %v", i-1, err)
		}
	}
	poll.Eventually(t, "deletes of later entries replicate", func() bool { return c.held(1, 2) <= 2*(handoverEntries-50) })
	c.deleteMarker(0, 2*(handoverEntries-50), 1, 2) // those of handed over entries do not
}

// TestTwoDrainedNodes: two nodes are drained, and both load balancers clear their maps. The third node keeps all sessions,
// and both nodes return with them.
func TestTwoDrainedNodes(t *testing.T) {
	c := newHandoverCluster(t, hashSpec(), nil)
	for _, v := range []uint64{8, 7} { // 100 sessions of the second node
		c.nodes[1].write(c.maps[1], 900, handoverEntries, v)
	}
	poll.Eventually(t, "the third node has the sessions", func() bool { return c.nodes[2].ownedBy("n2") == 100 })
	c.nodes[0].drain()
	c.nodes[1].drain()
	for range 3 {
		for _, m := range c.maps[:2] {
			for i := range uint64(handoverEntries) {
				_ = m.Delete(&i) // the entries of the other node come back at first
			}
		}
		c.keptUntilDecided(0, 2)
	}
	for i := range 2 {
		c.undrain(i)
		if n := c.held(i); n != handoverEntries {
			t.Errorf("sessions of node %d at the return to service: got %d, want %d", i+1, n, handoverEntries)
		}
	}
	poll.Stays(t, time.Second, "all nodes keep the sessions", func() bool { return c.held(0, 1, 2) == 3*handoverEntries })
}

// TestDrainCancelledAfterAClear: all peers leave, also while the drained node's syncd is stopped. The node returns to
// service with all sessions, before a peer is back.
func TestDrainCancelledAfterAClear(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		t.Run(fmt.Sprintf("stopped=%t", stopped), func(t *testing.T) {
			c := newHandoverCluster(t, hashSpec(), nil)
			n1 := c.nodes[0]
			c.nodes[0].drain()
			if stopped {
				n1.stop()
				n1.start()
				poll.Eventually(t, "the node has its records again", func() bool { s := n1.status(); return len(s.Peers) == 2 && s.Maps[0].Live == handoverEntries })
			}
			c.clear("batch calls")
			c.keptUntilDecided(0, 1, 2)
			c.nodes[1].stop()
			c.nodes[2].stop()
			poll.Eventually(t, "the node returns to service", func() bool { return n1.status().Ready })
			if n := c.held(0); n != handoverEntries {
				t.Errorf("sessions at the return to service: got %d, want %d", n, handoverEntries)
			}
			if h, err := n1.client.Handover(t.Context()); err != nil || h.Drained || h.Cancelled != "all peers have left" {
				t.Errorf("handover: got %+v, error %v, want it cancelled", h, err)
			}
		})
	}
}

// TestDrainedNodeStartsAlone: a drained node that starts again without a peer waits for sync-timeout, and returns to
// service then. With end-drain-at-start it returns once its map is refilled.
func TestDrainedNodeStartsAlone(t *testing.T) {
	for _, end := range []bool{false, true} {
		t.Run(fmt.Sprintf("end-drain-at-start=%t", end), func(t *testing.T) {
			c := newHandoverCluster(t, hashSpec(), nil)
			n1 := c.nodes[0]
			c.nodes[0].drain()
			n1.stop()
			c.clear("single calls")
			n1.config.EndDrainAtStart = end
			if !end {
				c.nodes[1].stop()
				c.nodes[2].stop()
				n1.config.SyncTimeout = 2 * time.Second
				n1.start()
				poll.Eventually(t, "the node returns to service", func() bool { return n1.status().Ready })
				return
			}
			n1.start()
			poll.Eventually(t, "the node returns to service", func() bool { return n1.status().Ready })
			if n := c.held(0, 1, 2); n != 3*handoverEntries {
				t.Errorf("sessions at the return to service: got %d, want %d", n, 3*handoverEntries)
			}
			poll.Stays(t, time.Second, "all nodes keep the sessions", func() bool { return c.held(0, 1, 2) == 3*handoverEntries })
		})
	}
}
