package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"mapsync/syncd/capture"

	"github.com/cilium/ebpf"
)

const tracingPrograms = "program under a kprobe or tracepoint"

// measuredWriters are the writers in capture/testdata/detected_writes.txt for the changes that `syncd check` lists.
var measuredWriters = map[string][]string{
	"update or delete by a BPF program": {
		"update by a program, in a process", "update by a program, in a packet", "update by a program under a raw tracepoint",
		"update by a timer's callback", "update by an iterator",
		"delete by a program, in a process", "delete by a program, in a packet", "delete by a timer's callback", "delete by an iterator",
	},
	tracingPrograms: {"update by a program under a kprobe", "update by a program under a tracepoint"},
	"update or delete by bpf(2)": {
		"update by bpf(2), single", "update by bpf(2), batch", "delete by bpf(2), single", "delete by bpf(2), batch",
	},
	"lookup-and-delete by bpf(2)":        {"lookup-and-delete by bpf(2), single"},
	"batch lookup-and-delete by bpf(2)":  {"lookup-and-delete by bpf(2), batch"},
	"change in place, key has settled":   {"change in place"},
	"LRU map, eviction by a BPF program": {"eviction by a write of a program"},
	"LRU map, eviction by bpf(2)":        {"eviction by a write of bpf(2)"},
}

// otherChanges are those without writers in that file. Tests of syncd/capture and syncd/daemon have them.
var otherChanges = []string{
	"change in place, key is new", "per-CPU map, update by a BPF program", "per-CPU map, update by bpf(2)",
	"per-CPU map, lookup-and-delete by bpf(2)", "array, update by a BPF program", "array, update by bpf(2)",
	"array, write through mmap(2)", "write that the kernel hides from a hook",
}

// detected returns the cell of `syncd check` for each attach method and writer that follows from the measurements: the
// same on all kernels that have the writer.
func detected(t *testing.T) map[string]string {
	t.Helper()
	results, err := os.ReadFile("capture/testdata/detected_writes.txt")
	if err != nil {
		t.Fatal(err)
	}
	cells := map[string]string{}
	for line := range strings.Lines(string(results)) {
		f := strings.Split(strings.TrimSpace(line), "\t") // kernel, attach method, writer, number
		n, of, measured := strings.Cut(f[3], "/")
		if !measured {
			continue // the kernel has no such writer
		}
		cell, key := "some", f[1]+" "+f[2]
		switch n {
		case of:
			cell = atOnce
		case "0":
			cell = byScan
		}
		if was := cells[key]; was != "" && was != cell {
			t.Errorf("%s: got %s and %s, want the same on all kernels", key, was, cell)
		}
		cells[key] = cell
	}
	return cells
}

// TestObservedChangesAreMeasured compares the changes that `syncd check` lists with the measurements of TestHookEvents,
// TestDetects and TestSyscallDetects, which are the table in docs/capture.md.
func TestObservedChangesAreMeasured(t *testing.T) {
	var r report
	r.observe(capture.ProbeResult{Attach: capture.AttachFexit}, capture.ProbeResult{Attach: capture.AttachKprobe}, capture.ProbeResult{Attach: capture.AttachSyscall})
	measured := detected(t)
	for _, o := range r.Observed {
		writers, listed := measuredWriters[o.Write]
		if listed == slices.Contains(otherChanges, o.Write) {
			t.Errorf("%s: got listed writers %t, want the change either with writers or among the other changes", o.Write, listed)
		}
		for _, writer := range writers {
			for attach, cell := range map[string]string{"fexit": o.Fexit, "kprobe": o.Kprobe, "syscall": o.Syscall} {
				want := measured[attach+" "+writer]
				if o.Write == tracingPrograms && attach == "fexit" && !capture.AttachFexit.Detects(ebpf.Kprobe) {
					want = byScan // such a kernel may detect more than syncd expects of it
				}
				if want != "" && cell != want {
					t.Errorf("%s by %s: got %q, want %q as measured for %s", o.Write, attach, cell, want, writer)
				}
				delete(measured, attach+" "+writer)
			}
		}
		if o.None != byScan {
			t.Errorf("%s without hooks: got %q, want %q", o.Write, o.None, byScan)
		}
	}
	for writer, cell := range measured {
		t.Errorf("%s: got no change in the list, want one with %q", writer, cell)
	}
}
