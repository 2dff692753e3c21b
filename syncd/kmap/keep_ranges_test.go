package kmap

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/cilium/ebpf"

	"mapsync/syncd/table"
)

func TestMergeRanges(t *testing.T) {
	for _, c := range []struct{ in, want []table.Range }{
		{nil, nil},
		{[]table.Range{{Offset: 0, Size: 16}}, []table.Range{{Offset: 0, Size: 16}}},
		{
			[]table.Range{{Offset: 8, Size: 2}, {Offset: 0, Size: 4}, {Offset: 4, Size: 1}, {Offset: 9, Size: 7}, {Offset: 1, Size: 1}},
			[]table.Range{{Offset: 0, Size: 5}, {Offset: 8, Size: 8}},
		},
	} {
		before := slices.Clone(c.in)
		if got, err := mergeRanges(c.in, 16); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("mergeRanges(%v): got %v, error %v, want %v and nil", c.in, got, err, c.want)
		}
		if !slices.Equal(c.in, before) {
			t.Errorf("the caller's ranges: got %v, want %v", c.in, before)
		}
	}
	for _, bad := range []table.Range{
		{Offset: -1, Size: 2},
		{Offset: 0, Size: 0},
		{Offset: 0, Size: -1},
		{Offset: 16, Size: 1},
		{Offset: 8, Size: 9},
		{Offset: 8, Size: math.MaxInt},
		{Offset: math.MaxInt, Size: 1},
	} {
		if _, err := mergeRanges([]table.Range{bad}, 16); err == nil {
			t.Errorf("mergeRanges(%+v): got no error, want an error", bad)
		}
		if _, err := Open(newKernelMap(t, hashSpec(8, 16, 1)), Options{Keep: []table.Range{bad}}); err == nil {
			t.Errorf("open map with range %+v: got no error, want an error", bad)
		}
	}
}

// sparseRanges returns n ranges of one byte, each followed by a gap.
func sparseRanges(n, pace int) (ranges []table.Range) {
	for i := range n {
		ranges = append(ranges, table.Range{Offset: i * pace, Size: 1})
	}
	return ranges
}

func TestKeepRanges(t *testing.T) {
	few := []table.Range{{Offset: 40, Size: 8}, {Offset: 0, Size: 3}, {Offset: 61, Size: 3}}
	for _, c := range []struct {
		name string
		spec *ebpf.MapSpec
		opts Options
		want AccessMethod
	}{
		{"program", hashSpec(16, 64, 3000), Options{Keep: few}, ByProgram},
		{"whole value", hashSpec(16, 64, 3000), Options{Keep: []table.Range{{Offset: 0, Size: 64}}}, ByProgram},
		{"lru", withType(hashSpec(16, 64, 20000), ebpf.LRUHash), Options{Keep: few}, ByProgram},
		{"lock", lockSpec(64, 8, 3000), Options{Keep: few}, ByProgram},
		{"kept lock", lockSpec(64, 8, 3000), Options{Keep: []table.Range{{Offset: 4, Size: 12}}}, ByProgram},
		{"most ranges", hashSpec(16, 4096, 300), Options{Keep: sparseRanges(keepRanges, 8)}, ByProgram},
		{"too many ranges", hashSpec(16, 4096, 300), Options{Keep: sparseRanges(keepRanges+1, 7)}, ByBatch},
		{"bpf(2)", hashSpec(16, 64, 3000), Options{Keep: few, NoProgram: true}, ByBatch},
		{"bpf(2) lock", lockSpec(64, 8, 3000), Options{Keep: few, NoProgram: true}, ByBatch},
		{"per-CPU", perCPUSpec(ebpf.PerCPUHash, 16, 64, 3000), Options{Keep: few}, ByBatch},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := openMap(t, newKernelMap(t, c.spec), c.opts)
			if k.accessMethods.Write != c.want || (c.want == ByProgram) != (k.accessMethods.Reason == nil) {
				t.Errorf("write method: got %s, reason %v, want %s, and a reason unless it is %s",
					k.accessMethods.Write, k.accessMethods.Reason, c.want, ByProgram)
			}
			testKeep(t, k, c.opts.Keep)
			if k.syscallWriter != nil {
				k.syscallWriter.batched = false
				testKeep(t, k, c.opts.Keep)
			}
		})
	}
}

// testKeep writes and deletes entries with kept ranges. It leaves k empty.
func testKeep(t *testing.T, k *Map, keep []table.Range) {
	t.Helper()
	n := k.info.MaxEntries / 10
	put(t, k, 0, n, 1) // new entries: nothing to keep
	checkContent(t, k, 0, n, 1)
	put(t, k, 0, 2*n, 2)
	checkKept(t, k, keep, 0, n, 1, 2)
	checkKept(t, k, keep, n, 2*n, 2, 2)
	put(t, k, 0, n, -1)
	put(t, k, 0, 2*n, 3) // some entries are new again
	checkKept(t, k, keep, 0, n, 3, 3)
	checkKept(t, k, keep, n, 2*n, 2, 3)
	put(t, k, 0, 2*n, -1)
	checkContent(t, k, 0, 0, 0)
}

// checkKept checks that entries [from, to) have generation g, except for the kept ranges, which
// have generation kept.
func checkKept(t *testing.T, k *Map, keep []table.Range, from, to, kept, g int) {
	t.Helper()
	for n := from; n < to; n++ {
		key, want := entry(n, g, k.info.KeySize, k.info.ValueSize)
		_, older := entry(n, kept, k.info.KeySize, k.info.ValueSize)
		for _, r := range keep {
			copy(want[r.Offset:][:r.Size], older[r.Offset:])
		}
		if got, err := k.fromKernel(key); err != nil || !bytes.Equal(got, k.expectedLookup(want)) {
			t.Fatalf("look up entry %d: error %v, got %x, want %x", n, err, got, k.expectedLookup(want))
		}
	}
}

// TestKeepPreservesInPlaceChanges checks that an update preserves a kept range that the data plane
// changed in place.
func TestKeepPreservesInPlaceChanges(t *testing.T) {
	keep := []table.Range{{Offset: 4, Size: 4}}
	for _, o := range []Options{{Keep: keep}, {Keep: keep, NoProgram: true}} {
		k := openMap(t, newKernelMap(t, hashSpec(8, 8, 10)), o)
		put(t, k, 0, 1, 1)
		for g := range 5 {
			key, local := entry(0, 100+g, 8, 8)
			if err := k.m.Put(key, local); err != nil {
				t.Fatal(err)
			}
			put(t, k, 0, 1, g)
			checkKept(t, k, keep, 0, 1, 100+g, g)
		}
	}
}

// TestKeepFullMap checks that a batch with kept ranges fails on a full map like any other batch.
func TestKeepFullMap(t *testing.T) {
	k := openMap(t, newKernelMap(t, hashSpec(8, 8, 10)), Options{Keep: []table.Range{{Offset: 0, Size: 4}}})
	put(t, k, 0, 10, 1)
	b := k.Batch()
	for n := range 11 {
		if err := b.Add(entry(n, 2, 8, 8)); err != nil {
			t.Fatal(err)
		}
	}
	if failed, err := k.Apply(b); failed != 1 || err != nil || b.Err(10) == nil {
		t.Errorf("apply: got %d failed writes, error %v, results %v, want one failed write",
			failed, err, errors.Join(b.Err(9), b.Err(10)))
	}
	checkKept(t, k, k.keep, 0, 10, 1, 2)
}

func BenchmarkApplyKeep(b *testing.B) {
	for _, n := range []int{0, 1, 4, 16} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			k := openMap(b, newKernelMap(b, hashSpec(48, 176, uint32(*benchEntries))), Options{Keep: sparseRanges(n, 8)})
			put(b, k, 0, *benchEntries, 1)
			b.ResetTimer()
			for g := 2; b.Loop(); g++ {
				put(b, k, 0, *benchEntries, g)
			}
			perEntry(b)
		})
	}
}
