package capture_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"mapsync/internal/dataplane"
	"mapsync/syncd/capture"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

var entrySizes = []struct{ key, value int }{
	{1, 1}, {1, 4096}, {3, 5}, {7, 13}, {48, 176}, {511, 4095}, {512, 1}, {512, 4096},
}

// testSizes checks that the hooks report entries of all sizes completely.
func testSizes(t *testing.T, h *hookedCapture) {
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
				h.awaitEvents(t)
				compareChanges(t, h.take(id), want)
				h.Unwatch(id)
			})
		}
	}
}

// sizedEntry returns an entry that differs from the others in every byte.
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

// testFilter watches the maximum number of maps, and writes some of them and other maps. Most of the watched
// maps are only ids.
func testFilter(t *testing.T, h *hookedCapture) {
	const room = 63
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
		h.awaitEvents(t)
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
			t.Errorf("%s: got %d seen writes, want %d", what, seen, want)
		}
	}
	check("no map watched", func(int) bool { return false })
	for i := range room {
		h.watch(t, ids[i], 8, 16)
	}
	last := slices.Max(ids)
	for i := range uint32(capture.MaxMaps - 1 - room) { // one map is the fence
		if err := h.Watch(last+1000+i, newTable(t, 8, 16)); err != nil {
			t.Fatalf("watch map id %d: got error %v, want none", last+1000+i, err)
		}
		defer h.Unwatch(last + 1000 + i)
	}
	if err := h.Watch(ids[room], newTable(t, 8, 16)); err == nil {
		t.Error("watch one map above the limit: got no error, want an error")
	}
	check("all but two maps watched", func(i int) bool { return i < room })
	for i := 0; i < room; i += 2 {
		h.Unwatch(ids[i])
	}
	h.watch(t, ids[room+1], 8, 16)
	check("half of the maps watched", func(i int) bool { return i < room && i%2 == 1 || i == room+1 })
	for _, id := range ids {
		h.Unwatch(id)
	}
	check("all maps unwatched", func(int) bool { return false })
}

// testFilterCollision watches as many maps with the same bucket in the filter as the hooks find. All but the
// last are only ids.
func testFilterCollision(t *testing.T, h *hookedCapture) {
	m, id := newHash(t, ebpf.Hash, 8, 16, 4)
	// The watch of the fences takes none of the buckets.
	for (capture.WatchBucket(h.fenceID)-capture.WatchBucket(id))%capture.WatchBuckets < capture.WatchProbes {
		m, id = newHash(t, ebpf.Hash, 8, 16, 4)
	}
	var same []uint32
	for other := id + 1; len(same) < capture.WatchProbes; other++ {
		if capture.WatchBucket(other) == capture.WatchBucket(id) {
			same = append(same, other)
		}
	}
	p := openDataPlane(t, m, dataplane.Options{Capacity: 1})
	key, value := entry(8, 16, 1, 1)
	p.Add(dataplane.Update, ebpf.UpdateAny, key, value)
	seen := func(what string, want uint64) {
		t.Helper()
		before := h.Stats()
		if failed, err := p.Run(); err != nil || failed != 0 {
			t.Fatalf("write the entries: got %d failed, error %v, want none", failed, err)
		}
		if after := h.Stats(); after.Seen != before.Seen+want {
			t.Errorf("%s: got %d seen writes, want %d", what, after.Seen-before.Seen, want)
		}
	}
	for _, other := range same[1:] {
		h.watch(t, other, 8, 16)
	}
	seen("only the other maps watched", 0)
	h.watch(t, id, 8, 16)
	seen("all maps watched", 1)
	if err := h.Watch(same[0], newTable(t, 8, 16)); err == nil || !strings.Contains(err.Error(), "Create the map again") {
		t.Errorf("watch one more map of this bucket: got error %v, want one with the remedy", err)
	}
	for _, other := range same[1:] {
		h.Unwatch(other)
	}
	seen("the other maps unwatched", 1)
	h.Unwatch(id)
	seen("all maps unwatched", 0)
}
