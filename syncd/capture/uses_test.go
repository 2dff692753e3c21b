package capture_test

import (
	"fmt"
	"testing"
	"time"

	"mapsync/internal/dataplane"
	"mapsync/syncd/capture"
	"mapsync/syncd/kmap"

	"github.com/cilium/ebpf"
)

// openUses attaches the hooks, with the one on lookups and the array of uses.
func openUses(t testing.TB) *hookedCapture {
	t.Helper()
	tick, err := kmap.TickLength()
	if err != nil {
		t.Fatal(err)
	}
	return openHooks(t, capture.Options{Attach: capture.AttachFexit, Uses: true, Tick: tick})
}

// TestUsesAreSeen: lookups by packets, and writes of the same value, are uses of these keys alone, for each map type. Lookups by
// syncd and by bpf(2) are none. After a use, the time without one begins anew.
func TestUsesAreSeen(t *testing.T) {
	steer(t, busyCPU)
	h := openUses(t)
	for _, tt := range []struct {
		typ     ebpf.MapType
		keySize int
	}{
		{ebpf.Hash, 4}, {ebpf.Hash, 64}, {ebpf.LRUHash, 100}, {ebpf.Hash, 500}, {ebpf.PerCPUHash, 12}, {ebpf.LRUCPUHash, 64},
	} {
		t.Run(fmt.Sprintf("%s/%d", tt.typ, tt.keySize), func(t *testing.T) { h.checkUses(t, tt.typ, tt.keySize) })
	}
	for _, typ := range []ebpf.MapType{ebpf.Array, ebpf.PerCPUArray} {
		if h.SeesUses(typ) == nil {
			t.Errorf("uses in a map of type %s: got visible, want an error", typ)
		}
	}
	markRan(t, "uses", h)
}

func (h *hookedCapture) checkUses(t *testing.T, typ ebpf.MapType, keySize int) {
	const keys, valueSize = 60, 24 // the first third is looked up, the second written
	if err := h.SeesUses(typ); (err != nil) != ((typ == ebpf.PerCPUHash || typ == ebpf.LRUCPUHash) && !kernelAtLeast(6, 12)) {
		t.Errorf("uses in a map of type %s: got error %v, want one before 6.12 with per-CPU values", typ, err)
	}
	m, id := newHash(t, typ, keySize, valueSize, 4*keys)
	h.watch(t, id, keySize, valueSize)
	p := openDataPlane(t, m, dataplane.Options{Capacity: keys, Endless: true})
	all := make([][]byte, keys)
	for i := range keys {
		key, value := entry(keySize, valueSize, i, i)
		if err := putEntry(m, key, value); err != nil {
			t.Fatal(err)
		}
		switch all[i] = key; {
		case i < keys/3:
			p.Add(dataplane.InPlace, 0, key, value)
		case i < 2*keys/3:
			p.Add(dataplane.Update, ebpf.UpdateExist, key, value)
		}
	}
	uses, err := h.WatchUses(id)
	if err != nil {
		t.Fatal(err)
	}
	count := func() (used, idle int) {
		for _, key := range all {
			d, u := uses.Idle(key)
			if u {
				used++
			}
			if d > 0 {
				idle++
			}
		}
		return used, idle
	}
	wait := func() {
		for range 30 { // 3 s, more than the resolution
			time.Sleep(100 * time.Millisecond) // the unit of the times
			uses.Advance()
		}
	}
	wait()
	if kernelAtLeast(5, 15) { // before, lookups by bpf(2) are uses
		startControl(t, m).do(t, "lookup", 0, keys, 0)
	}
	if used, idle := count(); used != 0 || idle != keys {
		t.Errorf("before any use: got %d keys in use and %d idle, want 0 and %d", used, idle, keys)
	}
	if err := openReceiver(t, p).Send(p, otherCPU, 2*keys/3); err != nil {
		t.Fatal(err)
	}
	if used, idle := count(); used != 2*keys/3 || idle != keys/3 {
		t.Errorf("after uses: got %d keys in use and %d idle, want %d and %d", used, idle, 2*keys/3, keys/3)
	}
	wait()
	if used, idle := count(); used != 2*keys/3 || idle != keys {
		t.Errorf("later: got %d keys once in use and %d idle, want %d and %d", used, idle, 2*keys/3, keys)
	}
	h.Unwatch(id)
}

// TestOwnLookupsAreNoUses: syncd looks entries up by programs in its own process.
func TestOwnLookupsAreNoUses(t *testing.T) {
	h := openUses(t)
	m, id := newHash(t, ebpf.Hash, 8, 24, 100)
	h.watch(t, id, 8, 24)
	p := openDataPlane(t, m, dataplane.Options{Capacity: 10, Endless: true})
	uses, err := h.WatchUses(id)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(200 * time.Millisecond) // two units of the times
	uses.Advance()
	for i := range 10 {
		key, value := entry(8, 24, i, i)
		if err := putEntry(m, key, value); err != nil {
			t.Fatal(err)
		}
		p.Add(dataplane.InPlace, 0, key, value)
	}
	if _, err := p.Run(); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		key, _ := entry(8, 24, i, i)
		if _, used := uses.Idle(key); used {
			t.Errorf("key %d: got a use, want none", i)
		}
	}
}
