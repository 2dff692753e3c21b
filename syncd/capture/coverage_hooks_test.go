package capture_test

import (
	"testing"

	"mapsync/internal/dataplane"
	"mapsync/syncd/capture"
	"mapsync/syncd/kmap"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// TestCoversWhatHooksReport makes each kind of write that Covers names, and compares the events with it.
func TestCoversWhatHooksReport(t *testing.T) {
	for _, attach := range attaches {
		t.Run(string(attach), func(t *testing.T) {
			h := openHooks(t, capture.Options{Attach: attach})
			h.tap(t)
			for _, typ := range []ebpf.MapType{ebpf.Hash, ebpf.LRUHash, ebpf.PerCPUHash, ebpf.LRUCPUHash, ebpf.Array, ebpf.PerCPUArray} {
				t.Run(typ.String(), func(t *testing.T) { testCoverage(t, h, typ) })
			}
			markRan(t, "coverage", h)
		})
	}
}

func testCoverage(t *testing.T, h *hookedCapture, typ ebpf.MapType) {
	const entries = 2000
	keySize := 8
	if kmap.IsArray(typ) {
		keySize = 4
	}
	m, id := newHash(t, typ, keySize, 16, entries)
	if keysOnly(m) {
		h.watchKeys(t, m, id)
	} else {
		h.watch(t, id, 8, 16)
	}
	defer h.Unwatch(id)
	// events returns the number of events of an operation since the last call. Those at the boundary of
	// bpf(2) report only which keys were written.
	events := func(op table.Op) (n int) {
		h.awaitEvents(t)
		for _, c := range h.take(id) {
			if c.Op == op || c.Op == capture.OpKeys && op == table.OpUpdate || c.Op == capture.OpDeletedKeys && op == table.OpDelete {
				n++
			}
		}
		return n
	}
	covers := capture.Covers(h.attach, h.Missing(), typ)
	check := func(what string, covered bool, got, want int) {
		t.Helper()
		if (got >= want) != covered {
			t.Errorf("events of %s: got %d, want at least %d: %t", what, got, want, covered)
		}
	}
	write := func(from, to int) {
		p := openDataPlane(t, m, dataplane.Options{Capacity: to - from})
		for i := from; i < to; i++ {
			key, value := entry(keySize, 16, i, i)
			p.Add(dataplane.Update, ebpf.UpdateAny, key, value)
		}
		if _, err := p.Run(); err != nil {
			t.Fatal(err)
		}
	}
	write(0, 8)
	check("updates by a program", covers.Programs, events(table.OpUpdate), 8)
	control := startControl(t, m)
	control.do(t, "update", 200, 4, 0)
	check("updates by bpf(2)", covers.Syscalls, events(table.OpUpdate), 4)
	if kmap.IsArray(typ) {
		return
	}
	control.do(t, "delete", 200, 4, 0)
	check("deletes by bpf(2)", covers.Syscalls, events(table.OpDelete), 4)
	if typ == ebpf.LRUHash || typ == ebpf.LRUCPUHash {
		write(300, 300+2*entries)
		check("evictions by a program", true, events(table.OpEvict), 1)
		control.do(t, "update", 300+2*entries, 2*entries, 0)
		check("evictions by bpf(2)", covers.Evictions, events(table.OpEvict), 1)
	}
}
