package daemon_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
)

// waitIdentitySaved waits until n's state file contains a kernel map.
func (n *node) waitIdentitySaved(m *ebpf.Map) {
	n.t.Helper()
	poll.Eventually(n.t, "the state file contains the map", func() bool {
		_, state := n.readState()
		id, _ := state["kernel_maps"].(map[string]any)["ct"].(map[string]any)
		return id != nil && id["id"] == float64(idOf(n.t, m))
	})
}

func (n *node) readState() (path string, state map[string]any) {
	path = filepath.Join(n.config.StateDir, n.config.NodeName+".state.json")
	data, _ := os.ReadFile(path)
	state = map[string]any{"kernel_maps": map[string]any{}}
	_ = json.Unmarshal(data, &state)
	return path, state
}

// savedMapID returns the id of the map ct in the state file, a float64, or nil if the file lacks it.
func (n *node) savedMapID() any {
	_, state := n.readState()
	ct, _ := state["kernel_maps"].(map[string]any)["ct"].(map[string]any)
	return ct["id"]
}

func idOf(t *testing.T, m *ebpf.Map) uint32 {
	t.Helper()
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return uint32(id)
}

// The load balancer restarts under load. Its new map is refilled with its own sessions and those
// of its peers. Entries that it has already written into the new map win over older values.
func TestBalancerRestartsUnderLoad(t *testing.T) {
	const entries = 5000
	n1, n2, m1, m2 := twoNodes(t, 4*entries)
	startPair(t, n1, n2)
	n1.write(m1, 0, entries, 7)
	n2.write(m2, entries, 2*entries, 7)
	poll.Eventually(t, "both maps hold all entries", func() bool { return lacks(m1, 2*entries, 7)+lacks(m2, 2*entries, 7) == 0 })

	stop := writeLoop(t, func(v uint64) { n2.write(m2, 2*entries, 2*entries+300, v) })
	for round := range uint64(5) {
		v := 200 + round
		n1.write(m1, 0, 10, v) // the last writes of the old load balancer
		poll.Eventually(t, "the last writes to the old map reach the peer", func() bool { return lacks(m2, 10, v) == 0 })
		m1 = pinned(t, n1.pin, 8, 8, 4*entries)
		for i := range uint64(10) { // the first writes of the new load balancer, before syncd has detected the map
			key, value := pair(100+i, v)
			if err := m1.Put(key, value); err != nil {
				t.Fatal(err)
			}
		}
		right := func(m *ebpf.Map) bool {
			value := make([]byte, 8)
			for i := range uint64(2 * entries) {
				want := uint64(7)
				if i < 10 || i >= 100 && i < 110 {
					want = v
				}
				key, _ := pair(i, 0)
				if m.Lookup(key, value) != nil || binary.LittleEndian.Uint64(value) != want {
					return false
				}
			}
			return true
		}
		poll.Eventually(t, fmt.Sprintf("round %d: the new map holds all entries", round), func() bool { return right(m1) })
		poll.Eventually(t, fmt.Sprintf("round %d: the peer's map holds all entries", round), func() bool { return right(m2) })
		poll.Eventually(t, "the node is ready again", func() bool { return n1.status().Ready })
	}
	stop()
	poll.Eventually(t, "both maps have the same content", func() bool { return sameContent(t, m1, m2) })
}

func sameContent(t *testing.T, a, b *ebpf.Map) bool {
	t.Helper()
	dump := func(m *ebpf.Map) map[string]string {
		all, entries := map[string]string{}, m.Iterate()
		var key, value []byte
		for entries.Next(&key, &value) {
			all[string(key)] = string(value)
		}
		return all
	}
	x, y := dump(a), dump(b)
	if len(x) != len(y) {
		return false
	}
	for key, value := range x {
		if y[key] != value {
			return false
		}
	}
	return true
}

// The load balancer also restarts while syncd is stopped. A key that is absent from the new map
// was not deleted, and the new map is refilled.
func TestPinReplacedWhileSyncdIsStopped(t *testing.T) {
	n1, n2, m1, m2 := syncedPair(t)
	n1.waitIdentitySaved(m1)
	n1.stop()
	fresh := pinned(t, n1.pin, 8, 8, 1000)
	n1.start()
	poll.Eventually(t, "the new map is refilled", func() bool { return holds(t, fresh, 500, 7) })
	poll.Eventually(t, "the node is ready", func() bool { return n1.status().Ready })
	if !holds(t, m2, 500, 7) {
		t.Error("the peer's map: got entries deleted, want 500 entries")
	}
	// A map that is unpinned and pinned again between two polls is the same map. It does not
	// change.
	if err := fresh.Unpin(); err != nil {
		t.Fatal(err)
	}
	if err := fresh.Pin(n1.pin); err != nil {
		t.Fatal(err)
	}
	n1.write(fresh, 0, 500, 8)
	poll.Eventually(t, "the map still replicates", func() bool { return holds(t, m2, 500, 8) })
	// A map that is unpinned for longer disappears. When it returns, it gets the changes made
	// meanwhile on either side.
	if err := fresh.Unpin(); err != nil {
		t.Fatal(err)
	}
	poll.Eventually(t, "the map state is waiting", func() bool { return n1.status().Maps[0].State == daemon.MapWaiting })
	if n1.status().Ready || n1.serving() {
		t.Error("node without a map: got ready, want not ready")
	}
	n2.write(m2, 0, 100, 9)
	if err := fresh.Pin(n1.pin); err != nil {
		t.Fatal(err)
	}
	poll.Eventually(t, "the returned map has the changes of the peer", func() bool { return sameContent(t, fresh, m2) && lacks(fresh, 100, 9) == 0 })
}

// While a map is absent, deletes of peers are not written. Their tombstones expire nevertheless.
func TestTombstonesExpireWithoutKernelMap(t *testing.T) {
	n1, n2, m1, m2 := twoNodes(t, 1000)
	n1.config.TombstoneTTL = time.Second
	startPair(t, n1, n2)
	n2.write(m2, 0, 500, 7)
	poll.Eventually(t, "the peer's map holds all entries", func() bool { return holds(t, m1, 500, 7) })
	if err := m1.Unpin(); err != nil {
		t.Fatal(err)
	}
	poll.Eventually(t, "the map state is waiting", func() bool { return n1.status().Maps[0].State == daemon.MapWaiting })
	n2.applyEntries(m2, 100, func(i int) (key, value []byte) { key, _ = pair(uint64(i), 0); return key, nil })
	poll.Eventually(t, "the deletes are received and their tombstones expire", func() bool {
		m := n1.status().Maps[0]
		return m.Live == 400 && m.Tombstones == 0 && m.Pending == 0
	})
}

// The kernel can use an id again. If the state file contains the id of another map, an absent key
// must not count as deleted.
func TestReusedMapIDIsDetected(t *testing.T) {
	n1, _, m1, m2 := syncedPair(t)
	n1.waitIdentitySaved(m1)
	n1.stop()
	fresh := pinned(t, n1.pin, 8, 8, 1001)
	path, state := n1.readState()
	delete(state, "checksum") // as in a file of an earlier release
	state["kernel_maps"].(map[string]any)["ct"].(map[string]any)["id"] = idOf(t, fresh)
	data, err := json.Marshal(state)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	n1.start()
	poll.Eventually(t, "the new map is refilled", func() bool { return holds(t, fresh, 500, 7) })
	poll.Stays(t, 200*time.Millisecond, "the peer's map holds 500 entries", func() bool { return holds(t, m2, 500, 7) })
}
