package capture

import "github.com/cilium/ebpf"

// Detects reports whether the hooks of an attach method detect the updates and deletes by programs of a
// type. The kernel runs no kprobe program inside a program of a kprobe, a tracepoint or a perf event, nor
// inside a write that a program of type syscall makes by bpf_sys_bpf.
func (a Attach) Detects(t ebpf.ProgramType) bool {
	switch a {
	case AttachFexit:
		return true
	case AttachKprobe:
		return t != ebpf.Kprobe && t != ebpf.TracePoint && t != ebpf.PerfEvent && t != ebpf.Syscall
	}
	return false
}
