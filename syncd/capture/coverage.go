package capture

import (
	"slices"

	"github.com/cilium/ebpf"
)

// Coverage states which kinds of writes to a map the hooks report. Only scans find the others.
type Coverage struct {
	// Programs are updates and deletes by BPF programs of a type that Attach.Detects.
	Programs bool
	// Syscalls are updates and deletes by bpf(2), single or in batches.
	Syscalls bool
	// Evictions are all evictions by the kernel. Only LRU maps have them. A kprobe detects only those by writes of BPF
	// programs.
	Evictions bool
}

// Covers returns what an attach method covers of a map of a type. missing are the kernel functions that
// cannot be hooked, see ProbeResult.Missing.
func Covers(a Attach, missing []string, t ebpf.MapType) Coverage {
	hooked := func(symbols ...string) bool {
		return !slices.ContainsFunc(symbols, func(s string) bool { return slices.Contains(missing, s) })
	}
	if t == ebpf.Array || t == ebpf.PerCPUArray {
		return coversArray(a, hooked, t)
	}
	prefix, perCPU := "htab_", t == ebpf.PerCPUHash || t == ebpf.LRUCPUHash
	if t == ebpf.LRUHash || t == ebpf.LRUCPUHash {
		prefix = "htab_lru_"
	}
	if perCPU {
		prefix += "percpu_"
	}
	programs := !perCPU || hooked(prefix+"map_update_elem")
	switch a {
	case AttachFexit:
		calls := hooked(prefix + "map_lookup_and_delete_batch")
		if perCPU {
			calls = calls && hooked("bpf_percpu_hash_update")
		}
		// Before 5.14, hash maps have no bpf(2) call that looks a single entry up and deletes it.
		if kernelAtLeast(5, 14) {
			calls = calls && hooked(prefix+"map_lookup_and_delete_elem")
		}
		return Coverage{programs, calls, hooked("htab_lru_map_delete_node")}
	case AttachKprobe:
		return Coverage{Programs: programs, Syscalls: hooked(BPFEntry)}
	case AttachSyscall:
		return Coverage{Syscalls: true}
	}
	return Coverage{}
}

// coversArray is Covers for arrays, whose elements cannot be deleted or evicted.
func coversArray(a Attach, hooked func(...string) bool, t ebpf.MapType) Coverage {
	c := Coverage{Programs: hooked("array_map_update_elem")}
	switch a {
	case AttachFexit:
		c.Syscalls = c.Programs
		if t == ebpf.PerCPUArray {
			c.Syscalls = hooked("bpf_percpu_array_update")
		}
	case AttachKprobe:
		c.Syscalls = hooked(BPFEntry)
	case AttachSyscall:
		c = Coverage{Syscalls: true}
	default:
		c = Coverage{}
	}
	return c
}
