package kmap

import (
	"errors"
	"maps"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// TestEachKey: each key of maps of all types and sizes is returned once, also if some or all are deleted then.
func TestEachKey(t *testing.T) {
	const n = 100
	for name, spec := range map[string]*ebpf.MapSpec{
		"small hash":  hashSpec(8, 16, 1000),
		"full hash":   hashSpec(8, 16, n),
		"large hash":  withFlags(hashSpec(8, 16, 2*callBuckets), noPrealloc),
		"large LRU":   withType(hashSpec(8, 16, 2*callBuckets), ebpf.LRUHash),
		"odd per-CPU": withFlags(perCPUSpec(ebpf.PerCPUHash, 5, 3, 2*callBuckets), noPrealloc),
	} {
		t.Run(name, func(t *testing.T) {
			m := newKernelMap(t, spec)
			k := openMap(t, m, Options{})
			put(t, k, 0, n, 1)
			have := n
			for _, deleted := range []int{0, n / 2, n / 2} {
				keys := map[string]int{}
				err := EachKey(t.Context(), m, nil, func(key []byte) error {
					if keys[string(key)]++; len(keys) <= have-deleted { // the last ones are deleted
						return nil
					}
					return mapElem(cmdMapDeleteElem, m.FD(), key, nil, 0)
				})
				if err != nil || len(keys) != have {
					t.Errorf("keys: got %d, error %v, want %d", len(keys), err, have)
				}
				have -= deleted
				for key, times := range keys {
					if times != 1 {
						t.Errorf("key %x: got it %d times, want once", key, times)
					}
				}
			}
			if left := content(t, k); len(left) != 0 {
				t.Errorf("entries after all were deleted: got %d, want none", len(left))
			}
		})
	}
}

// TestEachKeyEnds: the error of the function ends the read, which runs on the CPUs of scans.
func TestEachKeyEnds(t *testing.T) {
	stop := errors.New("enough")
	cpus := affinity(t)
	for cpu, found := 0, false; cpu < maxCPU; cpu++ {
		if found {
			cpus.Clear(cpu)
		}
		found = found || cpus.IsSet(cpu)
	}
	for _, entries := range []uint32{100, 2 * callBuckets} {
		m := newKernelMap(t, withFlags(hashSpec(8, 16, entries), noPrealloc))
		put(t, openMap(t, m, Options{}), 0, 10, 1)
		n := 0
		err := EachKey(t.Context(), m, &cpus, func([]byte) error {
			n++
			if got := affinity(t); got != cpus {
				t.Errorf("CPUs: got %v, want %v", got, cpus)
			}
			return stop
		})
		if !errors.Is(err, stop) || n != 1 {
			t.Errorf("keys of a map for %d entries: got %d, error %v, want 1 and the error of the function", entries, n, err)
		}
	}
}

// TestSparseMapOfMaps: no call passes more than callBuckets empty buckets of a map of maps, and each call is measured.
func TestSparseMapOfMaps(t *testing.T) {
	const buckets, entries = 1 << 20, 3
	inner := hashSpec(8, 16, 10)
	outer := newKernelMap(t, &ebpf.MapSpec{
		Type: ebpf.HashOfMaps, KeySize: 8, ValueSize: 4, MaxEntries: buckets, Flags: unix.BPF_F_NO_PREALLOC, InnerMap: inner,
	})
	id := idOf(t, outer)
	want := map[uint32][]uint32{}
	for key := range uint64(entries) {
		m := newKernelMap(t, inner)
		want[idOf(t, m)] = []uint32{id}
		if err := outer.Put(key, m); err != nil {
			t.Fatal(err)
		}
	}
	before := Calls()
	got := map[uint32][]uint32{}
	if err := addInner(t.Context(), outer, id, got); err != nil {
		t.Fatal(err)
	}
	after := Calls()
	if !maps.EqualFunc(got, want, func(a, b []uint32) bool { return len(a) == 1 && a[0] == b[0] }) {
		t.Errorf("inner maps: got %v, want %v", got, want)
	}
	programs, elements := after[CallProgram].Count-before[CallProgram].Count, after[CallElement].Count-before[CallElement].Count
	if programs < buckets/callBuckets || elements != entries {
		t.Errorf("calls: got %d of a program and %d for an entry, want at least %d and %d", programs, elements, buckets/callBuckets, entries)
	}
}
