package daemon_test

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/capture"

	"github.com/cilium/ebpf"
)

// TestClearOfLRUMapIsHeld: a process that has just started deletes all entries of an LRU map, and hooks report that. No peer loses
// one, and the map is filled again.
func TestClearOfLRUMapIsHeld(t *testing.T) {
	eachClearMethod(t, func(t *testing.T, attach capture.Attach) {
		spec := &ebpf.MapSpec{Name: "ct", Type: ebpf.LRUHash, KeySize: 8, ValueSize: 8, MaxEntries: 16 * clearedEntries}
		c := newClearingOf(t, 2, spec, attach, func(n *node) {
			n.config.ScanInterval, n.config.MaxScanInterval = 200*time.Millisecond, 200*time.Millisecond
		})
		for _, operation := range []string{"delete", "batch-delete"} {
			startControlPlane(t, c.pins[0]).do(operation, 0, clearedEntries, 0)
			c.keptUntil("the clear is detected and the map filled again", func() bool {
				s := c.nodes[0].status().Maps[0].Clear
				return s != nil && s.Restored && s.Entries == clearedEntries && c.all(clearedEntries)
			})
			if _, err := c.nodes[0].client.RestoreClear(t.Context(), "ct"); err != nil {
				t.Fatalf("end the problem: got error %v, want none", err)
			}
		}
	})
}

// keptUntil waits for a condition, and checks at each reading that the peers have all entries.
func (c *clearing) keptUntil(what string, ok func() bool) {
	c.t.Helper()
	poll.Eventually(c.t, what, func() bool {
		for i, n := range c.held()[1:] {
			if n != clearedEntries {
				c.t.Fatalf("%s: entries of node %d: got %d, want %d", what, i+2, n, clearedEntries)
			}
		}
		return ok()
	})
}

// usesSpec describes a map in which each use of an entry changes a counter.
func usesSpec() *ebpf.MapSpec {
	key, value := layout{{"id", 8}}.build("ct_key"), layout{{"state", 8}, {"uses", 8}}.build("ct_value")
	return &ebpf.MapSpec{Name: "ct", Type: ebpf.Hash, KeySize: 8, ValueSize: 16, MaxEntries: 4 * clearedEntries, Key: key, Value: value}
}

// clearUse is the time for which an entry counts as used in TestClearWithVisibleUses.
const clearUse = 1500 * time.Millisecond

// TestClearWithVisibleUses: values have a volatile field, so that a use of an entry is visible. A process that has just started
// deletes all entries. If one of them was used shortly before, that is a clear: the entries stay. Otherwise it is none, and the
// deletes reach the peer.
func TestClearWithVisibleUses(t *testing.T) {
	for _, used := range []bool{true, false} {
		t.Run(fmt.Sprintf("used=%t", used), func(t *testing.T) {
			offers := probeOnce(controlMethods()...)
			attach := offers[len(offers)-1]
			for _, offer := range offers {
				if offer.Err == nil {
					attach = offer
				}
			}
			if attach.Err != nil {
				refused(t, &attach)
			}
			c := newClearingOf(t, 2, usesSpec(), attach.Attach, func(n *node) {
				n.config.Fields = []string{"ct:uses=volatile"}
				n.config.RefreshInterval, n.config.ScanInterval = clearUse/3, clearUse*2/3
			})
			for !c.clearAfterUse(used) { // the machine was too slow
			}
			if used {
				c.keptUntil("the map is filled again", func() bool {
					s := c.nodes[0].status().Maps[0].Clear
					return s != nil && s.Restored && c.all(clearedEntries)
				})
				return
			}
			c.wait("the peer follows", 0)
			if s := c.nodes[0].status().Maps[0].Clear; s != nil {
				t.Errorf("clear: got %+v, want none", s)
			}
		})
	}
}

// clearAfterUse writes all entries, waits until none counts as used, uses one of them if used is set, and makes a new process delete all
// entries. It returns false if the use was too long ago at the end of the deletes.
func (c *clearing) clearAfterUse(used bool) bool {
	c.t.Helper()
	p := startControlPlane(c.t, c.pins[0])
	p.do("update", 0, clearedEntries, 1)
	c.wait("all nodes have the entries", clearedEntries)
	time.Sleep(2 * clearUse) // the entries become idle: syncd compares times
	began := time.Now()
	if used {
		p.do("use", 0, 1, 7)
		poll.Eventually(c.t, "the use is found, and sent", func() bool { return c.usesOfFirst(1) == 7 })
	}
	startControlPlane(c.t, c.pins[0]).do("batch-delete", 0, clearedEntries, 0)
	return !used || time.Since(began) < clearUse
}

// usesOfFirst returns the counter of the first entry in the map of a node.
func (c *clearing) usesOfFirst(node int) uint64 {
	c.t.Helper()
	value, err := c.maps[node].LookupBytes(uint64(0))
	if err != nil || value == nil {
		c.t.Fatalf("first entry of node %d: got %v, error %v, want it", node+1, value, err)
	}
	return binary.NativeEndian.Uint64(value[8:])
}
