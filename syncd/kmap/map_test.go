package kmap

import (
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

const noPrealloc = unix.BPF_F_NO_PREALLOC

func TestRoundTrip(t *testing.T) {
	program := AccessMethods{Read: ByBuckets, Lookup: ByProgram, Write: ByProgram}
	for _, c := range []struct {
		name string
		spec *ebpf.MapSpec
		opts Options
		want AccessMethods
	}{
		{"4+4", hashSpec(4, 4, 3000), Options{}, program},
		{"odd 5+3", hashSpec(5, 3, 3000), Options{}, program},
		{"odd 13+1", hashSpec(13, 1, 3000), Options{}, program},
		{"flow 48+176", hashSpec(48, 176, 20000), Options{}, program},
		{"largest event", hashSpec(512, 4096, 2500), Options{}, program},
		{"largest", hashSpec(512, MaxValueSize, 300), Options{}, program},
		{"odd large", hashSpec(509, 4093, 1500), Options{}, program},
		{"no prealloc", withFlags(hashSpec(16, 64, 3000), noPrealloc), Options{}, program},
		{"lru", withType(hashSpec(16, 64, 20000), ebpf.LRUHash), Options{}, program},
		{"small burst", hashSpec(16, 64, 3000), Options{Burst: 17}, program},
		{"lock first", lockSpec(176, 0, 3000), Options{}, program},
		{"lock inside", lockSpec(176, 36, 3000), Options{}, program},
		{"lock largest for a program", lockSpec(4096, 4092, 1200), Options{}, program},
		{
			"lock largest", lockSpec(MaxValueSize, MaxValueSize-4, 200),
			Options{},
			AccessMethods{Read: ByBuckets, Lookup: BySingle, Write: ByProgram},
		},
		{
			"programs may not write", withFlags(hashSpec(16, 64, 3000), unix.BPF_F_RDONLY_PROG),
			Options{},
			AccessMethods{Read: ByBuckets, Lookup: ByProgram, Write: ByBatch},
		},
		{"programs may not read in place", withFlags(hashSpec(16, 64, 3000), unix.BPF_F_WRONLY_PROG), Options{}, program},
		{
			"bpf(2)", hashSpec(48, 176, 3000),
			Options{NoProgram: true},
			AccessMethods{Read: ByBatch, Lookup: BySingle, Write: ByBatch},
		},
		{
			"bpf(2) lock", lockSpec(64, 8, 3000),
			Options{NoProgram: true},
			AccessMethods{Read: ByBatch, Lookup: BySingle, Write: ByBatch},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := openMap(t, newKernelMap(t, c.spec), c.opts)
			got := k.AccessMethods()
			t.Log(got.Reason)
			if (got.Reason == nil) != (c.want == program) {
				t.Errorf("reason: got %v, want nil only if all access is by program", got.Reason)
			}
			if got.Reason = nil; got != c.want {
				t.Errorf("access methods: got %+v, want %+v", got, c.want)
			}
			testRoundTrip(t, k)
		})
	}
}

func TestRoundTripSingle(t *testing.T) {
	for _, spec := range []*ebpf.MapSpec{hashSpec(13, 27, 500), lockSpec(64, 8, 500)} {
		k := openMap(t, newKernelMap(t, spec), Options{NoProgram: true})
		k.accessMethods.Write, k.syscallWriter.batched = BySingle, false
		testRoundTrip(t, k)
	}
}

func testRoundTrip(t *testing.T, k *Map) {
	n := k.info.MaxEntries
	if k.info.Type == ebpf.LRUHash || k.info.Type == ebpf.LRUCPUHash {
		n /= 10 // per-CPU free lists evict long before the map is full
	}
	checkContent(t, k, 0, 0, 0)
	put(t, k, 0, n, 1)
	checkContent(t, k, 0, n, 1)
	put(t, k, 0, n, 2)
	checkContent(t, k, 0, n, 2)
	put(t, k, n/2, n+1, -1) // the last key is absent
	checkContent(t, k, 0, n/2, 2)
	put(t, k, 0, n/2, -1)
	checkContent(t, k, 0, 0, 0)
}

// TestSpinLockOffsetSearch checks that the lock is found without the privilege to read BTF by ID.
func TestSpinLockOffsetSearch(t *testing.T) {
	for _, offset := range []uint32{0, 36, 172} {
		k := openMap(t, newKernelMap(t, lockSpec(176, offset, 1000)), Options{})
		if err := k.lookupProgram.close(); err != nil {
			t.Fatal(err)
		}
		k.info.LockOffset = -1
		if err := k.openLookupProgram(&Options{}); err != nil || k.info.LockOffset != int(offset) {
			t.Fatalf("lock offset: got %d, want %d, error %v", k.info.LockOffset, offset, err)
		}
		testRoundTrip(t, k)
	}
}
