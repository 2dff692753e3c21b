package daemon_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"

	"github.com/cilium/ebpf"
)

// copyMap returns a map that is twice as large, with the entries of m. It is not pinned.
func copyMap(t *testing.T, m *ebpf.Map) *ebpf.Map {
	t.Helper()
	c, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "ct", Type: m.Type(), KeySize: m.KeySize(), ValueSize: m.ValueSize(), MaxEntries: 2 * m.MaxEntries(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	var key, value []byte
	for all := m.Iterate(); all.Next(&key, &value); {
		if err := c.Put(key, value); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// movePin makes path the pin of m. No process finds the path without a map for long.
func movePin(t *testing.T, path string, m *ebpf.Map) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := m.Pin(path); err != nil {
		t.Fatal(err)
	}
}

// wrong returns the number of keys [0, 1100) that differ from the values of want. Value 0: no entry.
func wrong(m *ebpf.Map, want func(i uint64) uint64) (n int) {
	value := make([]byte, 8)
	for i := range uint64(1100) {
		key, _ := pair(i, 0)
		got := uint64(0)
		if m.Lookup(key, value) == nil {
			got = binary.LittleEndian.Uint64(value)
		}
		if got != want(i) {
			n++
		}
	}
	return n
}

// startCluster starts count nodes, each with a pinned map, and waits until all are ready.
func startCluster(t *testing.T, count int, set func(*node)) (nodes []*node, maps []*ebpf.Map) {
	t.Helper()
	dir := pinDir(t)
	for i := range count {
		pin := filepath.Join(dir, fmt.Sprint(i))
		maps = append(maps, pinned(t, pin, 8, 8, 2000))
		n := newNode(t, i+1, "ct="+pin)
		n.pin = pin
		if set != nil {
			set(n)
		}
		nodes = append(nodes, n)
		n.start()
	}
	poll.Eventually(t, "all nodes are ready", func() bool {
		for _, n := range nodes {
			if s := n.status(); !s.Ready || len(s.Peers) != count-1 {
				return false
			}
		}
		return true
	})
	return nodes, maps
}

// TestNewMapIsACopy: a standby's load balancer enlarges its map. It makes a new one, copies the entries, and moves the
// pin later. The active node changes, ends and adds sessions between the two. They stay changed, ended and added.
func TestNewMapIsACopy(t *testing.T) {
	for _, count := range []int{2, 3} {
		t.Run(fmt.Sprintf("%d nodes", count), func(t *testing.T) {
			nodes, maps := startCluster(t, count, nil)
			nodes[0].write(maps[0], 0, 1000, 1)
			all := func(want func(uint64) uint64) func() bool {
				return func() bool {
					for _, m := range maps {
						if wrong(m, want) > 0 {
							return false
						}
					}
					return true
				}
			}
			poll.Eventually(t, "all maps hold the sessions", all(func(i uint64) uint64 {
				if i < 1000 {
					return 1
				}
				return 0
			}))
			fresh := copyMap(t, maps[1])
			nodes[0].write(maps[0], 0, 100, 2)
			nodes[0].applyEntries(maps[0], 100, func(i int) (key, value []byte) { key, _ = pair(uint64(100+i), 0); return key, nil })
			nodes[0].write(maps[0], 1000, 1100, 2)
			want := func(i uint64) uint64 {
				switch {
				case i < 100 || i >= 1000:
					return 2
				case i < 200:
					return 0
				}
				return 1
			}
			poll.Eventually(t, "all maps hold the changes", all(want))
			time.Sleep(3 * time.Second) // the copy is not yet followed while the load balancer warms up: no state to wait for
			movePin(t, nodes[1].pin, fresh)
			maps[1] = fresh
			poll.Eventually(t, "the new map holds the changes", all(want))
			poll.Eventually(t, "the node is ready", func() bool { return nodes[1].status().Ready })
			poll.Stays(t, time.Second, "all maps hold the changes", all(want))
		})
	}
}

// sessionModel is the content of the active node's map while its load balancer changes sessions. Nothing else may change it.
type sessionModel struct {
	n    *node
	m    *ebpf.Map
	want [1000]uint64 // value of each session; 0: it has ended
}

// step changes a part of the sessions, and ends others or begins them again. Each stays as it is for some steps.
func (s *sessionModel) step(v uint64) {
	const share = 25
	from := v % (500 / share) * share
	s.n.write(s.m, from, from+share, v)
	gone := 500 + from
	var ended []uint64 // the delete of an absent key fails
	for key := gone; key < gone+share; key++ {
		if s.want[key] != 0 {
			ended = append(ended, key)
		}
	}
	s.n.applyEntries(s.m, len(ended), func(i int) (key, value []byte) { key, _ = pair(ended[i], 0); return key, nil })
	s.n.write(s.m, gone, gone+share/2, v)
	for i := range uint64(share) {
		s.want[from+i], s.want[gone+i] = v, 0
		if i < share/2 {
			s.want[gone+i] = v
		}
	}
}

// compare returns the sessions that differ from the model, as text.
func (s *sessionModel) compare() (differ []string) {
	value := make([]byte, 8)
	for i, want := range s.want {
		key, _ := pair(uint64(i), 0)
		got := uint64(0)
		if s.m.Lookup(key, value) == nil {
			got = binary.LittleEndian.Uint64(value)
		}
		if got != want {
			differ = append(differ, fmt.Sprintf("session %d: got %d, want %d", i, got, want))
		}
	}
	return differ
}

// TestNewMapIsACopyUnderLoad: the load balancer of the active node keeps changing its sessions while a standby's
// enlarges its map three times. In the active node's map, no value goes back, and no ended session returns, at any reading.
func TestNewMapIsACopyUnderLoad(t *testing.T) {
	nodes, maps := startCluster(t, 2, nil)
	model := &sessionModel{n: nodes[0], m: maps[0]}
	nodes[0].write(maps[0], 0, 1000, 1)
	for i := range model.want {
		model.want[i] = 1
	}
	poll.Eventually(t, "the standby's map holds the sessions", func() bool { return holds(t, maps[1], 1000, 1) })
	read := func() {
		if differ := model.compare(); len(differ) > 0 {
			t.Errorf("the active node's map: got %d wrong sessions, want 0: %s", len(differ), differ[0])
		}
	}
	stop := writeLoop(t, func(v uint64) {
		model.step(v)
		for range 3 {
			read()
		}
	})
	for range 3 {
		fresh := copyMap(t, maps[1])
		movePin(t, nodes[1].pin, fresh)
		maps[1] = fresh
		id := idOf(t, fresh)
		poll.Eventually(t, "the node is ready with the new map", func() bool {
			s := nodes[1].status()
			return s.Ready && s.Maps[0].ID == id
		})
	}
	stop()
	poll.Eventually(t, "both maps have the same content", func() bool { read(); return sameContent(t, maps[0], maps[1]) })
	if strings.Contains(nodes[0].owners(), " n2 ") {
		t.Error("owners: got records of n2, want those of n1 only")
	}
}
