package daemon_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/capture"

	"github.com/cilium/ebpf"
)

// clearing is a cluster of nodes whose first one has entries.
type clearing struct {
	t     *testing.T
	nodes []*node
	maps  []*ebpf.Map
	pins  []string
}

const clearedEntries = 1000

// newClearing returns n nodes, which are ready and have the entries of the first one. attach is its attach method.
func newClearing(t *testing.T, n int, attach capture.Attach, change func(*node)) *clearing {
	t.Helper()
	return newClearingOf(t, n, &ebpf.MapSpec{Name: "ct", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 4 * clearedEntries}, attach, change)
}

// newClearingOf is newClearing with other maps.
func newClearingOf(t *testing.T, n int, spec *ebpf.MapSpec, attach capture.Attach, change func(*node)) *clearing {
	t.Helper()
	c := &clearing{t: t}
	dir := pinDir(t)
	for i := range n {
		pin := filepath.Join(dir, fmt.Sprint(i))
		c.pins = append(c.pins, pin)
		c.maps = append(c.maps, pinnedAs(t, pin, spec.Copy()))
		each := newNode(t, i+1, "ct="+pin)
		each.config.RefreshInterval = time.Second
		if i == 0 {
			each.attach = attach
		}
		change(each)
		c.nodes = append(c.nodes, each)
		each.start()
	}
	c.ready()
	startControlPlane(t, c.pins[0]).do("update", 0, clearedEntries, 1)
	c.wait("all nodes have the entries", clearedEntries)
	return c
}

func (c *clearing) ready() {
	c.t.Helper()
	poll.Eventually(c.t, "all nodes are ready", func() bool {
		for _, n := range c.nodes {
			if s := n.status(); !s.Ready || len(s.Peers) != len(c.nodes)-1 {
				return false
			}
		}
		return true
	})
}

// held returns the number of entries in each map.
func (c *clearing) held() (n []int) {
	for _, m := range c.maps {
		n = append(n, clearedEntries-lacks(m, clearedEntries, 1))
	}
	return n
}

// all reports whether each map has n entries.
func (c *clearing) all(n int) bool {
	for _, has := range c.held() {
		if has != n {
			return false
		}
	}
	return true
}

func (c *clearing) wait(what string, n int) {
	c.t.Helper()
	poll.Within(c.t, 20*time.Second, what, func() bool { return c.all(n) })
}

// peersKeep checks for a time that no peer loses an entry.
func (c *clearing) peersKeep(d time.Duration) {
	c.t.Helper()
	poll.Stays(c.t, d, "the peers keep the entries", func() bool {
		for _, n := range c.held()[1:] {
			if n != clearedEntries {
				return false
			}
		}
		return true
	})
}

// eachClearMethod runs a test with each attach method that works here.
func eachClearMethod(t *testing.T, fn func(*testing.T, capture.Attach)) {
	for _, offer := range probeOnce(controlMethods()...) {
		t.Run(string(offer.Attach), func(t *testing.T) {
			if offer.Err != nil {
				refused(t, &offer)
			}
			fn(t, offer.Attach)
		})
	}
}

// TestClearIsHeld: a process that has just started deletes all entries, singly or in batches. No peer loses one, and the
// map is filled again. The same holds for each further start.
func TestClearIsHeld(t *testing.T) {
	eachClearMethod(t, func(t *testing.T, attach capture.Attach) {
		c := newClearing(t, 3, attach, func(*node) {})
		for i, operation := range []string{"delete", "batch-delete", "delete"} {
			p := startControlPlane(t, c.pins[0])
			p.do(operation, 0, clearedEntries, 0)
			c.peersKeep(3 * time.Second)
			c.wait("the map is filled again", clearedEntries)
			poll.Eventually(t, "the status has the clear", func() bool {
				s := c.nodes[0].status().Maps[0].Clear
				return s != nil && s.Restored && s.Entries == clearedEntries && p.is(s.Process)
			}, func() any { return fmt.Sprintf("got %+v, want process %d", c.nodes[0].status().Maps[0].Clear, p.ID) })
			want := fmt.Sprintf(`mapsync_map_clears_total{map="ct"} %d`, i+1)
			poll.Eventually(t, "the metric counts the clear", func() bool { return strings.Contains(c.nodes[0].metrics(), want) })
		}
		if s := c.nodes[1].status().Maps[0]; s.Clear != nil || s.Clears != "hold" {
			t.Errorf("peer: got clear %v and setting %q, want none and hold", s.Clear, s.Clears)
		}
		if !c.nodes[0].log.contains("map was cleared, the deletes are not replicated") || !c.nodes[0].log.contains("entries restored after a clear") {
			t.Error("log: got no lines about the clear, want them")
		}
	})
}

// TestCollectorIsNeverHeld: a process that goes on deletes 90 % of the entries at once. Peers follow within 5 s.
func TestCollectorIsNeverHeld(t *testing.T) {
	eachClearMethod(t, func(t *testing.T, attach capture.Attach) {
		c := newClearing(t, 2, attach, func(*node) {})
		p := startControlPlane(t, c.pins[0])
		p.do("delete", 0, clearedEntries*9/10, 0)
		poll.Within(t, 5*time.Second, "the peer follows", func() bool { return c.all(clearedEntries / 10) })
		// The rest is idle, and the process is no longer young.
		time.Sleep(12 * time.Second)
		p.do("delete", clearedEntries*9/10, clearedEntries/10, 0)
		poll.Within(t, 5*time.Second, "the peer follows", func() bool { return c.all(0) })
		if s := c.nodes[0].status().Maps[0]; s.Clear != nil {
			t.Errorf("clear: got %+v, want none", s.Clear)
		}
	})
}

// TestRepeatedClearReplicates: a process that goes on deletes the entries again after they were restored.
func TestRepeatedClearReplicates(t *testing.T) {
	eachClearMethod(t, func(t *testing.T, attach capture.Attach) {
		c := newClearing(t, 2, attach, func(*node) {})
		p := startControlPlane(t, c.pins[0])
		p.do("delete", 0, clearedEntries, 0)
		c.peersKeep(3 * time.Second)
		c.wait("the map is filled again", clearedEntries)
		p.do("delete", 0, clearedEntries, 0)
		poll.Within(t, 5*time.Second, "the peer follows", func() bool { return c.all(0) })
	})
}

// TestClearBeforeRestart: syncd ends while the deletes wait, or is stopped while the load balancer clears its map.
func TestClearBeforeRestart(t *testing.T) {
	for _, stopped := range []bool{false, true} {
		t.Run(fmt.Sprintf("stopped=%t", stopped), func(t *testing.T) {
			eachClearMethod(t, func(t *testing.T, attach capture.Attach) {
				c := newClearing(t, 2, attach, func(*node) {})
				if stopped {
					c.nodes[0].stop()
				}
				startControlPlane(t, c.pins[0]).do("delete", 0, clearedEntries, 0)
				c.nodes[0].stop()
				c.nodes[0].start()
				c.peersKeep(4 * time.Second)
				c.wait("the map is filled again", clearedEntries)
				c.ready()
				poll.Eventually(t, "the status has the clear", func() bool {
					s := c.nodes[0].status().Maps[0].Clear
					return s != nil && s.Restored && s.Process == 0
				})
			})
		})
	}
}

// TestKilledWhileAClearIsRestored: syncd is killed when a part of the entries is in the map again. The absence of the others is
// no delete, although the part that is left is too large for a clear.
func TestKilledWhileAClearIsRestored(t *testing.T) {
	c := newClearing(t, 2, capture.AttachNone, func(n *node) { n.config.ScanInterval = 200 * time.Millisecond })
	n := c.nodes[0]
	for tries := 0; n.savedMapID() != nil; tries++ { // until syncd ends before the identity is saved again
		if tries == 10 {
			t.Fatal("state file while the entries of a clear are restored: got the identity of the map, want none")
		}
		if tries > 0 {
			n.start()
			c.ready()
		}
		n.waitIdentitySaved(c.maps[0])
		startControlPlane(t, c.pins[0]).do("delete", 0, clearedEntries, 0)
		for end := time.Now().Add(10 * time.Second); n.savedMapID() != nil && time.Now().Before(end); time.Sleep(time.Millisecond) { // poll waits longer, and fails
		}
		n.stop()
	}
	if err := os.Remove(filepath.Join(n.config.StateDir, n.config.NodeName+".ct.stop")); err != nil {
		t.Fatal(err)
	}
	for i := uint64(clearedEntries / 5); i < clearedEntries; i++ {
		key, _ := pair(i, 0)
		if err := c.maps[0].Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Fatal(err)
		}
	}
	n.start()
	c.peersKeep(4 * time.Second)
	c.wait("the map is filled again", clearedEntries)
	n.waitIdentitySaved(c.maps[0])
}

// TestClearFoundByScan: without hooks, a scan finds the entries gone.
func TestClearFoundByScan(t *testing.T) {
	c := newClearing(t, 2, capture.AttachNone, func(n *node) { n.config.ScanInterval = 200 * time.Millisecond })
	startControlPlane(t, c.pins[0]).do("delete", 0, clearedEntries, 0)
	c.peersKeep(4 * time.Second)
	c.wait("the map is filled again", clearedEntries)
}

// TestClearsReplicate: with the setting, or by the decision of an operator, the deletes reach the peers.
func TestClearsReplicate(t *testing.T) {
	eachClearMethod(t, func(t *testing.T, attach capture.Attach) {
		c := newClearing(t, 2, attach, func(n *node) { n.config.Clears = []string{"ct=replicate"} })
		startControlPlane(t, c.pins[0]).do("delete", 0, clearedEntries, 0)
		poll.Within(t, 5*time.Second, "the peer follows", func() bool { return c.all(0) })
	})
}

// TestDecideClear: `syncd clears` decides about a clear, once.
func TestDecideClear(t *testing.T) {
	eachClearMethod(t, func(t *testing.T, attach capture.Attach) {
		c := newClearing(t, 2, attach, func(*node) {})
		client := c.nodes[0].client
		if _, err := client.ReleaseClear(t.Context(), "ct"); err == nil {
			t.Error("release without a clear: got no error, want one")
		}
		cleared := func() {
			startControlPlane(t, c.pins[0]).do("delete", 0, clearedEntries, 0)
			poll.Eventually(t, "the status has the clear", func() bool { return c.nodes[0].status().Maps[0].Clear != nil })
		}
		cleared()
		if done, err := client.RestoreClear(t.Context(), "ct"); err != nil || done.Entries != clearedEntries {
			t.Fatalf("restore: got %+v, error %v, want %d entries", done, err, clearedEntries)
		}
		c.wait("the map is filled again", clearedEntries)
		poll.Eventually(t, "the problem has ended", func() bool {
			return c.nodes[0].status().Maps[0].Clear == nil
		})
		cleared()
		if done, err := client.ReleaseClear(t.Context(), "ct"); err != nil || done.Entries != clearedEntries {
			t.Fatalf("release: got %+v, error %v, want %d entries", done, err, clearedEntries)
		}
		c.wait("the entries are gone on all nodes", 0)
	})
}

// TestReleaseAwaitsLostEvents: while events are lost, a clear is not released: an entry may have been written again since.
func TestReleaseAwaitsLostEvents(t *testing.T) {
	c := newClearing(t, 2, capture.AttachNone, func(n *node) { n.config.BufferSize, n.config.ScanInterval = 4096, 200*time.Millisecond })
	n := c.nodes[0]
	startControlPlane(t, c.pins[0]).do("delete", 0, clearedEntries, 0)
	poll.Eventually(t, "the clear ends", func() bool { s := n.status().Maps[0].Clear; return s != nil && s.Restored })
	c.wait("the map is filled again", clearedEntries)
	stop := writeLoop(t, func(v uint64) { n.write(c.maps[0], clearedEntries, 2*clearedEntries, v) })
	poll.Eventually(t, "events are lost", func() bool { return n.status().Capture.Losses.Open })
	_, err := n.client.ReleaseClear(t.Context(), "ct")
	stop()
	if err == nil || !strings.Contains(err.Error(), "events were lost") {
		t.Errorf("release while events are lost: got error %v, want one about them", err)
	}
	poll.Eventually(t, "the losses are repaired", func() bool { return !n.status().Capture.Losses.Open })
	if done, err := n.client.ReleaseClear(t.Context(), "ct"); err != nil || done.Entries != clearedEntries {
		t.Errorf("release: got %+v, error %v, want %d entries", done, err, clearedEntries)
	}
	c.wait("the entries are gone on all nodes", 0)
}
