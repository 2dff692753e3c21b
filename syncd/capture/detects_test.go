package capture_test

import (
	"encoding/binary"
	"io"
	"sync"
	"testing"

	"mapsync/internal/dataplane"
	"mapsync/syncd/capture"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
)

// TestDetects compares Attach.Detects with the events of programs that run under a kprobe, a tracepoint, a raw tracepoint
// and a perf event, and with those of programs that write by bpf_sys_bpf.
func TestDetects(t *testing.T) {
	for _, attach := range attaches {
		// On 5.10, a kprobe on a function would keep fexit from running there under another kprobe.
		t.Run(string(attach), func(t *testing.T) {
			h := openHooks(t, capture.Options{Attach: attach})
			h.tap(t)
			if !h.HooksMaps() {
				t.Error("hooks on map functions: got none, want some")
			}
			types := []ebpf.ProgramType{ebpf.Kprobe, ebpf.TracePoint, ebpf.RawTracepoint, ebpf.PerfEvent}
			if kernelAtLeast(5, 14) { // the first kernel with programs of type syscall
				types = append(types, ebpf.Syscall)
			}
			for _, typ := range types {
				t.Run(typ.String(), func(t *testing.T) { testDetects(t, h, typ) })
			}
			markRan(t, "detects", h)
		})
	}
}

// tracing are the names of the program types in testdata/detected_writes.txt.
var tracing = map[ebpf.ProgramType]string{
	ebpf.Kprobe: "kprobe", ebpf.TracePoint: "tracepoint", ebpf.RawTracepoint: "raw tracepoint",
}

func testDetects(t *testing.T, h *hookedCapture, typ ebpf.ProgramType) {
	m, id := newHash(t, ebpf.Hash, 8, 16, 64)
	h.watch(t, id, 8, 16)
	defer h.Unwatch(id)
	writes := runWriter(t, typ, m)
	if writes < 10 || len(keysOf(t, m)) != 1 {
		t.Fatalf("writes of the program: got %d, in %d entries, want at least 10 in one", writes, len(keysOf(t, m)))
	}
	h.awaitEvents(t)
	// A kernel may detect more than Detects returns. A perf event may interrupt this process, whose writes are not reported.
	detected := h.attach.Detects(typ)
	got := len(h.take(id))
	if got != writes && (detected || got != 0 && typ != ebpf.PerfEvent) {
		t.Errorf("events: got %d of %d writes, want all (detected: %t)", got, writes, detected)
	}
	if name, listed := tracing[typ]; listed { // the number of writes differs from run to run
		h.detected(t, "update by a program under a "+name, got*caseWrites/writes, caseWrites)
	}
}

// runWriter attaches a program of a type that stores the same entry of 8 + 16 bytes in m each time it runs, makes
// another process run it, detaches it, and returns the number of its writes. A kprobe program runs at getppid(2), those of a
// tracepoint when a process or thread is created: the emulator often fails while the kernel patches a tracepoint that runs
// all the time. A program of a perf event interrupts any process. One of type syscall writes by bpf_sys_bpf.
func runWriter(t *testing.T, typ ebpf.ProgramType, m *ebpf.Map) int {
	t.Helper()
	control := startControl(t, m)
	if typ == ebpf.Syscall {
		control.do(t, "sys-bpf", 0, caseWrites, 0)
		return caseWrites
	}
	counter, _ := newHash(t, ebpf.Array, 4, 8, 1)
	detach := attachWriter(t, typ, dataplane.Getppid, writerCode(m, counter, make([]byte, 8), make([]byte, 16)))
	switch typ {
	case ebpf.Kprobe:
		control.do(t, "system-call", 0, 10, 0)
	case ebpf.PerfEvent:
		awaitWrites(t, counter, 10)
	default:
		control.do(t, "process", 0, 10, 0)
	}
	if err := detach(); err != nil {
		t.Fatal(err)
	}
	var writes uint64
	if err := counter.Lookup(uint32(0), &writes); err != nil {
		t.Fatal(err)
	}
	return int(writes)
}

// attachWriter attaches a program until the end of the test, or until detach is called: a kprobe to a function, a program of a
// perf event to clocks, another one to a tracepoint.
func attachWriter(t *testing.T, typ ebpf.ProgramType, function string, code asm.Instructions) (detach func() error) {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "writer", Type: typ, License: "GPL", Instructions: code})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	var l io.Closer
	switch typ {
	case ebpf.Kprobe:
		l, err = link.Kprobe(function, p, nil)
	case ebpf.PerfEvent:
		l, err = openPerfEvents(p)
	case ebpf.TracePoint:
		l, err = link.Tracepoint("task", "task_newtask", p, nil)
	case ebpf.RawTracepoint:
		l, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: "task_newtask", Program: p})
	}
	if err != nil {
		t.Fatal(err)
	}
	detach = sync.OnceValue(l.Close)
	t.Cleanup(func() { _ = detach() })
	return detach
}

// writerCode is a program that stores an entry of 8 + 16 bytes, and counts it.
func writerCode(m, counter *ebpf.Map, key, value []byte) asm.Instructions {
	var code asm.Instructions
	for at, word := range map[int16][]byte{-8: key, -24: value[:8], -16: value[8:]} {
		code = append(code, asm.LoadImm(asm.R0, int64(binary.LittleEndian.Uint64(word)), asm.DWord),
			asm.StoreMem(asm.RFP, at, asm.R0, asm.DWord))
	}
	return append(code,
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -8),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, -24),
		asm.Mov.Imm(asm.R4, 0), asm.FnMapUpdateElem.Call(),
		asm.LoadMapPtr(asm.R1, counter.FD()),
		asm.StoreImm(asm.RFP, -8, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -8),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "end"),
		asm.Mov.Imm(asm.R1, 1), asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), asm.Return())
}
