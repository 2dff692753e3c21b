package kmap

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
)

func perCPU(t ebpf.MapType) bool {
	return t == ebpf.PerCPUHash || t == ebpf.LRUCPUHash || t == ebpf.PerCPUArray
}

// ScannedSingly reports whether scans look up each value by a bpf(2) call of its own on this kernel.
func (i *Info) ScannedSingly() bool {
	switch i.Type {
	case ebpf.LRUCPUHash:
		return true // by a program, it would count as a use of the entry
	case ebpf.PerCPUHash, ebpf.PerCPUArray: // programs can look up the values of other CPUs from 5.19 on
		return features.HaveProgramHelper(ebpf.CGroupSKB, asm.FnMapLookupPercpuElem) != nil
	}
	return i.HasSpinLock && i.ValueSize > maxLockedByProgram
}

// cleanPadding clears the padding between the values of the CPUs. It contains the bytes of earlier
// bpf(2) writes, and must not count as a difference.
func (k *Map) cleanPadding(value []byte) {
	size := k.info.ElemSize
	if k.info.CPUs == 0 || size == pad8(size) {
		return
	}
	for at := 0; at < len(value); at += pad8(size) {
		clear(value[at+size : at+pad8(size)])
	}
}
