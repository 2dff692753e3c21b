package capture_test

import (
	"errors"
	"strings"
	"testing"

	"mapsync/syncd/capture"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// TestDetects compares Attach.Detects with the events of programs that run under a kprobe, a tracepoint
// and a raw tracepoint. Each updates one entry for every getppid(2) of this thread.
func TestDetects(t *testing.T) {
	for _, attach := range attaches {
		// On 5.10, a kprobe on a function would keep fexit from running there under another kprobe.
		t.Run(string(attach), func(t *testing.T) {
			h := openHooks(t, capture.Options{Attach: attach})
			h.tap(t)
			for _, typ := range []ebpf.ProgramType{ebpf.Kprobe, ebpf.TracePoint, ebpf.RawTracepoint} {
				t.Run(typ.String(), func(t *testing.T) { testDetects(t, h, typ) })
			}
			markRan(t, "detects", h)
		})
	}
}

func testDetects(t *testing.T, h *hookedCapture, typ ebpf.ProgramType) {
	if typ != ebpf.Kprobe {
		skipEmulated(t)
	}
	m, id := newHash(t, ebpf.Hash, 8, 16, 64)
	attachWriter(t, typ, m)
	h.watch(t, id, 8, 16)
	defer h.Unwatch(id)
	const calls = 100
	onCPU(t, 0, func() error {
		for range calls {
			unix.Getppid()
		}
		return nil
	})
	if keys := keysOf(t, m); len(keys) != 1 {
		t.Fatalf("entries of the program: got %d, want 1", len(keys))
	}
	h.awaitEvents(t)
	// Newer kernels run the program of a system call's tracepoint outside the section that hides
	// writes from kprobes.
	detected := h.attach.Detects(typ)
	if got := len(h.take(id)); got != calls && (got != 0 || detected) {
		t.Errorf("events: got %d of %d, want all (detected: %t)", got, calls, detected)
	}
}

// attachWriter attaches a program of a type to getppid(2) until the end of the test. It stores an entry
// of 8 + 16 bytes with the key 0.
func attachWriter(t *testing.T, typ ebpf.ProgramType, m *ebpf.Map) {
	t.Helper()
	var code asm.Instructions
	if typ == ebpf.RawTracepoint { // runs at each system call: its second argument is the number
		code = append(code, asm.LoadMem(asm.R0, asm.R1, 8, asm.DWord), asm.JNE.Imm(asm.R0, unix.SYS_GETPPID, "end"))
	}
	code = append(code, asm.Mov.Imm(asm.R0, 0))
	for at := int16(-8); at >= -24; at -= 8 {
		code = append(code, asm.StoreMem(asm.RFP, at, asm.R0, asm.DWord))
	}
	code = append(code,
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -8),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, -24),
		asm.Mov.Imm(asm.R4, 0), asm.FnMapUpdateElem.Call(),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), asm.Return())
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "writer", Type: typ, License: "GPL", Instructions: code})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	var l link.Link
	switch typ {
	case ebpf.Kprobe:
		l, err = link.Kprobe(strings.Replace(capture.BPFEntry, "bpf", "getppid", 1), p, nil)
	case ebpf.TracePoint:
		l, err = link.Tracepoint("syscalls", "sys_enter_getppid", p, nil)
	case ebpf.RawTracepoint:
		l, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sys_enter", Program: p})
	}
	if errors.Is(err, unix.ENOENT) {
		t.Skip("this kernel has no such function or tracepoint")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}
