package daemon_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"mapsync/internal/poll"

	"github.com/cilium/ebpf"
)

// TestInnerMapsReplicate replicates the inner maps of an array of maps, as of a load balancer with an LRU map for
// each CPU. One of them is replaced on a node, which refills it.
func TestInnerMapsReplicate(t *testing.T) {
	dir := pinDir(t)
	inner := &ebpf.MapSpec{Name: "lru", Type: ebpf.LRUHash, KeySize: 8, ValueSize: 8, MaxEntries: 1000}
	var nodes [2]*node
	var outers [2]*ebpf.Map
	insert := func(n int, key uint32) *ebpf.Map {
		t.Helper()
		m, err := ebpf.NewMap(inner)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		if err := outers[n].Put(key, m); err != nil {
			t.Fatal(err)
		}
		return m
	}
	var maps [2][2]*ebpf.Map // by node and key
	for i := range nodes {
		outer, err := ebpf.NewMap(&ebpf.MapSpec{Name: "cpus", Type: ebpf.ArrayOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 2, InnerMap: inner})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { outer.Close() })
		pin := filepath.Join(dir, fmt.Sprint("outer", i))
		if err := outer.Pin(pin); err != nil {
			t.Fatal(err)
		}
		outers[i] = outer
		maps[i][0] = insert(i, 0)
		maps[i][1] = insert(i, 1)
		n := newNode(t, i+1, "lru0="+pin+"[0]", "lru1="+pin+"[1]")
		n.config.ScanInterval, n.config.MaxScanInterval = 100*time.Millisecond, 100*time.Millisecond
		n.start()
		nodes[i] = n
	}
	put := func(m *ebpf.Map, from, to, v uint64) {
		t.Helper()
		for i := from; i < to; i++ {
			key, value := pair(i, v)
			if err := m.Put(key, value); err != nil {
				t.Fatal(err)
			}
		}
	}
	put(maps[0][0], 0, 100, 1)
	put(maps[1][1], 0, 100, 2)
	poll.Eventually(t, "each inner map has the entries of its peer", func() bool {
		return lacks(maps[1][0], 100, 1) == 0 && lacks(maps[0][1], 100, 2) == 0
	})
	replaced := insert(0, 1)
	poll.Eventually(t, "the new inner map has all entries", func() bool { return lacks(replaced, 100, 2) == 0 })
	put(replaced, 0, 50, 3)
	poll.Eventually(t, "the new inner map replicates", func() bool { return lacks(maps[1][1], 50, 3) == 0 })
	// Without its inner map, the node keeps the records.
	if err := outers[0].Delete(uint32(0)); err != nil {
		t.Fatal(err)
	}
	poll.Eventually(t, "the map waits", func() bool { return nodes[0].status().Maps[0].State == "waiting" })
	back := insert(0, 0)
	poll.Eventually(t, "the inner map has its entries again", func() bool { return lacks(back, 100, 1) == 0 })
}
