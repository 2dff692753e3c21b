package drained_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"mapsync/internal/poll"
	"mapsync/syncd/drained"
	"mapsync/syncd/kmap"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

func TestSums(t *testing.T) {
	for _, typ := range []ebpf.MapType{ebpf.Hash, ebpf.LRUHash} {
		t.Run(typ.String(), func(t *testing.T) {
			eachMethod(t, func(t *testing.T, method drained.Method) { testSums(t, typ, method) })
		})
	}
}

func testSums(t *testing.T, typ ebpf.MapType, method drained.Method) {
	o := options("")
	o.Type, o.Methods = typ, []drained.Method{method}
	s := openSums(t, o)
	m, id := newMap(t, typ)
	other, _ := newMap(t, typ)
	s.Follow(id)
	put(t, m, 1, value(1, 7, 100))
	put(t, other, 1, value(1, 1, 1))
	drain(t, m, 1000)
	drain(t, other, 1000)
	put(t, m, 1, value(2, 9, 1000))
	put(t, m, 2, value(4, 5, 6))
	v := make([]byte, valueSize)
	switch err := m.LookupAndDelete(key(1), &v); {
	case errors.Is(err, ebpf.ErrNotSupported): // before 5.14
		drain(t, m, 1000)
	case err != nil:
		t.Fatal(err)
	}
	if err := m.LookupAndDelete(key(3), &v); err == nil {
		t.Error("lookup-and-delete of an absent key: got nil, want an error")
	}
	drain(t, m, 1)
	for i, want := range map[int]string{
		1: "packets 3, flags 9, bytes 1100", 2: "packets 4, flags 5, bytes 6", 3: "none",
	} {
		if got := sum(t, s, i); got != want {
			t.Errorf("sum of key %d: got %s, want %s", i, got, want)
		}
	}
	if err := s.AddBack(key(2), value(1, 1, 1)); err != nil {
		t.Fatal(err)
	}
	if got, want := sum(t, s, 2), "packets 5, flags 1, bytes 7"; got != want {
		t.Errorf("sum of an entry that was added back: got %s, want %s", got, want)
	}
	if begun, ended := s.Calls(); !ended || begun == 0 {
		t.Errorf("calls: got %d, ended %t, want more than 0, all ended", begun, ended)
	}
	if got := s.Stats(); got.Entries != 3 || got.Unread+got.Full+got.Missed != 0 {
		t.Errorf("stats: got %+v, want 3 entries", got)
	}
}

// TestSumsOfLargeBatches drains as many entries in a call as kernels without bpf_loop can add.
func TestSumsOfLargeBatches(t *testing.T) {
	const entries, most = 20_000, 8192
	eachMethod(t, func(t *testing.T, method drained.Method) {
		o := options("")
		o.Methods = []drained.Method{method}
		s := openSums(t, o)
		m, id := newMap(t, ebpf.Hash)
		s.Follow(id)
		for round := range 2 {
			for i := range entries {
				put(t, m, i, value(1, uint32(round), uint64(i)))
			}
			if n := drain(t, m, most); n != entries {
				t.Fatalf("drained entries: got %d, want %d", n, entries)
			}
		}
		for i := range entries {
			if got, want := sum(t, s, i), fmt.Sprintf("packets 2, flags 1, bytes %d", 2*i); got != want {
				t.Fatalf("sum of key %d: got %s, want %s", i, got, want)
			}
		}
		if got := s.Stats(); got.Entries != 2*entries || got.Unread+got.Full+got.Missed != 0 {
			t.Errorf("stats: got %+v, want %d entries", got, 2*entries)
		}
	})
}

// TestSumsEqualWhatWasDrained lets two collectors drain a map into which two processes put entries.
func TestSumsEqualWhatWasDrained(t *testing.T) {
	const keys, writes = 500, 20_000
	eachMethod(t, func(t *testing.T, method drained.Method) {
		o := options("")
		o.Methods = []drained.Method{method}
		s := openSums(t, o)
		m, id := newMap(t, ebpf.Hash)
		s.Follow(id)
		var made, puts [keys]atomic.Uint64 // bytes and entries of a key
		entries := uint64(0)
		var writers, collectors sync.WaitGroup
		done := make(chan struct{})
		for first := range 2 {
			writers.Go(func() {
				for i := range writes {
					k := (7*i + first) % keys
					if m.Update(key(k), value(1, 1, uint64(i)), ebpf.UpdateNoExist) == nil {
						made[k].Add(uint64(i))
						puts[k].Add(1)
					}
				}
			})
			collectors.Go(func() {
				for more := true; more; {
					select {
					case <-done:
						more = false
					default:
					}
					drain(t, m, 100)
				}
			})
		}
		writers.Wait()
		close(done)
		collectors.Wait()
		poll.Eventually(t, "the end of all calls", func() bool { _, ended := s.Calls(); return ended })
		st := s.Stats()
		for i := range made {
			origin, v := s.Origin(), make([]byte, valueSize)
			if err := s.Map().Lookup(append(key(i), origin[:]...), &v); err != nil {
				t.Fatal(err)
			}
			exact := st.Missed+st.Unread == 0 && method != drained.ByKprobe
			if got := binary.NativeEndian.Uint64(v[8:]); got > made[i].Load() || got < made[i].Load() && exact {
				t.Errorf("bytes of key %d: got %d, want %d", i, got, made[i].Load())
			}
			entries += puts[i].Load()
		}
		// A preemptible kernel skips the program while it already runs on that processor for the other collector. With
		// kprobe, it may skip both programs of a call.
		missing := entries - st.Entries
		if st.Unread > 100*maxUnread || st.Full != 0 || entries < st.Entries || missing > 100*(st.Missed+st.Unread) && method != drained.ByKprobe {
			t.Errorf("stats: got %+v, %d entries missing, want at most 100 for each missed or unread call, and %d unread", st, missing, 100*maxUnread)
		}
	})
}

// TestFollowDuringCalls follows another map and the first one again while it is drained.
func TestFollowDuringCalls(t *testing.T) {
	eachMethod(t, func(t *testing.T, method drained.Method) {
		o := options("")
		o.Methods = []drained.Method{method}
		s := openSums(t, o)
		m, id := newMap(t, ebpf.Hash)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for range 50 {
				for i := range 200 {
					put(t, m, i, value(1, 1, 1))
				}
				drain(t, m, 1000)
			}
		}()
		for running := true; running; {
			select {
			case <-done:
				running = false
			default:
				s.Follow(0)
				time.Sleep(time.Millisecond) // the map is not followed for this time
				s.Follow(id)
				time.Sleep(time.Millisecond) // the map is followed for this time
			}
		}
		_, ended := s.Calls()
		if st := s.Stats(); method != drained.ByKprobe && (!ended || st.Missed != 0 || st.Full != 0) {
			t.Errorf("calls: got all ended %t, %+v, want true and no missed calls", ended, st)
		}
	})
}

// TestRefusedCallsAddNothing: a call that the kernel refuses leaves the caller's number of entries as it is.
func TestRefusedCallsAddNothing(t *testing.T) {
	eachMethod(t, func(t *testing.T, method drained.Method) {
		o := options("")
		o.Methods = []drained.Method{method}
		s := openSums(t, o)
		m, id := newMap(t, ebpf.Hash)
		s.Follow(id)
		var keys [3 * keySize]byte
		var values [3 * valueSize]byte
		attr := struct {
			inBatch, outBatch, keys, values uint64
			count, fd                       uint32
			rest                            [128]byte
		}{keys: uint64(uintptr(unsafe.Pointer(&keys))), values: uint64(uintptr(unsafe.Pointer(&values))), count: 3, fd: uint32(m.FD())}
		attr.rest[120] = 1 // bytes that this kernel does not support
		const lookupAndDeleteBatch = 25
		_, _, errno := unix.Syscall(unix.SYS_BPF, lookupAndDeleteBatch, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
		runtime.KeepAlive(&keys)
		if errno != unix.E2BIG && errno != unix.EINVAL {
			t.Fatalf("refused call: got %v, want E2BIG or EINVAL", errno)
		}
		if _, ended := s.Calls(); !ended || s.Stats() != (drained.Stats{}) {
			t.Errorf("stats after a refused call: got %+v, all ended %t, want none", s.Stats(), ended)
		}
	})
}

// TestSumsCountWhatIsMissing drains more keys than the sums have room for.
func TestSumsCountWhatIsMissing(t *testing.T) {
	eachMethod(t, func(t *testing.T, method drained.Method) {
		o := options("")
		o.Methods, o.MaxEntries = []drained.Method{method}, 100
		s := openSums(t, o)
		m, id := newMap(t, ebpf.Hash)
		s.Follow(id)
		for i := range 150 {
			put(t, m, i, value(1, 1, 1))
		}
		drain(t, m, 1000)
		if got := s.Stats(); got.Entries != 100 || got.Full != 50 || got.Unread+got.Missed != 0 {
			t.Errorf("stats: got %+v, want 100 entries and 50 without room", got)
		}
	})
}

// TestSumsCountAnEntryWithoutCopy: a single lookup-and-delete whose value the kernel cannot copy has deleted the entry.
func TestSumsCountAnEntryWithoutCopy(t *testing.T) {
	eachMethod(t, func(t *testing.T, method drained.Method) {
		o := options("")
		o.Methods = []drained.Method{method}
		s := openSums(t, o)
		m, id := newMap(t, ebpf.Hash)
		s.Follow(id)
		put(t, m, 1, value(1, 1, 1))
		k := key(1)
		attr := struct {
			fd, _             uint32
			key, value, flags uint64
		}{fd: uint32(m.FD()), key: uint64(uintptr(unsafe.Pointer(&k[0]))), value: 8} // no memory
		_, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_MAP_LOOKUP_AND_DELETE_ELEM, uintptr(unsafe.Pointer(&attr)), unsafe.Sizeof(attr))
		runtime.KeepAlive(k)
		if errno == unix.ENOTSUP || errno == 524 { // ENOTSUPP: before 5.14
			t.Skip("this kernel has no single lookup-and-delete for hash maps")
		}
		var v []byte
		if err := m.Lookup(key(1), &v); errno != unix.EFAULT || !errors.Is(err, ebpf.ErrKeyNotExist) {
			t.Fatalf("lookup-and-delete: got %v, then error %v of a lookup, want %v and %v", errno, err, unix.EFAULT, ebpf.ErrKeyNotExist)
		}
		if got := s.Stats(); got.Entries+got.Unread+got.Missed != 1 {
			t.Errorf("stats: got %+v, want the entry in a sum, or 1 that is missing", got)
		}
	})
}

func TestOpenRefuses(t *testing.T) {
	for name, change := range map[string]func(o *drained.Options){
		"type":    func(o *drained.Options) { o.Type = ebpf.PerCPUHash },
		"no sum":  func(o *drained.Options) { o.Added = nil },
		"size":    func(o *drained.Options) { o.Added = []drained.Range{{Offset: 0, Size: 2}} },
		"place":   func(o *drained.Options) { o.Added = []drained.Range{{Offset: 4, Size: 8}} },
		"end":     func(o *drained.Options) { o.Added = []drained.Range{{Offset: 16, Size: 8}} },
		"key":     func(o *drained.Options) { o.KeySize = drained.MaxKeySize + 1 },
		"value":   func(o *drained.Options) { o.ValueSize = 4097 },
		"methods": func(o *drained.Options) { o.Methods = nil },
	} {
		o := options("")
		change(&o)
		if s, err := drained.Open(o); !errors.Is(err, drained.ErrUnsupported) {
			t.Errorf("%s: got %v, error %v, want ErrUnsupported", name, s, err)
		}
	}
}

// TestKeySizeIsLimited: syncd refuses a key that would be too large for a replicated map with the origin, before it attaches
// or pins anything.
func TestKeySizeIsLimited(t *testing.T) {
	eachMethod(t, func(t *testing.T, method drained.Method) {
		o := options(filepath.Join(mountBPF(t), "flows"))
		o.Methods, o.KeySize, o.MaxEntries = []drained.Method{method}, 505, 10
		s, err := drained.Open(o)
		if want := "its key has 505 bytes, more than 504"; !errors.Is(err, drained.ErrUnsupported) || !strings.HasSuffix(err.Error(), want) {
			t.Fatalf("keys of 505 bytes: got %v, error %v, want the error %q", s, err, want)
		}
		if _, err := os.Stat(o.Folder); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("folder of pins: got error %v, want %v", err, os.ErrNotExist)
		}
		o.KeySize = 504
		if info, err := kmap.Describe(openSums(t, o).Map()); err != nil || info.Unsupported != nil {
			t.Errorf("sums of keys of 504 bytes: got %v, error %v, want a map that can be replicated", info.Unsupported, err)
		}
	})
}

// BenchmarkDrain measures a batch lookup-and-delete of 1,000 entries, without and with sums, in ns an entry.
func BenchmarkDrain(b *testing.B) {
	const entries = 1000
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: keySize, ValueSize: valueSize, MaxEntries: 2 * entries})
	if err != nil {
		b.Fatal(err)
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		b.Fatal(err)
	}
	id, _ := info.ID()
	keys, values := make([][keySize]byte, entries), make([][valueSize]byte, entries)
	for i := range keys {
		copy(keys[i][:], key(i))
	}
	run := func(b *testing.B) {
		var spent time.Duration
		for range b.N {
			if _, err := m.BatchUpdate(keys, values, nil); err != nil {
				b.Fatal(err)
			}
			out, outValues := make([][keySize]byte, 2*entries), make([][valueSize]byte, 2*entries)
			began := time.Now()
			var cursor ebpf.MapBatchCursor
			if n, err := m.BatchLookupAndDelete(&cursor, out, outValues, nil); n != entries {
				b.Fatalf("drained entries: got %d, error %v, want %d", n, err, entries)
			}
			spent += time.Since(began)
		}
		b.ReportMetric(float64(spent.Nanoseconds())/float64(b.N)/entries, "ns/entry")
	}
	b.Run("off", run)
	for _, method := range []drained.Method{drained.ByFexit, drained.ByKprobe, drained.BySyscall} {
		b.Run(string(method), func(b *testing.B) {
			o := options("")
			o.Methods = []drained.Method{method}
			s, err := drained.Open(o)
			if err != nil {
				b.Skip(err)
			}
			defer s.Close()
			s.Follow(uint32(id))
			run(b)
		})
	}
}
