package capture

import "github.com/cilium/ebpf"

// Detects reports whether the hooks of an attach method detect the updates and deletes by programs of a
// type. The kernel runs no kprobe program inside a program of a kprobe, a tracepoint or a perf event.
func (a Attach) Detects(t ebpf.ProgramType) bool {
	switch a {
	case AttachFexit:
		return true
	case AttachKprobe:
		return t != ebpf.Kprobe && t != ebpf.TracePoint && t != ebpf.PerfEvent
	}
	return false
}
