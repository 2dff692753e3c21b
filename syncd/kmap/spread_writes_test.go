package kmap

import (
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// TestWritesUseSharesOfAllCPUs fills 80 % of LRU maps in which each CPU has a share of the entries. No entry is
// evicted while there is room.
func TestWritesUseSharesOfAllCPUs(t *testing.T) {
	for _, typ := range []ebpf.MapType{ebpf.LRUHash, ebpf.LRUCPUHash} {
		for _, o := range []Options{{}, {NoProgram: true}} {
			const entries, most = 20_000, 25_000
			k := openMap(t, newKernelMap(t, withFlags(withType(hashSpec(8, 8, most), typ), unix.BPF_F_NO_COMMON_LRU)), o)
			put(t, k, 0, entries, 1)
			put(t, k, 0, entries, 2)
			if k.turns == nil {
				t.Fatal("CPUs that write in turn: got none, want those of this process")
			}
			if used, all := len(k.turns.cpus), ebpf.MustPossibleCPU(); used < all {
				t.Skipf("this process may use %d of %d CPUs, and their shares only", used, all)
			}
			if n := len(content(t, k)); n < entries*99/100 {
				t.Errorf("%s, writes by %s: got %d of %d entries, want nearly all", typ, k.AccessMethods().Write, n, entries)
			}
			k.accessMethods.Write = BySingle
			if k.syscallWriter != nil {
				k.syscallWriter.batched = false
				put(t, k, 0, entries, 3)
				if n := len(content(t, k)); n < entries*99/100 {
					t.Errorf("%s, single writes: got %d of %d entries, want nearly all", typ, n, entries)
				}
			}
		}
	}
	k := openMap(t, newKernelMap(t, withType(hashSpec(8, 8, 100), ebpf.LRUHash)), Options{})
	if k.turns != nil {
		t.Error("CPUs that write in turn for a map with a common list: got some, want none")
	}
}
