package capture_test

import (
	"fmt"
	"testing"

	"mapsync/internal/dataplane"
	"mapsync/syncd/capture"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// testEviction fills an LRU map many times over. The hooks must report each evicted key, and no
// other key.
func testEviction(t *testing.T, h *hookedCapture, row string, typ ebpf.MapType) {
	const writes, perRun = 3000, 16
	m, id := newHash(t, typ, 8, 16, 512)
	p := openDataPlane(t, m, dataplane.Options{Capacity: writes, RunWrites: perRun})
	for i := range writes {
		key, value := entry(8, 16, i, i)
		p.Add(dataplane.Update, ebpf.UpdateAny, key, value)
	}
	if isPerCPU(m) {
		h.watchKeys(t, m, id)
	} else {
		h.watch(t, id, 8, 16)
	}
	if failed, err := p.Run(); err != nil || failed != 0 {
		t.Fatalf("write the entries: got %d failed, error %v, want none", failed, err)
	}
	h.awaitEvents(t)
	present, evicted, updates := make(map[string]bool), make(map[string]bool), 0
	for _, key := range keysOf(t, m) {
		present[key] = true
	}
	for _, c := range h.take(id) {
		switch {
		case c.Op == table.OpUpdate:
			updates++
		case c.Op != table.OpEvict || c.Value != "" || c.Context != table.ContextProcess:
			t.Fatalf("event: got %+q, want an update or an eviction of a key in process context", c)
		case present[c.Key] || evicted[c.Key]:
			t.Fatalf("eviction of key %x: the key is in the map or was reported before", c.Key)
		default:
			evicted[c.Key] = true
		}
	}
	if updates != writes || len(evicted) == 0 || len(evicted)+len(present) != writes {
		t.Errorf("events: got %d updates, %d evictions, %d present keys, want %d updates and as many keys, some of them evicted",
			updates, len(evicted), len(present), writes)
	}
	h.Unwatch(id)
	report.add(row, h, fmt.Sprintf("%d of %d", len(evicted), writes-len(present)))
	if typ == ebpf.LRUHash {
		h.detected(t, "eviction by a write of a program", caseWrites*len(evicted)/(writes-len(present)), caseWrites)
	}
}

// testEvictionBySyscall makes bpf(2) fill an LRU map. A kprobe reports no eviction, fexit each one.
func testEvictionBySyscall(t *testing.T, h *hookedCapture) {
	const writes = 1000
	m, id := newHash(t, ebpf.LRUHash, 8, 16, 256)
	h.watch(t, id, 8, 16)
	startControl(t, m).do(t, "update", 0, writes, 0)
	h.awaitEvents(t)
	evicted := 0
	for _, c := range h.take(id) {
		if c.Op == table.OpEvict {
			evicted++
		}
	}
	all := writes - len(keysOf(t, m))
	if want := map[capture.Attach]int{capture.AttachFexit: all}[h.attach]; all == 0 || evicted != want {
		t.Errorf("evictions: got %d reported of %d, want %d reported and more than 0 made", evicted, all, want)
	}
	h.Unwatch(id)
	report.add("LRU evicts for bpf(2)", h, fmt.Sprintf("%d of %d", evicted, all))
	h.detected(t, "eviction by a write of bpf(2)", caseWrites*evicted/max(all, 1), caseWrites)
}
