package kmap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// needBuckets fails the test if the map is not read bucket by bucket. All supported kernels can do that.
func needBuckets(t *testing.T, k *Map) {
	t.Helper()
	if got := k.AccessMethods(); got.Read != ByBuckets {
		t.Fatalf("access methods: got %+v, want reads by %s", got, ByBuckets)
	}
}

// TestReadWhileEntriesMove reads a map while another thread deletes and stores entries, so that the kernel
// reuses their elements for other keys. Each read returns the entries that stay, and no value of another
// key.
func TestReadWhileEntriesMove(t *testing.T) {
	const stay, move = 10, 40
	for name, spec := range map[string]*ebpf.MapSpec{
		"hash":        hashSpec(48, 4000, stay+move),
		"no prealloc": withFlags(hashSpec(48, 176, stay+move), noPrealloc),
		"lru":         withType(hashSpec(48, 176, 20*(stay+move)), ebpf.LRUHash),
		"lock":        lockSpec(176, 36, stay+move),
	} {
		t.Run(name, func(t *testing.T) {
			k := openMap(t, newKernelMap(t, spec), Options{})
			needBuckets(t, k)
			put(t, k, 0, stay, 1)
			moveEntries(t, k, stay, stay+move)
			reads := 5000
			if testing.Short() {
				reads = 1000
			}
			for range reads {
				seen := map[int]bool{}
				err := k.ForEach(t.Context(), func(key, value []byte) error {
					n := int(binary.LittleEndian.Uint32(key))
					_, want := entry(n, 1, k.info.KeySize, k.info.ValueSize)
					if want = k.expectedLookup(want); string(value) != string(want) {
						return fmt.Errorf("entry %d: got %x, want %x", n, value, want)
					}
					seen[n] = true
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				for n := range stay {
					if !seen[n] {
						t.Fatalf("entry %d: got none, want one", n)
					}
				}
			}
		})
	}
}

// TestReadDuringFailedUpdates reads an LRU map while another thread makes updates that fail. The kernel
// writes their keys and values into free elements, which it never links. On a busy host, an element may be
// removed, written by a failing update and inserted again under its former key while a preempted program copies its
// value. Measured there: 1 of 40,000 reads.
func TestReadDuringFailedUpdates(t *testing.T) {
	const stay, absent = 45, 1000
	for name, c := range map[string]struct {
		first int
		flags uint64
		want  unix.Errno
	}{
		"present": {0, unix.BPF_NOEXIST, unix.EEXIST},
		"absent":  {absent, unix.BPF_EXIST, unix.ENOENT},
	} {
		t.Run(name, func(t *testing.T) {
			k := openMap(t, newKernelMap(t, withType(hashSpec(48, 4000, 64), ebpf.LRUHash)), Options{})
			needBuckets(t, k)
			put(t, k, 0, stay, 1)
			var keys, values [stay][]byte // computed before, because the loop below must be fast
			for n := range stay {
				keys[n], values[n] = entry(c.first+n, 2, 48, 4000)
			}
			moving, value := entry(stay, 1, 48, 4000)
			whileOther(t, func() error {
				for n := range stay {
					err := mapElem(cmdMapUpdateElem, k.m.FD(), moving, value, 0)
					if err == nil {
						err = mapElem(cmdMapDeleteElem, k.m.FD(), moving, nil, 0)
					}
					if err != nil {
						return err
					}
					if err := mapElem(cmdMapUpdateElem, k.m.FD(), keys[n], values[n], c.flags); !errors.Is(err, c.want) {
						return fmt.Errorf("update: got error %w, want %w", err, c.want)
					}
				}
				return nil
			})
			reads := 4000
			if testing.Short() {
				reads = 1000
			}
			var torn []error
			for range reads {
				err := k.ForEach(t.Context(), func(key, value []byte) error {
					n := int(binary.LittleEndian.Uint32(key))
					if _, want := entry(n, 1, 48, 4000); n >= absent || string(value) != string(want) {
						return fmt.Errorf("entry %d: got %.20x, want %.20x, and none from %d on", n, value, want, absent)
					}
					return nil
				})
				if err != nil {
					torn = append(torn, err)
				}
			}
			if len(torn) > reads/1000 {
				t.Errorf("reads with a wrong entry: got %d of %d, want at most 1 in 1000: %v", len(torn), reads, torn[0])
			}
		})
	}
}

// whileOther repeats work in another goroutine until the end of the test.
func whileOther(t *testing.T, work func() error) {
	var quit atomic.Bool
	var wg sync.WaitGroup
	t.Cleanup(func() {
		quit.Store(true)
		wg.Wait()
	})
	wg.Go(func() {
		for !quit.Load() {
			if err := work(); err != nil {
				t.Error(err)
				return
			}
		}
	})
}

// moveEntries stores and deletes the entries [from, to) by bpf(2) until the end of the test.
func moveEntries(t *testing.T, k *Map, from, to int) {
	whileOther(t, func() error {
		for n := from; n < to; n++ {
			key, value := entry(n, 1, k.info.KeySize, k.info.ValueSize)
			last, _ := entry(from+(n-from+37)%(to-from), 1, k.info.KeySize, k.info.ValueSize)
			err := mapElem(cmdMapUpdateElem, k.m.FD(), key, value, k.lookupFlags())
			if err == nil {
				err = mapElem(cmdMapDeleteElem, k.m.FD(), last, nil, 0)
			}
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
		return nil
	})
}

// TestReadOfSparseMap checks that one call of the program passes a limited number of empty buckets, and
// that each entry is returned once.
func TestReadOfSparseMap(t *testing.T) {
	const buckets = 1 << 20
	for name, spec := range map[string]*ebpf.MapSpec{
		"hash":         withFlags(hashSpec(8, 16, buckets), noPrealloc),
		"without seed": withFlags(hashSpec(8, 16, buckets), noPrealloc|unix.BPF_F_ZERO_SEED),
		"lock":         withFlags(lockSpec(64, 8, buckets), noPrealloc),
		"large lock":   withFlags(lockSpec(8192, 8, buckets), noPrealloc),
		"per-CPU":      withFlags(perCPUSpec(ebpf.PerCPUHash, 8, 16, buckets), noPrealloc),
		"per-CPU LRU":  perCPUSpec(ebpf.LRUCPUHash, 8, 8, buckets/4), // its entries are preallocated
	} {
		t.Run(name, func(t *testing.T) { testReadOfSparseMap(t, spec) })
	}
}

func testReadOfSparseMap(t *testing.T, spec *ebpf.MapSpec) {
	k := openMap(t, newKernelMap(t, spec), Options{})
	needBuckets(t, k)
	for _, fill := range []int{0, 1, 100} {
		put(t, k, 0, fill, 1)
		calls, entries := 0, 0
		err := k.Read(t.Context(), now, func(_ int64, keys, _ []byte) error {
			calls++
			entries += len(keys) / k.info.KeySize
			return nil
		})
		if least := int(spec.MaxEntries) / callBuckets; err != nil || calls < least || entries != fill {
			t.Errorf("read: got %d entries in %d calls, error %v, want %d in at least %d", entries, calls, err, fill, least)
		}
	}
}

// TestReadIsNoUse: a scan of an LRU map does not count as a use of its entries. The kernel still evicts those that nothing
// has used since they were written, before the others.
func TestReadIsNoUse(t *testing.T) {
	const n, used = 4000, 1000
	for _, typ := range []ebpf.MapType{ebpf.LRUHash, ebpf.LRUCPUHash} {
		t.Run(typ.String(), func(t *testing.T) {
			k := openMap(t, newKernelMap(t, perCPUSpec(typ, 8, 16, n)), Options{})
			put(t, k, 0, n, 1)
			put(t, k, 0, used, 2) // an update is a use
			before := content(t, k)
			put(t, k, n, n+n/2, 1)
			after := content(t, k)
			had, left := 0, 0
			for i := range used {
				key, _ := entry(i, 1, 8, 0)
				if before[string(key)] != "" {
					had++
				}
				if after[string(key)] != "" {
					left++
				}
			}
			// The kernel keeps its lists for each CPU. A change of the CPU may cost some used entries.
			if had < used/2 || left < had*95/100 {
				t.Errorf("used entries: got %d of %d before evictions and %d after them, want at least half, and 95 %% of them", had, used, left)
			}
		})
	}
}

// TestReadOfFullBucket checks that a bucket with more entries than a call can return is an error, not an
// endless read.
func TestReadOfFullBucket(t *testing.T) {
	k := openMap(t, newKernelMap(t, hashSpec(8, 16, 256)), Options{})
	needBuckets(t, k)
	put(t, k, 0, 256, 1) // some bucket has two entries: 256 entries do not fill 256 buckets evenly
	if err := k.closeBucketReader(); err != nil {
		t.Fatal(err)
	}
	if err := k.openBucketReader(1, false); err != nil {
		t.Fatal(err)
	}
	err := k.ForEach(t.Context(), func(_, _ []byte) error { return nil })
	if !errors.Is(err, errBucket) {
		t.Errorf("read with one slot: got error %v, want errBucket", err)
	}
}

// TestReadWithoutSeed checks that a map whose keys can be chosen to share a bucket is read by another method if a
// bucket has too many entries.
func TestReadWithoutSeed(t *testing.T) {
	for name, spec := range map[string]*ebpf.MapSpec{
		"hash": hashSpec(8, 16, 256), "lock": lockSpec(176, 36, 256), "large lock": lockSpec(8192, 36, 256),
	} {
		t.Run(name, func(t *testing.T) {
			k := openMap(t, newKernelMap(t, withFlags(spec, unix.BPF_F_ZERO_SEED)), Options{})
			needBuckets(t, k)
			testRoundTrip(t, k)
			if iterates := iteratorOr(t, ByBatch) == ByIterator; (k.dumper != nil) != iterates {
				t.Errorf("iterator: got %v, want %v", k.dumper != nil, iterates)
			}
			if err := k.closeBucketReader(); err != nil {
				t.Fatal(err)
			}
			// Some bucket has two entries, as in TestReadOfFullBucket.
			if err := k.openBucketReader(1, k.readsKeys()); err != nil {
				t.Fatal(err)
			}
			testRoundTrip(t, k)
		})
	}
}
