package kmap

import (
	"testing"

	"github.com/cilium/ebpf"
)

// arrayBytes returns the size of the arrays that the map's programs share with this process.
func (k *Map) arrayBytes() (n int) {
	for _, p := range []*sharedProgram{k.writer, k.lookupProgram, k.bucketReader} {
		if p != nil {
			n += p.slots * p.stride
		}
	}
	return n
}

// TestArraysOfManyMapsAreBounded: the arrays of 1,024 maps have at most allBytes together, and those of one map are
// not smaller for it. The arrays of a small map have room for its entries.
func TestArraysOfManyMapsAreBounded(t *testing.T) {
	for name, test := range map[string]struct {
		spec                *ebpf.MapSpec
		one, hundred, large int // entries of a write, with 1, 100 and 1,024 maps
	}{
		"smallest entries":  {hashSpec(1, 1, 1<<20), 8192, 8192, 8192},
		"small entries":     {hashSpec(8, 8, 8192), 8192, 8192, 8192},
		"flows":             {hashSpec(48, 176, 8192), 8192, 8192, 376},
		"flows, small map":  {hashSpec(48, 176, 100), 100, 100, 100},
		"largest of events": {hashSpec(512, 4096, 10_000), 908, 193, 18},
	} {
		t.Run(name, func(t *testing.T) {
			m := newKernelMap(t, withFlags(test.spec, noPrealloc))
			for maps, want := range map[int]int{0: test.one, 1: test.one, 100: test.hundred, 1024: test.large} {
				k := openMap(t, m, Options{Maps: maps})
				if got := k.Batch().Cap(); got != want || k.writer == nil || k.lookupProgram == nil || k.bucketReader == nil {
					t.Errorf("entries of a write with %d maps: got %d, want %d, and all access by program", maps, got, want)
				}
				if got := max(maps, 1) * k.arrayBytes(); got > allBytes {
					t.Errorf("arrays of %d maps: got %d bytes, want at most %d", maps, got, allBytes)
				}
			}
		})
	}
}
