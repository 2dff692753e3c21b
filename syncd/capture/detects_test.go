package capture_test

import (
	"os/exec"
	"strings"
	"testing"

	"mapsync/syncd/capture"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// TestDetects compares Attach.Detects with the events of programs that run under a kprobe, a tracepoint
// and a raw tracepoint. The programs count their writes.
func TestDetects(t *testing.T) {
	for _, attach := range attaches {
		// On 5.10, a kprobe on a function would keep fexit from running there under another kprobe.
		t.Run(string(attach), func(t *testing.T) {
			h := openHooks(t, capture.Options{Attach: attach})
			h.tap(t)
			if !h.HooksMaps() {
				t.Error("hooks on map functions: got none, want some")
			}
			for _, typ := range []ebpf.ProgramType{ebpf.Kprobe, ebpf.TracePoint, ebpf.RawTracepoint} {
				t.Run(typ.String(), func(t *testing.T) { testDetects(t, h, typ) })
			}
			markRan(t, "detects", h)
		})
	}
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
	// A kernel may detect more than Detects promises.
	detected := h.attach.Detects(typ)
	if got := len(h.take(id)); got != writes && (got != 0 || detected) {
		t.Errorf("events: got %d of %d writes, want all (detected: %t)", got, writes, detected)
	}
}

// runWriter attaches a program of a type that stores the same entry of 8 + 16 bytes in m each time it runs,
// makes it run, detaches it, and returns the number of its writes. A kprobe program runs at getppid(2), the
// others when a process or thread is created: the emulator often fails while the kernel patches a
// tracepoint that runs all the time.
func runWriter(t *testing.T, typ ebpf.ProgramType, m *ebpf.Map) int {
	t.Helper()
	counter, _ := newHash(t, ebpf.Array, 4, 8, 1)
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "writer", Type: typ, License: "GPL", Instructions: writerCode(m, counter)})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	var l link.Link
	switch typ {
	case ebpf.Kprobe:
		l, err = link.Kprobe(strings.Replace(capture.BPFEntry, "bpf", "getppid", 1), p, nil)
	case ebpf.TracePoint:
		l, err = link.Tracepoint("task", "task_newtask", p, nil)
	case ebpf.RawTracepoint:
		l, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: "task_newtask", Program: p})
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		unix.Getppid()
		if typ != ebpf.Kprobe {
			_ = exec.Command("/nonexistent").Run() // the process is created, and cannot execute
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var writes uint64
	if err := counter.Lookup(uint32(0), &writes); err != nil {
		t.Fatal(err)
	}
	return int(writes)
}

// writerCode is a program that stores an entry with zeros, and counts it.
func writerCode(m, counter *ebpf.Map) asm.Instructions {
	code := asm.Instructions{asm.Mov.Imm(asm.R0, 0)}
	for at := int16(-8); at >= -24; at -= 8 {
		code = append(code, asm.StoreMem(asm.RFP, at, asm.R0, asm.DWord))
	}
	return append(code,
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -8),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, -24),
		asm.Mov.Imm(asm.R4, 0), asm.FnMapUpdateElem.Call(),
		asm.LoadMapPtr(asm.R1, counter.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -8),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "end"),
		asm.Mov.Imm(asm.R1, 1), asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), asm.Return())
}
