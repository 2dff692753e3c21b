package drained_test

import (
	"path/filepath"
	"testing"

	"mapsync/syncd/drained"
	"mapsync/syncd/kmap"

	"github.com/cilium/ebpf"
)

// TestFormerSumsAreReadInParts: another maximum makes syncd add the former sums to a new map. Its creation is one measured
// call, and no call passes all empty buckets of the former map.
func TestFormerSumsAreReadInParts(t *testing.T) {
	const entries, callBuckets = 1 << 18, 1 << 14
	eachMethod(t, func(t *testing.T, method drained.Method) {
		o := options(filepath.Join(mountBPF(t), "flows"))
		o.Methods, o.MaxEntries = []drained.Method{method}, entries
		m, id := newMap(t, ebpf.Hash)
		created := func() uint64 { return kmap.Calls()[kmap.CallCreateSums].Count }
		parts := func() uint64 { return kmap.Calls()[kmap.CallProgram].Count }
		before := created()
		s, err := drained.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		s.Follow(id)
		for i := range 3 {
			put(t, m, i, value(1, 2, 10))
		}
		drain(t, m, 100)
		if err := s.Map().Put(append(key(1), "elsewher"...), value(9, 9, 9)); err != nil {
			t.Fatal(err)
		}
		if got := created() - before; got != 1 {
			t.Errorf("calls that created sums: got %d, want 1", got)
		}
		closeSums(t, s)
		o.MaxEntries -= 10
		calls := parts()
		if s, err = drained.Open(o); err != nil {
			t.Fatal(err)
		}
		if got := created() - before; got != 2 {
			t.Errorf("calls that created sums, with those of another maximum: got %d, want 2", got)
		}
		if got := parts() - calls; got < entries/callBuckets {
			t.Errorf("calls that read the former sums: got %d, want at least %d", got, entries/callBuckets)
		}
		for i := range 3 {
			if got, want := sum(t, s, i), "packets 1, flags 2, bytes 10"; got != want {
				t.Errorf("sum of key %d: got %s, want %s", i, got, want)
			}
		}
		v, err := s.Map().LookupBytes(append(key(1), "elsewher"...))
		if err != nil || string(v) != string(value(9, 9, 9)) {
			t.Errorf("sum of another host: got %x, error %v, want it", v, err)
		}
		if got := s.Stats(); got.Full != 0 {
			t.Errorf("sums without room: got %+v, want none", got)
		}
		closeSums(t, s)
	})
}
