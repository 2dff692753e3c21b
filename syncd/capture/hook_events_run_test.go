package capture_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"mapsync/internal/dataplane"
	"mapsync/syncd/capture"
	"mapsync/syncd/kmap"

	"github.com/cilium/ebpf"
)

// inPlace changes entries through pointers into the map, which hooks do not report.
func (s *hookFixture) inPlace() {
	if failed := s.run(dataplane.InPlace, 0, 600); failed != 0 {
		s.Fatalf("writes in place: got %d failures, want 0", failed)
	}
	if isPerCPU(s.m) {
		return // only the value of one CPU has changed
	}
	var value [16]byte
	key, want := s.entry(0, 600)
	if err := s.m.Lookup(key, &value); err != nil || string(value[:8]) != string(want[:8]) {
		s.Fatalf("look up entry written in place: got value %x, error %v, want %x at its start and nil", value, err, want[:8])
	}
}

// ownBySyscall expects ten own writes by bpf(2). A kprobe does not see them.
func (s *hookFixture) ownBySyscall() {
	if s.h.attach == capture.AttachFexit {
		s.seen, s.own = caseWrites, caseWrites
	}
}

func (s *hookFixture) expectFailed(failed int) {
	s.Helper()
	if failed != caseWrites {
		s.Fatalf("refused writes: got %d, want 10", failed)
	}
	s.seen += caseWrites
	s.failed += caseWrites
}

// TestHookEvents checks, row by row, the events and counters of the hooks for the writes to a map.
func TestHookEvents(t *testing.T) {
	steer(t, 0)
	for _, attach := range attaches {
		for _, buffer := range []capture.Buffer{capture.BufferRing, capture.BufferPerf} {
			t.Run(string(attach)+"/"+string(buffer), func(t *testing.T) {
				h := openHooks(t, capture.Options{Attach: attach, Buffer: buffer, BufferSize: buffers[buffer]})
				h.tap(t)
				for _, f := range slices.Concat(hookCases, perCPUCases, arrayCases) {
					t.Run(f.name, func(t *testing.T) { f.test(t, h) })
				}
				t.Run("LRU evicts", func(t *testing.T) { testEviction(t, h, "LRU evicts", ebpf.LRUHash) })
				t.Run("LRU per-CPU evicts", func(t *testing.T) { testEviction(t, h, "LRU per-CPU evicts", ebpf.LRUCPUHash) })
				t.Run("LRU evicts for bpf(2)", func(t *testing.T) { testEvictionBySyscall(t, h) })
				t.Run("sizes", func(t *testing.T) { testSizes(t, h) })
				if buffer == capture.BufferRing {
					t.Run("filter", func(t *testing.T) { testFilter(t, h) })
					t.Run("filter collision", func(t *testing.T) { testFilterCollision(t, h) })
				}
				markRan(t, "hook events "+string(buffer), h)
			})
		}
	}
	if !t.Skipped() && len(report.rows) > 0 {
		report.print()
	}
}

// run makes the writes of the row, and returns the counters before and after them, and their events.
func (f *hookCase) run(s *hookFixture) (before, after capture.Stats, got []change) {
	before = s.h.Stats()
	f.act(s)
	after = s.h.Stats()
	s.h.awaitEvents(s)
	return before, after, s.h.take(s.id)
}

func (f *hookCase) test(t *testing.T, h *hookedCapture) {
	mapType, entries := f.mapType, f.entries
	if mapType == ebpf.UnspecifiedMap {
		mapType = ebpf.Hash
	}
	if entries == 0 {
		entries = 64
	}
	s := &hookFixture{TB: t, h: h}
	keySize := 8
	if kmap.IsArray(mapType) {
		keySize = 4
	}
	s.m, s.id = newHash(t, mapType, keySize, 16, entries)
	unpin, err := dataplane.Pin(0)
	if err != nil {
		t.Fatal(err)
	}
	defer unpin()
	if f.full {
		s.fill()
	}
	if !f.hasWriter(t, h) {
		return
	}
	if f.needs != "" && !has(h, f.needs) {
		checkAbsent(t, s, f)
		return
	}
	h.awaitEvents(t)
	if keysOnly(s.m) {
		h.watchKeys(t, s.m, s.id)
	} else {
		h.watch(t, s.id, 8, 16)
	}
	before, after, got := f.run(s)
	for try := 0; f.interrupts && h.attach == capture.AttachKprobe && len(got) == 0 && try < 3; try++ {
		t.Log("the interrupt came while the CPU was inside a kprobe")
		if f.full {
			s.fill()
		}
		s.want, s.seen = nil, 0
		before, after, got = f.run(s)
	}
	if len(got) > 0 && got[0].Op >= capture.OpKeys { // a batch may list the keys in another order
		slices.SortFunc(got, func(a, b change) int { return strings.Compare(a.Key, b.Key) })
	}
	compareChanges(t, got, s.want)
	seen, failed, own := after.Seen-before.Seen, after.Failed-before.Failed, after.Own-before.Own
	if seen != uint64(s.seen) || failed != uint64(s.failed) || own != uint64(s.own) {
		t.Errorf("counters: got seen %d, failed %d, own %d, want seen %d, failed %d, own %d",
			seen, failed, own, s.seen, s.failed, s.own)
	}
	if after.LostReservations != before.LostReservations || after.Malformed != 0 {
		t.Errorf("stats: got %+v, want no lost or malformed events", after)
	}
	h.Unwatch(s.id)
	report.add(f.name, h, fmt.Sprintf("%d/%d", len(got), seen))
	if f.writer != "" {
		h.detected(t, f.writer, len(got), caseWrites)
	}
}

// keysOnly reports whether the events of a map carry no value.
func keysOnly(m *ebpf.Map) bool { return isPerCPU(m) || kmap.IsArray(m.Type()) }

func has(h *hookedCapture, symbol string) bool {
	for _, missing := range h.Missing() {
		if missing == symbol {
			return false
		}
	}
	return true
}

// checkAbsent checks that an operation without a hook is unsupported by the kernel.
func checkAbsent(t *testing.T, s *hookFixture, f *hookCase) {
	key, value := entry(8, 16, 0, 0)
	if err := lookupAndDelete(s.m, key, &value); !errors.Is(err, ebpf.ErrNotSupported) {
		t.Errorf("operation without hook on %s: got %v, want ErrNotSupported", f.needs, err)
	}
	report.add(f.name, s.h, unsupportedWriter)
	if f.writer != "" {
		s.h.compareDetected(t, f.writer, unsupportedWriter)
	}
}
