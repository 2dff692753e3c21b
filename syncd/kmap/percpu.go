package kmap

import (
	"github.com/cilium/ebpf"
)

func perCPU(t ebpf.MapType) bool {
	return t == ebpf.PerCPUHash || t == ebpf.LRUCPUHash || t == ebpf.PerCPUArray
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
