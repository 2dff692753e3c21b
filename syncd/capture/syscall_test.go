package capture_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"mapsync/internal/poll"
	"mapsync/syncd/capture"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// openSyscall reads the events of the attach method syscall until the end of the test.
func openSyscall(t *testing.T, buffer capture.Buffer) *hookedCapture {
	t.Helper()
	h := openHooks(t, capture.Options{Attach: capture.AttachSyscall, Buffer: buffer, BufferSize: 4 * buffers[buffer]})
	h.read(t)
	return h
}

// TestSyscallEvents checks that the attach method syscall reports the keys of all bpf(2) writes of
// another process, on any kernel, and nothing else.
func TestSyscallEvents(t *testing.T) {
	skipEmulated(t)
	for _, buffer := range []capture.Buffer{capture.BufferRing, capture.BufferPerf} {
		h := openSyscall(t, buffer)
		if h.HooksMaps() {
			t.Error("attach method syscall: got hooks on map functions, want none")
		}
		for _, typ := range []ebpf.MapType{ebpf.Hash, ebpf.LRUHash, ebpf.PerCPUHash, ebpf.LRUCPUHash} {
			t.Run(fmt.Sprintf("%s/%s", buffer, typ), func(t *testing.T) {
				m, id := newHash(t, typ, 8, 16, 10_000)
				other, _ := newHash(t, typ, 8, 16, 10_000)
				c, unwatched := startControl(t, m), startControl(t, other)
				if isPerCPU(m) {
					h.watchKeys(t, m, id)
				} else {
					h.watch(t, id, 8, 16)
				}
				for _, operation := range []string{"update", "delete", "batch-update", "batch-delete", "update", "lookup-and-delete", "batch-update", "batch-lookup-and-delete"} {
					if operation == "lookup-and-delete" && !kernelAtLeast(5, 14) {
						continue
					}
					unwatched.do(t, operation, 0, 10, 100)
					c.do(t, operation, 0, 10, 100)
					poll.Eventually(t, "events of "+operation, func() bool { return h.recorded(id) >= 10 })
					op := capture.OpKeys
					if strings.Contains(operation, "delete") {
						op = capture.OpDeletedKeys
					}
					got := h.take(id)
					slices.SortFunc(got, func(a, b change) int { return strings.Compare(a.Key, b.Key) })
					var want []change
					for i := range 10 {
						key, _ := entry(8, 16, i, 0)
						want = append(want, change{op, table.ContextSyscall, string(key), ""})
					}
					compareChanges(t, got, want)
				}
			})
		}
		// Skipped runs are those of system calls of other tasks, if the kernel preempts the program.
		if s := h.Stats(); s.Lost() != s.Skipped || s.Malformed != 0 || s.Own != 0 {
			t.Errorf("stats: got %+v, want no lost, malformed or own events", s)
		}
	}
}

// BenchmarkSyscall measures system calls of another process without hooks and with each attach method that this kernel
// offers: one that is not bpf(2), an update of a map that is not watched, and one of the watched map.
func BenchmarkSyscall(b *testing.B) {
	m, id := newHash(b, ebpf.Hash, 8, 16, 1<<16)
	other, _ := newHash(b, ebpf.Hash, 8, 16, 1<<16)
	measure := func(b *testing.B, name, operation string, m *ebpf.Map) {
		c := startControl(b, m)
		b.Run(name, func(b *testing.B) { c.begin(b, operation, 0, 100, 1, (b.N+99)/100); c.End(b) })
	}
	b.Run("off", func(b *testing.B) {
		measure(b, "other", "system-call", other)
		measure(b, "bpf", "update", other)
	})
	for _, attach := range []capture.Attach{capture.AttachFexit, capture.AttachKprobe, capture.AttachSyscall} {
		b.Run(string(attach), func(b *testing.B) {
			if offer := capture.Probe(attach)[0]; offer.Err != nil {
				b.Skipf("this kernel does not offer the attach method: %v", offer.Err)
			}
			h := openHooks(b, capture.Options{Attach: attach})
			runCapture(b, h.Capture)
			measure(b, "other", "system-call", other)
			measure(b, "bpf", "update", other)
			if err := h.Watch(id, newTable(b, 8, 16)); err != nil {
				b.Fatal(err)
			}
			measure(b, "watched", "update", m)
		})
	}
}
