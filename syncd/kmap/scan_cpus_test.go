package kmap

import (
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// maxCPU is the highest number that a CPUSet can contain. No machine of the tests has that CPU.
const maxCPU = 1023

func affinity(t *testing.T) (set unix.CPUSet) {
	t.Helper()
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatalf("read the CPUs of the thread: %v", err)
	}
	return set
}

func TestCheckScanCPUs(t *testing.T) {
	allowed := affinity(t)
	if err := CheckScanCPUs(&allowed); err != nil {
		t.Errorf("the CPUs of this process: got error %v, want none", err)
	}
	var none unix.CPUSet
	none.Set(maxCPU)
	if err := CheckScanCPUs(&none); err == nil {
		t.Error("a CPU that does not exist: got no error, want one")
	}
}

// TestScansRunOnTheirCPUs: all calls of a scan run on the configured CPUs, and the thread returns to its own
// ones. CPUs that do not exist leave the thread where it is.
func TestScansRunOnTheirCPUs(t *testing.T) {
	kernelMap := newKernelMap(t, &ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 10})
	if err := kernelMap.Put(uint32(1), uint32(2)); err != nil {
		t.Fatalf("write an entry: %v", err)
	}
	before := affinity(t)
	var last, missing unix.CPUSet
	missing.Set(maxCPU)
	for cpu := range maxCPU {
		if before.IsSet(cpu) {
			last.Zero()
			last.Set(cpu)
		}
	}
	for name, c := range map[string]struct{ cpus, want *unix.CPUSet }{
		"the last CPU": {&last, &last}, "no configured CPUs": {nil, &before}, "a CPU that does not exist": {&missing, &before},
	} {
		m := openMap(t, kernelMap, Options{ScanCPUs: c.cpus})
		entries := 0
		err := m.ForEach(t.Context(), func(_, _ []byte) error {
			entries++
			if got := affinity(t); got != *c.want {
				t.Errorf("%s: CPUs during a scan: got %v, want %v", name, got, *c.want)
			}
			return nil
		})
		if err != nil || entries != 1 {
			t.Errorf("%s: scan: got %d entries, error %v, want 1", name, entries, err)
		}
		if got := affinity(t); got != before {
			t.Errorf("%s: CPUs after a scan: got %v, want %v", name, got, before)
		}
	}
}
