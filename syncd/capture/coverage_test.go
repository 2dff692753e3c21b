package capture

import (
	"testing"

	"github.com/cilium/ebpf"
)

func TestCovers(t *testing.T) {
	all := Coverage{true, true, true}
	for _, c := range []struct {
		attach  Attach
		missing string
		typ     ebpf.MapType
		want    Coverage
	}{
		{AttachFexit, "", ebpf.Hash, all},
		{AttachKprobe, "", ebpf.LRUCPUHash, Coverage{true, true, false}},
		{AttachSyscall, "", ebpf.Hash, Coverage{Syscalls: true}},
		{AttachNone, "", ebpf.Hash, Coverage{}},
		{AttachFexit, "htab_lru_map_delete_node", ebpf.LRUHash, Coverage{true, true, false}},
		{AttachKprobe, BPFEntry, ebpf.Hash, Coverage{Programs: true}},
		{AttachFexit, BPFEntry, ebpf.Hash, all},
		{AttachFexit, "htab_map_lookup_and_delete_batch", ebpf.Hash, Coverage{true, false, true}},
		{AttachFexit, "htab_map_lookup_and_delete_batch", ebpf.LRUHash, all},
		{AttachFexit, "htab_lru_map_lookup_and_delete_batch", ebpf.LRUHash, Coverage{true, false, true}},
		{AttachFexit, "bpf_percpu_hash_update", ebpf.PerCPUHash, Coverage{true, false, true}},
		{AttachFexit, "bpf_percpu_hash_update", ebpf.Hash, all},
		{AttachKprobe, "bpf_percpu_hash_update", ebpf.PerCPUHash, Coverage{true, true, false}},
		{AttachFexit, "htab_percpu_map_update_elem", ebpf.PerCPUHash, Coverage{false, true, true}},
		{AttachFexit, "htab_percpu_map_update_elem", ebpf.LRUCPUHash, all},
		{AttachKprobe, "htab_lru_percpu_map_update_elem", ebpf.LRUCPUHash, Coverage{Syscalls: true}},
		{AttachFexit, "", ebpf.Array, Coverage{Programs: true, Syscalls: true}},
		{AttachKprobe, "", ebpf.PerCPUArray, Coverage{Programs: true, Syscalls: true}},
		{AttachSyscall, "", ebpf.Array, Coverage{Syscalls: true}},
		{AttachNone, "", ebpf.Array, Coverage{}},
		{AttachFexit, "array_map_update_elem", ebpf.Array, Coverage{}},
		{AttachFexit, "array_map_update_elem", ebpf.PerCPUArray, Coverage{Syscalls: true}},
		{AttachFexit, "bpf_percpu_array_update", ebpf.PerCPUArray, Coverage{Programs: true}},
		{AttachKprobe, "array_map_update_elem", ebpf.Array, Coverage{Syscalls: true}},
		{AttachKprobe, BPFEntry, ebpf.Array, Coverage{Programs: true}},
	} {
		if got := Covers(c.attach, []string{c.missing}, c.typ); got != c.want {
			t.Errorf("%s without %q, %s: got %+v, want %+v", c.attach, c.missing, c.typ, got, c.want)
		}
	}
	want := all
	want.Syscalls = !kernelAtLeast(5, 14)
	if got := Covers(AttachFexit, []string{"htab_map_lookup_and_delete_elem"}, ebpf.Hash); got != want {
		t.Errorf("fexit without lookup-and-delete: got %+v, want %+v", got, want)
	}
}
