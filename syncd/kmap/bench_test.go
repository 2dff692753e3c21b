package kmap

import (
	"errors"
	"flag"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

var benchEntries = flag.Int("kmap.entries", 1_000_000, "entries of the benchmarks' maps")

func benchMap(b *testing.B, o Options) *Map {
	b.Helper()
	k := openMap(b, newKernelMap(b, hashSpec(48, 176, uint32(*benchEntries))), o)
	put(b, k, 0, *benchEntries, 1)
	return k
}

// perEntry reports the duration of a pass over the whole map per entry.
func perEntry(b *testing.B) {
	b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(*benchEntries), "ns/entry")
}

var benchWays = []struct {
	name string
	opts Options
}{{"program", Options{}}, {"bpf2", Options{NoProgram: true}}}

// BenchmarkApplyInTurns compares the writes to an LRU map with a common list with those to one in which each CPU has
// a share of the entries.
func BenchmarkApplyInTurns(b *testing.B) {
	for name, flags := range map[string]uint32{"common": 0, "shares": unix.BPF_F_NO_COMMON_LRU} {
		b.Run(name, func(b *testing.B) {
			spec := withFlags(withType(hashSpec(48, 176, 400_000), ebpf.LRUHash), flags)
			k := openMap(b, newKernelMap(b, spec), Options{})
			key, value := entry(0, 2, 48, 176)
			batch := k.Batch()
			n := 0
			for b.Loop() {
				for batch.Reset(); batch.Len() < batch.Cap(); n++ {
					fillKey(key, n%100_000)
					if err := batch.Add(key, value); err != nil {
						b.Fatal(err)
					}
				}
				if failed, err := k.Apply(batch); failed != 0 || err != nil {
					b.Fatalf("write the entries: got %d failed, error %v, want none", failed, err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/entry")
		})
	}
}

// BenchmarkApply writes every entry of a full map once per operation. kernel-ns/entry is the
// duration of Apply, without filling the batch.
func BenchmarkApply(b *testing.B) {
	for _, way := range benchWays {
		b.Run(way.name, func(b *testing.B) {
			k := benchMap(b, way.opts)
			key, value := entry(0, 2, 48, 176)
			batch := k.Batch()
			var inKernel time.Duration
			apply := func() {
				began := time.Now()
				if failed, err := k.Apply(batch); failed != 0 || err != nil {
					b.Fatalf("write the entries: got %d failed, error %v, want none", failed, err)
				}
				inKernel += time.Since(began)
				batch.Reset()
			}
			b.ReportAllocs()
			for b.Loop() {
				for n := range *benchEntries {
					fillKey(key, n)
					err := batch.Add(key, value)
					if errors.Is(err, ErrBatchFull) {
						apply()
						err = batch.Add(key, value)
					}
					if err != nil {
						b.Fatal(err)
					}
				}
				apply()
			}
			perEntry(b)
			b.ReportMetric(float64(inKernel)/float64(b.N)/float64(*benchEntries), "kernel-ns/entry")
		})
	}
}

// fillKey sets key to the n-th key of entry, without allocations.
func fillKey(key []byte, n int) {
	key[0], key[1], key[2], key[3] = byte(n), byte(n>>8), byte(n>>16), byte(n>>24)
	for i := 4; i < len(key); i++ {
		key[i] = byte(n + i)
	}
}

func BenchmarkForEach(b *testing.B) {
	for _, way := range benchWays {
		b.Run(way.name, func(b *testing.B) {
			k := benchMap(b, way.opts)
			b.ReportAllocs()
			for b.Loop() {
				n := 0
				err := k.ForEach(b.Context(), func(_, _ []byte) error { n++; return nil })
				if err != nil || n < *benchEntries {
					b.Fatalf("read: got %d entries, error %v, want at least %d", n, err, *benchEntries)
				}
			}
			perEntry(b)
		})
	}
}

func BenchmarkLookup(b *testing.B) {
	for _, way := range benchWays {
		b.Run(way.name, func(b *testing.B) {
			k := benchMap(b, way.opts)
			keys := make([]byte, *benchEntries*48)
			for n := range *benchEntries {
				fillKey(keys[n*48:][:48], n)
			}
			b.ReportAllocs()
			for b.Loop() {
				n := 0
				err := k.Lookup(keys, func(_ int, _, _ []byte, found bool) {
					if found {
						n++
					}
				})
				if err != nil || n != *benchEntries {
					b.Fatalf("look up: got %d entries, error %v, want %d", n, err, *benchEntries)
				}
			}
			perEntry(b)
		})
	}
}
