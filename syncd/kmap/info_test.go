package kmap

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
)

func TestOpenRejectsUnsupportedMaps(t *testing.T) {
	for _, spec := range []*ebpf.MapSpec{
		{Type: ebpf.Queue, ValueSize: 4, MaxEntries: 1},
		{Type: ebpf.HashOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: hashSpec(4, 4, 1)},
		hashSpec(8, MaxValueSize+1, 1),
	} {
		_, err := Open(newKernelMap(t, spec), Options{})
		if !errors.Is(err, ErrUnsupported) {
			t.Errorf("open %s map of %d+%d bytes: got %v, want ErrUnsupported",
				spec.Type, spec.KeySize, spec.ValueSize, err)
		}
		t.Log(err)
	}
}

// TestPerCPUValueLimit checks the limit without a kernel map: with two CPUs, the kernel creates no
// map above the limit.
func TestPerCPUValueLimit(t *testing.T) {
	i := Info{Type: ebpf.PerCPUHash, KeySize: 8, ElemSize: 509, CPUs: 128, ValueSize: 128 * 512}
	if err := i.checkSupported(); err != nil {
		t.Errorf("value of %d bytes: got %v, want no error", i.ValueSize, err)
	}
	i.CPUs, i.ValueSize = 129, 129*512
	if err := i.checkSupported(); !errors.Is(err, ErrUnsupported) {
		t.Errorf("value of %d bytes: got %v, want ErrUnsupported", i.ValueSize, err)
	}
}

func TestDescribePerCPU(t *testing.T) {
	cpus := ebpf.MustPossibleCPU()
	for _, typ := range []ebpf.MapType{ebpf.PerCPUHash, ebpf.LRUCPUHash} {
		i, err := Describe(newKernelMap(t, withType(hashSpec(8, 13, 5), typ)))
		if err != nil {
			t.Fatal(err)
		}
		if i.Unsupported != nil || i.ElemSize != 13 || i.CPUs != cpus || i.ValueSize != 16*cpus || i.HasSpinLock {
			t.Errorf("describe: got %+v, want a supported map with values per CPU", i)
		}
	}
}

func TestDescribe(t *testing.T) {
	for _, c := range []struct {
		spec   *ebpf.MapSpec
		lock   bool
		offset int
	}{
		{hashSpec(8, 8, 5), false, -1},
		{lockSpec(64, 8, 5), true, 8},
		{lockSpec(64, 0, 5), true, 0},
	} {
		m := newKernelMap(t, c.spec)
		i, err := Describe(m)
		if err != nil {
			t.Fatal(err)
		}
		if i.HasSpinLock != c.lock || i.LockOffset != c.offset || i.Name != "kmap_test" || i.MaxEntries != 5 ||
			i.ValueSize != int(c.spec.ValueSize) || i.ElemSize != i.ValueSize || i.CPUs != 0 || i.ID == 0 || i.Unsupported != nil || (i.BTFID != 0) != c.lock {
			t.Errorf("describe: got %+v, want map kmap_test with an ID, 5 entries, values and elements of %d bytes, no CPUs, "+
				"supported, spin lock %t at offset %d, and a BTF ID only with a lock", i, c.spec.ValueSize, c.lock, c.offset)
		}
	}
}
