package capture_test

import (
	"fmt"
	"testing"

	"mapsync/internal/dataplane"
	"mapsync/syncd/capture"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

var entrySizes = []struct{ key, value int }{
	{1, 1}, {1, 4096}, {3, 5}, {7, 13}, {48, 176}, {511, 4095}, {512, 1}, {512, 4096},
}

// testSizes sends entries of all sizes through the hooks, whole.
func testSizes(t *testing.T, h *hooked) {
	for _, size := range entrySizes {
		for _, typ := range []ebpf.MapType{ebpf.Hash, ebpf.LRUHash} {
			t.Run(fmt.Sprintf("%s of %d+%d bytes", typ, size.key, size.value), func(t *testing.T) {
				m, id := newHash(t, typ, size.key, size.value, 64)
				h.watch(t, id, size.key, size.value)
				p := openDataPlane(t, m, dataplane.Options{Capacity: 10})
				var want []change
				for i := range 5 {
					key, value := sizedEntry(size.key, size.value, i)
					p.Add(dataplane.Update, ebpf.UpdateAny, key, value)
					p.Add(dataplane.Delete, 0, key, nil)
					want = append(want,
						change{table.OpUpdate, table.ContextProcess, string(key), string(value)},
						change{table.OpDelete, table.ContextProcess, string(key), ""})
				}
				onCPU(t, 0, func() error { _, err := p.Run(); return err })
				h.settle(t)
				compareChanges(t, h.take(id), want)
				h.Unwatch(id)
			})
		}
	}
}

// sizedEntry differs from others in every byte.
func sizedEntry(keySize, valueSize, i int) (key, value []byte) {
	key, value = make([]byte, keySize), make([]byte, valueSize)
	for k := range key {
		key[k] = byte(k + 31*i + 1)
	}
	for k := range value {
		value[k] = byte(k/7 + 17*i + 2)
	}
	return key, value
}

func onCPU(t testing.TB, cpu int, f func() error) {
	t.Helper()
	unpin, err := dataplane.Pin(cpu)
	if err != nil {
		t.Fatal(err)
	}
	defer unpin()
	if err := f(); err != nil {
		t.Fatal(err)
	}
}

// testFilter has as many maps watched as can be, and others written too.
func testFilter(t *testing.T, h *hooked) {
	const room = capture.MaxMaps - 1 // one is the fence's
	var programs []*dataplane.Program
	var ids []uint32
	for i := range room + 2 {
		m, id := newHash(t, ebpf.Hash, 8, 16, 4)
		p := openDataPlane(t, m, dataplane.Options{Capacity: 1})
		key, value := entry(8, 16, i, i)
		p.Add(dataplane.Update, ebpf.UpdateAny, key, value)
		programs, ids = append(programs, p), append(ids, id)
	}
	check := func(what string, watched func(i int) bool) {
		t.Helper()
		before := h.Stats()
		onCPU(t, 0, func() error {
			for _, p := range programs {
				if _, err := p.Run(); err != nil {
					return err
				}
			}
			return nil
		})
		seen := h.Stats().Seen - before.Seen
		h.settle(t)
		want := uint64(0)
		for i, id := range ids {
			var expected []change
			if watched(i) {
				want++
				key, value := entry(8, 16, i, i)
				expected = []change{{table.OpUpdate, table.ContextProcess, string(key), string(value)}}
			}
			compareChanges(t, h.take(id), expected)
		}
		if seen != want {
			t.Errorf("%s: %d writes seen, want %d", what, seen, want)
		}
	}
	check("none watched", func(int) bool { return false })
	for i := range room {
		h.watch(t, ids[i], 8, 16)
	}
	if err := h.Watch(ids[room], newTable(t, 8, 16)); err == nil {
		t.Error("one map too many was taken")
	}
	check("all watched but two", func(i int) bool { return i < room })
	for i := 0; i < room; i += 2 {
		h.Unwatch(ids[i])
	}
	h.watch(t, ids[room+1], 8, 16)
	check("half watched", func(i int) bool { return i < room && i%2 == 1 || i == room+1 })
	for _, id := range ids {
		h.Unwatch(id)
	}
	check("none watched any more", func(int) bool { return false })
}

// testFilterCollision writes a map whose id has the same bit in the filter as a
// watched one's.
func testFilterCollision(t *testing.T, h *hooked) {
	const bits = 4096
	_, watched := newHash(t, ebpf.Hash, 8, 16, 4)
	h.watch(t, watched, 8, 16)
	defer h.Unwatch(watched)
	var m *ebpf.Map
	id := watched
	for id < watched+bits { // ids are given in turn
		var err error
		if m, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 16, MaxEntries: 4}); err != nil {
			t.Fatal(err)
		}
		info, err := m.Info()
		if err != nil {
			t.Fatal(err)
		}
		mapID, _ := info.ID()
		if id = uint32(mapID); id < watched+bits {
			m.Close()
		}
	}
	defer m.Close()
	if id%bits != watched%bits {
		t.Skipf("somebody else makes maps here: got id %d, not %d", id, watched+bits)
	}
	p := openDataPlane(t, m, dataplane.Options{Capacity: 1})
	key, value := entry(8, 16, 1, 1)
	p.Add(dataplane.Update, ebpf.UpdateAny, key, value)
	seen := func(what string, want uint64) {
		t.Helper()
		before := h.Stats()
		if failed, err := p.Run(); err != nil || failed != 0 {
			t.Fatal(failed, err)
		}
		if after := h.Stats(); after.Seen != before.Seen+want {
			t.Errorf("%s: %d writes seen, want %d", what, after.Seen-before.Seen, want)
		}
	}
	seen("the other map is watched", 0)
	h.watch(t, id, 8, 16)
	seen("both are watched", 1)
	h.Unwatch(watched)
	seen("the other is not watched any more", 1)
	h.Unwatch(id)
	seen("none is watched", 0)
}
