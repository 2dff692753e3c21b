package daemon_test

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
)

// waitRemembered waits until n's state file names a kernel map.
func (n *node) waitRemembered(m *ebpf.Map) {
	n.t.Helper()
	eventually(n.t, "the map is remembered", func() bool {
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

func idOf(t *testing.T, m *ebpf.Map) uint32 {
	t.Helper()
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return uint32(id)
}

// The load balancer restarts under load, and its new map is refilled: its own sessions
// and its peers'. What it has written into the new map before wins over older values.
func TestBalancerRestartsUnderLoad(t *testing.T) {
	const entries = 5000
	n1, n2, m1, m2 := twoNodes(t, 4*entries)
	startPair(t, n1, n2)
	n1.write(m1, 0, entries, 7)
	n2.write(m2, entries, 2*entries, 7)
	eventually(t, "equal", func() bool { return lacks(m1, 2*entries, 7)+lacks(m2, 2*entries, 7) == 0 })

	stop := busy(t, func(v uint64) { n2.write(m2, 2*entries, 2*entries+300, v) })
	for round := range uint64(5) {
		v := 200 + round
		n1.write(m1, 0, 10, v) // the last that the old one does
		eventually(t, "the last of the old map is known", func() bool { return lacks(m2, 10, v) == 0 })
		m1 = pinned(t, n1.pin, 8, 8, 4*entries)
		for i := range uint64(10) { // and the first that the new one does, before syncd has seen it
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
		eventually(t, fmt.Sprintf("round %d: the new map has all", round), func() bool { return right(m1) })
		eventually(t, fmt.Sprintf("round %d: so has the peer's", round), func() bool { return right(m2) })
		eventually(t, "ready again", func() bool { return n1.status().Ready })
	}
	stop()
	eventually(t, "equal at last", func() bool { return sameContent(t, m1, m2) })
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

// While syncd is away its load balancer restarts too: an absent key of the new map
// was not deleted, and it is refilled.
func TestPinReplacedWhileAway(t *testing.T) {
	n1, n2, m1, m2 := equalPair(t)
	n1.waitRemembered(m1)
	n1.stop()
	fresh := pinned(t, n1.pin, 8, 8, 1000)
	n1.start()
	eventually(t, "the new map is refilled", func() bool { return holds(t, fresh, 500, 7) })
	eventually(t, "ready", func() bool { return n1.status().Ready })
	if !holds(t, m2, 500, 7) {
		t.Error("the peer has lost entries")
	}
	// Between two looks: gone and back is the same map, and nothing happens to it.
	if err := fresh.Unpin(); err != nil {
		t.Fatal(err)
	}
	if err := fresh.Pin(n1.pin); err != nil {
		t.Fatal(err)
	}
	n1.write(fresh, 0, 500, 8)
	eventually(t, "it goes on", func() bool { return holds(t, m2, 500, 8) })
	// Unpinned for longer it is gone, and what happens meanwhile on either side is there when it is back.
	if err := fresh.Unpin(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "gone", func() bool { return n1.status().Maps[0].State == daemon.MapWaiting })
	if n1.status().Ready || n1.serving() {
		t.Error("ready without a map")
	}
	n2.write(m2, 0, 100, 9)
	if err := fresh.Pin(n1.pin); err != nil {
		t.Fatal(err)
	}
	eventually(t, "back, with what the peer has written", func() bool { return sameContent(t, fresh, m2) && lacks(fresh, 100, 9) == 0 })
}

// While a map is away nobody writes what peers delete. It is forgotten in time all the same.
func TestDeletesAreForgottenWhileTheMapIsAway(t *testing.T) {
	n1, n2, m1, m2 := twoNodes(t, 1000)
	n1.config.TombstoneTTL = time.Second
	startPair(t, n1, n2)
	n2.write(m2, 0, 500, 7)
	eventually(t, "the peer's map holds all", func() bool { return holds(t, m1, 500, 7) })
	if err := m1.Unpin(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "gone", func() bool { return n1.status().Maps[0].State == daemon.MapWaiting })
	n2.feed(m2, 100, func(i int) (key, value []byte) { key, _ = pair(uint64(i), 0); return key, nil })
	eventually(t, "deletes came, and are forgotten", func() bool {
		m := n1.status().Maps[0]
		return m.Live == 400 && m.Tombstones == 0 && m.Pending == 0
	})
}

// Ids are used again one day: a state file that names the id of another map must not
// make an absent key a delete.
func TestReusedIDIsAnotherMap(t *testing.T) {
	n1, _, m1, m2 := equalPair(t)
	n1.waitRemembered(m1)
	n1.stop()
	fresh := pinned(t, n1.pin, 8, 8, 1001)
	path, state := n1.readState()
	state["kernel_maps"].(map[string]any)["ct"].(map[string]any)["id"] = idOf(t, fresh)
	data, err := json.Marshal(state)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	n1.start()
	eventually(t, "the new map is refilled", func() bool { return holds(t, fresh, 500, 7) })
	time.Sleep(200 * time.Millisecond)
	if !holds(t, m2, 500, 7) {
		t.Error("the peer has lost entries")
	}
}
