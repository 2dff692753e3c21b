package daemon_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
)

// arrayNode is a node with one array of 8-byte values.
type arrayNode struct {
	*node
	m        *ebpf.Map
	arrayPin string
}

func newArrayNode(t *testing.T, dir string, number int, typ ebpf.MapType, entries uint32) *arrayNode {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "reals", Type: typ, KeySize: 4, ValueSize: 8, MaxEntries: entries})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	pin := filepath.Join(dir, fmt.Sprint("node", number))
	if err := m.Pin(pin); err != nil {
		t.Fatal(err)
	}
	n := newNode(t, number, "reals="+pin)
	n.config.ScanInterval, n.config.MaxScanInterval = 100*time.Millisecond, 100*time.Millisecond
	return &arrayNode{n, m, pin}
}

// put writes an element by bpf(2), in a per-CPU array for all CPUs.
func (n *arrayNode) put(index uint32, value uint64) {
	n.t.Helper()
	var all any = value
	if n.m.Type() == ebpf.PerCPUArray {
		values := make([]uint64, ebpf.MustPossibleCPU())
		for i := range values {
			values[i] = value
		}
		all = values
	}
	if err := n.m.Put(index, all); err != nil {
		n.t.Fatal(err)
	}
}

// has reports whether elements have their values. All others must be zero.
func (n *arrayNode) has(want map[uint32]uint64) bool {
	for index := range n.m.MaxEntries() {
		value := binary.NativeEndian.AppendUint64(nil, want[index])
		if n.m.Type() == ebpf.PerCPUArray {
			value = bytes.Repeat(value, ebpf.MustPossibleCPU())
		}
		if got, err := n.m.LookupBytes(index); err != nil || !bytes.Equal(got, value) {
			return false
		}
	}
	return true
}

// TestArraysReplicate: elements with a value replicate like the entries of other maps, and those without are
// absent. Scans find all changes.
func TestArraysReplicate(t *testing.T) {
	for _, typ := range []ebpf.MapType{ebpf.Array, ebpf.PerCPUArray} {
		t.Run(typ.String(), func(t *testing.T) {
			dir := pinDir(t)
			a, b := newArrayNode(t, dir, 1, typ, 64), newArrayNode(t, dir, 2, typ, 64)
			a.put(0, 1)
			a.put(63, 2)
			b.put(7, 3)
			a.config.InPlace = []string{"reals=hook"}
			a.start()
			b.start()
			both := func(what string, want map[uint32]uint64) {
				t.Helper()
				poll.Eventually(t, what, func() bool { return a.has(want) && b.has(want) })
			}
			both("the first contents are merged", map[uint32]uint64{0: 1, 63: 2, 7: 3})
			poll.Eventually(t, "both nodes are ready", func() bool { return a.status().Ready && b.status().Ready })
			if got := a.status().Maps[0].InPlaceProblem; !strings.Contains(got, "array") {
				t.Errorf("problem of in-place: hook: got %q, want that of arrays", got)
			}
			b.put(9, 4)
			a.put(63, 5)
			both("changes arrive", map[uint32]uint64{0: 1, 63: 5, 7: 3, 9: 4})
			b.put(9, 0)
			both("the owner sets an element to zero", map[uint32]uint64{0: 1, 63: 5, 7: 3})
			b.put(0, 0)
			poll.Eventually(t, "the element of a peer is restored", func() bool { return b.has(map[uint32]uint64{0: 1, 63: 5, 7: 3}) })
			b.put(0, 6)
			both("another node takes an element over", map[uint32]uint64{0: 6, 63: 5, 7: 3})
			poll.Eventually(t, "the tables agree", func() bool { return a.status().Ready && b.status().Ready })
		})
	}
}

// TestArrayIsTooSmall: a node whose array lacks an index of a peer lists the record as an exception, and has the rest.
// With a larger array it has all.
func TestArrayIsTooSmall(t *testing.T) {
	dir := pinDir(t)
	a, b := newArrayNode(t, dir, 1, ebpf.Array, 64), newArrayNode(t, dir, 2, ebpf.Array, 8)
	for index := range uint32(64) {
		a.put(index, uint64(index)+1)
	}
	all := map[uint32]uint64{}
	for index := range uint32(64) {
		all[index] = uint64(index) + 1
	}
	a.start()
	b.start()
	poll.Eventually(t, "the elements that fit arrive", func() bool {
		for index := range uint32(8) {
			if value, err := b.m.LookupBytes(index); err != nil || value[0] != byte(index)+1 {
				return false
			}
		}
		return true
	})
	poll.Eventually(t, "the others are listed", func() bool {
		s := b.status()
		return len(s.Peers) == 1 && len(s.Peers[0].Maps) == 1 && s.Peers[0].Maps[0].Refused == 56
	})
	poll.Eventually(t, "the node is ready with exceptions", func() bool { return b.status().Ready && a.status().Ready })
	larger, err := ebpf.NewMap(&ebpf.MapSpec{Name: "reals", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 64})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { larger.Close() })
	b.m = larger
	if err := errors.Join(os.Remove(b.arrayPin), larger.Pin(b.arrayPin)); err != nil {
		t.Fatal(err)
	}
	poll.Eventually(t, "the larger array has all elements", func() bool { return b.has(all) })
	poll.Eventually(t, "the node is ready", func() bool { return b.status().Ready })
}

// TestArrayDoesNotReplaceHash: a table of a hash map has records that an array cannot hold.
func TestArrayDoesNotReplaceHash(t *testing.T) {
	pin := filepath.Join(pinDir(t), "ct")
	pinned(t, pin, 4, 8, 64)
	n := newNode(t, 1, "ct="+pin)
	n.config.Join = nil
	n.start()
	poll.Eventually(t, "the hash map is replicated", func() bool { return n.status().Maps[0].State == daemon.MapReplicating })
	pinnedAs(t, pin, &ebpf.MapSpec{Name: "ct", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 64})
	poll.Eventually(t, "the array is refused", func() bool {
		m := n.status().Maps[0]
		return m.State == daemon.MapRefused && strings.Contains(m.Error, "restart syncd")
	})
	pinned(t, pin, 4, 8, 64)
	poll.Eventually(t, "another hash map is replicated", func() bool { return n.status().Maps[0].State == daemon.MapReplicating })
}
