package capture

import "github.com/cilium/ebpf"

// Detects reports whether the hooks of an attach method detect the updates and deletes by programs of a
// type on this kernel. The kernel runs no kprobe program inside a program of a kprobe, a tracepoint or a
// perf event, nor inside a write that a program of type syscall makes by bpf_sys_bpf. On 5.10 fexit
// takes the writes of the former for writes by bpf(2), and in this process for its own; kernels between 5.10 and 6.1
// were not measured.
func (a Attach) Detects(t ebpf.ProgramType) bool {
	tracing := t == ebpf.Kprobe || t == ebpf.TracePoint || t == ebpf.PerfEvent
	switch a {
	case AttachFexit:
		return !tracing || kernelAtLeast(6, 1)
	case AttachKprobe:
		return !tracing && t != ebpf.Syscall
	}
	return false
}

// DetectsAllWrites reports whether the hooks report every write that is not in place, or count it as lost:
// fexit on a kernel on which it runs inside every program, with every function to hook. A kprobe may miss
// the writes of a packet without counting them.
func (c *Capture) DetectsAllWrites() bool { return detectsAllWrites(c.attached, c.missing) }

// DetectsAllWrites is Capture.DetectsAllWrites for the hooks that were probed.
func (o *ProbeResult) DetectsAllWrites() bool { return detectsAllWrites(o.Attach, o.Missing) }

func detectsAllWrites(a Attach, missing []string) bool {
	return a == AttachFexit && a.Detects(ebpf.Kprobe) && len(missing) == 0
}
