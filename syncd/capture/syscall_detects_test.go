package capture_test

import (
	"errors"
	"strings"
	"testing"

	"mapsync/internal/dataplane"
	"mapsync/internal/poll"
	"mapsync/syncd/capture"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// TestSyscallDetects counts the writes of each writer that the attach method syscall detects on this machine's own
// kernel: all by bpf(2), and no others.
func TestSyscallDetects(t *testing.T) {
	skipEmulated(t)
	steer(t, 0)
	s := &syscallDetects{h: openSyscall(t, capture.BufferRing)}
	m, id := newHash(t, ebpf.Hash, 8, 16, 64)
	s.fence, s.h.fenceID = startControl(t, m), id
	s.h.watch(t, id, 8, 16)
	for _, f := range hookCases {
		if f.writer != "" {
			t.Run(f.writer, func(t *testing.T) { s.row(t, &f) })
		}
	}
	for _, typ := range []ebpf.ProgramType{ebpf.Kprobe, ebpf.TracePoint, ebpf.RawTracepoint, ebpf.PerfEvent, ebpf.Syscall} {
		t.Run(typ.String(), func(t *testing.T) { s.tracing(t, typ) })
	}
	t.Run("evictions", s.evictions)
}

type syscallDetects struct {
	h     *hookedCapture
	fence control
}

// take waits for the events of all earlier writes, and returns those of a map. Events arrive in the order in which
// they were written to the ring buffer.
func (s *syscallDetects) take(t *testing.T, id uint32) []change {
	t.Helper()
	s.h.take(s.h.fenceID)
	s.fence.do(t, "update", 0, 1, 0)
	poll.Eventually(t, "event of the fence", func() bool { return s.h.recorded(s.h.fenceID) == 1 })
	s.h.Stats() // waits for the end of the batch, in which the events are grouped by map
	return s.h.take(id)
}

func (s *syscallDetects) row(t *testing.T, f *hookCase) {
	r := &hookFixture{TB: t, h: s.h}
	r.m, r.id = newHash(t, ebpf.Hash, 8, 16, 64)
	if f.full {
		r.fill()
	}
	iterator := strings.HasSuffix(f.writer, "iterator")
	if !f.hasWriter(t, s.h) || iterator && iteratorsRefused() || f.needs != "" && !kernelAtLeast(5, 14) {
		s.h.compareDetected(t, f.writer, unsupportedWriter)
		return
	}
	s.h.watch(t, r.id, 8, 16)
	defer s.h.Unwatch(r.id)
	f.act(r)
	want := 0
	if strings.Contains(f.writer, "bpf(2)") {
		want = caseWrites
	}
	got := len(s.take(t, r.id))
	if got != want {
		t.Errorf("events: got %d, want %d", got, want)
	}
	s.h.detected(t, f.writer, got, caseWrites)
}

// iteratorsRefused reports whether this kernel refuses to load iterators.
func iteratorsRefused() bool {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Tracing, AttachType: ebpf.AttachTraceIter, AttachTo: "bpf_map_elem", License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err == nil {
		err = p.Close()
	}
	return errors.Is(err, unix.EPERM)
}

func (s *syscallDetects) tracing(t *testing.T, typ ebpf.ProgramType) {
	writer := "update by a program under a " + tracing[typ]
	if typ == ebpf.Kprobe || typ == ebpf.TracePoint {
		s.h.compareDetected(t, writer, unsupportedWriter) // TestDetects has them, on kernels with kprobes
		return
	}
	m, id := newHash(t, ebpf.Hash, 8, 16, 64)
	s.h.watch(t, id, 8, 16)
	defer s.h.Unwatch(id)
	if writes := runWriter(t, typ, m); writes < 10 || len(keysOf(t, m)) != 1 {
		t.Fatalf("writes of the program: got %d, in %d entries, want at least 10 in one", writes, len(keysOf(t, m)))
	}
	got := len(s.take(t, id))
	if got != 0 {
		t.Errorf("events: got %d, want none", got)
	}
	if tracing[typ] != "" {
		s.h.detected(t, writer, got, caseWrites)
	}
}

// evictions fills LRU maps, one by a program, one by bpf(2).
func (s *syscallDetects) evictions(t *testing.T) {
	const writes = 1000
	for writer, fill := range map[string]func(m *ebpf.Map){
		"eviction by a write of a program": func(m *ebpf.Map) {
			p := openDataPlane(t, m, dataplane.Options{Capacity: writes})
			for i := range writes {
				key, value := entry(8, 16, i, i)
				p.Add(dataplane.Update, ebpf.UpdateAny, key, value)
			}
			if failed, err := p.Run(); err != nil || failed != 0 {
				t.Fatalf("write the entries: got %d failed, error %v, want none", failed, err)
			}
		},
		"eviction by a write of bpf(2)": func(m *ebpf.Map) { startControl(t, m).do(t, "update", 0, writes, 0) },
	} {
		m, id := newHash(t, ebpf.LRUHash, 8, 16, 256)
		s.h.watch(t, id, 8, 16)
		fill(m)
		evicted := 0
		for _, c := range s.take(t, id) {
			if c.Op < capture.OpKeys {
				evicted++
			}
		}
		if evicted != 0 || len(keysOf(t, m)) == writes {
			t.Errorf("%s: got %d reported, %d of %d entries left, want none reported, and evictions", writer, evicted, len(keysOf(t, m)), writes)
		}
		s.h.Unwatch(id)
		s.h.detected(t, writer, evicted, caseWrites)
	}
}
