package kmap

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	// Kernels before 5.11 charge maps to the locked memory of the process.
	if err := rlimit.RemoveMemlock(); err != nil {
		panic(err)
	}
	m.Run()
}

// newKernelMap makes a map that goes with the test.
func newKernelMap(tb testing.TB, spec *ebpf.MapSpec) *ebpf.Map {
	tb.Helper()
	if spec.Name == "" {
		spec.Name = "kmap_test"
	}
	m, err := ebpf.NewMap(spec)
	if err != nil {
		tb.Fatalf("create map %+v: %v", spec, err)
	}
	tb.Cleanup(func() { m.Close() })
	return m
}

func openMap(tb testing.TB, m *ebpf.Map, o Options) *Map {
	tb.Helper()
	k, err := Open(m, o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := k.Close(); err != nil {
			tb.Error(err)
		}
	})
	return k
}

func hashSpec(key, value, entries uint32) *ebpf.MapSpec {
	return &ebpf.MapSpec{Type: ebpf.Hash, KeySize: key, ValueSize: value, MaxEntries: entries}
}

func withType(s *ebpf.MapSpec, t ebpf.MapType) *ebpf.MapSpec { s.Type = t; return s }
func withFlags(s *ebpf.MapSpec, f uint32) *ebpf.MapSpec      { s.Flags = f; return s }

// lockSpec is a map whose value is size bytes with a bpf_spin_lock at offset.
func lockSpec(size, offset, entries uint32) *ebpf.MapSpec {
	u8 := &btf.Int{Name: "unsigned char", Size: 1}
	u32 := &btf.Int{Name: "unsigned int", Size: 4}
	lock := &btf.Struct{Name: "bpf_spin_lock", Size: 4, Members: []btf.Member{{Name: "val", Type: u32}}}
	bytesOf := func(n uint32) btf.Type { return &btf.Array{Index: u32, Type: u8, Nelems: n} }
	value := &btf.Struct{Name: "locked_value", Size: size}
	if offset > 0 {
		value.Members = append(value.Members, btf.Member{Name: "head", Type: bytesOf(offset)})
	}
	value.Members = append(value.Members, btf.Member{Name: "lock", Type: lock, Offset: btf.Bits(offset * 8)})
	if tail := size - offset - 4; tail > 0 {
		value.Members = append(value.Members, btf.Member{Name: "tail", Type: bytesOf(tail), Offset: btf.Bits((offset + 4) * 8)})
	}
	s := hashSpec(16, size, entries)
	s.Key, s.Value = bytesOf(16), value
	return s
}

// entry gives the n-th key and its value of generation g: the bytes of both depend on
// both numbers, up to the last.
func entry(n, g, keySize, valueSize int) (key, value []byte) {
	key, value = make([]byte, keySize), make([]byte, valueSize)
	var number [4]byte
	binary.LittleEndian.PutUint32(number[:], uint32(n))
	copy(key, number[:])
	for i := 4; i < keySize; i++ {
		key[i] = byte(n + i)
	}
	for i := range value {
		value[i] = byte(n*7 + g*13 + i + 1)
	}
	return key, value
}

// value is what a lookup must give for an entry: a lock reads as zero.
func (k *Map) seen(value []byte) []byte {
	value = slices.Clone(value)
	if k.info.HasSpinLock {
		clear(value[k.info.LockOffset:][:4])
	}
	return value
}

// put writes entries [from, to) of generation g, or deletes them for g < 0.
func put(tb testing.TB, k *Map, from, to, g int) {
	tb.Helper()
	b := k.Batch()
	apply := func() {
		failed, err := k.Apply(b)
		if err != nil || failed != 0 {
			tb.Fatalf("apply: %d failed, %v; first: %v", failed, err, b.Err(0))
		}
		b.Reset()
	}
	for n := from; n < to; n++ {
		key, value := entry(n, g, k.info.KeySize, k.info.ValueSize)
		if g < 0 {
			value = nil
		}
		err := b.Add(key, value)
		if errors.Is(err, ErrBatchFull) {
			apply()
			err = b.Add(key, value)
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
	apply()
}

// content reads the whole map by ForEach.
func content(tb testing.TB, k *Map) map[string]string {
	tb.Helper()
	all := map[string]string{}
	err := k.ForEach(context.Background(), func(key, value []byte) error {
		all[string(key)] = string(value)
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return all
}

// checkContent checks that ForEach, Lookup and bpf(2) itself all give exactly the
// entries [from, to) of generation g.
func checkContent(t *testing.T, k *Map, from, to, g int) {
	t.Helper()
	all := content(t, k)
	if len(all) != to-from {
		t.Errorf("ForEach: %d entries, want %d", len(all), to-from)
	}
	var keys []byte
	var want [][]byte
	got := make([]byte, k.info.ValueSize)
	for n := from; n < to; n++ {
		key, value := entry(n, g, k.info.KeySize, k.info.ValueSize)
		value = k.seen(value)
		if all[string(key)] != string(value) {
			t.Fatalf("ForEach: entry %d differs:\n%x\n%x", n, all[string(key)], value)
		}
		if err := k.m.LookupWithFlags(key, got, k.lookupFlags()); err != nil || !bytes.Equal(got, value) {
			t.Fatalf("bpf(2): entry %d: %v, %x, want %x", n, err, got, value)
		}
		keys, want = append(keys, key...), append(want, value)
	}
	absent, _ := entry(to+1, 0, k.info.KeySize, k.info.ValueSize)
	keys = append(keys, absent...)
	calls := 0
	err := k.Lookup(keys, func(i int, key, value []byte, found bool) {
		if i != calls || !bytes.Equal(key, keys[i*k.info.KeySize:][:k.info.KeySize]) {
			t.Errorf("Lookup: call %d is for key %d", calls, i)
		}
		calls++
		if i == len(want) {
			if found || value != nil {
				t.Errorf("Lookup: absent key found")
			}
		} else if !found || !bytes.Equal(value, want[i]) {
			t.Errorf("Lookup: entry %d: %v, %x, want %x", i, found, value, want[i])
		}
	})
	if err != nil || calls != len(want)+1 {
		t.Fatalf("Lookup: %d calls, %v", calls, err)
	}
}

const noPrealloc = unix.BPF_F_NO_PREALLOC

func TestRoundTrip(t *testing.T) {
	program := Method{Read: ByIterator, Lookup: ByProgram, Write: ByProgram}
	for _, c := range []struct {
		name string
		spec *ebpf.MapSpec
		opts Options
		want Method
	}{
		{"4+4", hashSpec(4, 4, 3000), Options{}, program},
		{"odd 5+3", hashSpec(5, 3, 3000), Options{}, program},
		{"odd 13+1", hashSpec(13, 1, 3000), Options{}, program},
		{"flow 48+176", hashSpec(48, 176, 20000), Options{}, program},
		{"largest", hashSpec(512, 4096, 2500), Options{}, program},
		{"odd large", hashSpec(509, 4093, 1500), Options{}, program},
		{"no prealloc", withFlags(hashSpec(16, 64, 3000), noPrealloc), Options{}, program},
		{"lru", withType(hashSpec(16, 64, 20000), ebpf.LRUHash), Options{}, program},
		{"small burst", hashSpec(16, 64, 3000), Options{Burst: 17}, program},
		{"lock first", lockSpec(176, 0, 3000), Options{}, program},
		{"lock inside", lockSpec(176, 36, 3000), Options{}, program},
		{"lock largest", lockSpec(4096, 4092, 1200), Options{}, program},
		{
			"programs may not write", withFlags(hashSpec(16, 64, 3000), unix.BPF_F_RDONLY_PROG),
			Options{},
			Method{Read: ByIterator, Lookup: ByProgram, Write: ByBatch},
		},
		{"programs may not read in place", withFlags(hashSpec(16, 64, 3000), unix.BPF_F_WRONLY_PROG), Options{}, program},
		{
			"bpf(2)", hashSpec(48, 176, 3000),
			Options{NoProgram: true},
			Method{Read: ByBatch, Lookup: BySingle, Write: ByBatch},
		},
		{
			"bpf(2) lock", lockSpec(64, 8, 3000),
			Options{NoProgram: true},
			Method{Read: ByBatch, Lookup: BySingle, Write: ByBatch},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := openMap(t, newKernelMap(t, c.spec), c.opts)
			got := k.Method()
			t.Log(got.Reason)
			if (got.Reason == nil) != (c.want == program) {
				t.Errorf("reason: %v", got.Reason)
			}
			if got.Reason = nil; got != c.want {
				t.Errorf("method %+v, want %+v", got, c.want)
			}
			testRoundTrip(t, k)
		})
	}
}

func TestRoundTripSingle(t *testing.T) {
	for _, spec := range []*ebpf.MapSpec{hashSpec(13, 27, 500), lockSpec(64, 8, 500)} {
		k := openMap(t, newKernelMap(t, spec), Options{NoProgram: true})
		k.method.Read, k.method.Write, k.bulk.batched = BySingle, BySingle, false
		testRoundTrip(t, k)
	}
}

func testRoundTrip(t *testing.T, k *Map) {
	n := k.info.MaxEntries
	if k.info.Type == ebpf.LRUHash {
		n /= 10 // per-CPU free lists evict long before it is full
	}
	checkContent(t, k, 0, 0, 0)
	put(t, k, 0, n, 1)
	checkContent(t, k, 0, n, 1)
	put(t, k, 0, n, 2)
	checkContent(t, k, 0, n, 2)
	put(t, k, n/2, n+1, -1) // the last is absent
	checkContent(t, k, 0, n/2, 2)
	put(t, k, 0, n/2, -1)
	checkContent(t, k, 0, 0, 0)
}

// A batch keeps its order, and an update and a delete of one key in it too.
func TestBatchOrder(t *testing.T) {
	for _, o := range []Options{{}, {NoProgram: true}} {
		k := openMap(t, newKernelMap(t, hashSpec(4, 4, 10)), o)
		k1, v1 := entry(1, 1, 4, 4)
		k2, v2 := entry(2, 1, 4, 4)
		_, v3 := entry(2, 3, 4, 4)
		b := k.Batch()
		for _, w := range [][2][]byte{{k1, v1}, {k1, nil}, {k2, nil}, {k2, v2}, {k2, v3}} {
			if err := b.Add(w[0], w[1]); err != nil {
				t.Fatal(err)
			}
		}
		if failed, err := k.Apply(b); failed != 0 || err != nil {
			t.Fatal(failed, err)
		}
		if all := content(t, k); len(all) != 1 || all[string(k2)] != string(v3) {
			t.Errorf("content: %x", all)
		}
	}
}

func TestFullMap(t *testing.T) {
	for _, o := range []Options{{}, {NoProgram: true}} {
		t.Run(fmt.Sprint(o.NoProgram), func(t *testing.T) {
			k := openMap(t, newKernelMap(t, hashSpec(8, 8, 100)), o)
			put(t, k, 0, 100, 1)
			b := k.Batch()
			for n := 90; n < 110; n++ { // ten that are there, ten that are not
				if err := b.Add(entry(n, 2, 8, 8)); err != nil {
					t.Fatal(err)
				}
			}
			gone, _ := entry(0, 0, 8, 8)
			if err := b.Add(gone, nil); err != nil {
				t.Fatal(err)
			}
			failed, err := k.Apply(b)
			if failed != 10 || err != nil {
				t.Fatalf("%d failed, %v", failed, err)
			}
			for i := range b.Len() {
				if err := b.Err(i); (i >= 10 && i < 20) != errors.Is(err, unix.E2BIG) || (err != nil) != (i >= 10 && i < 20) {
					t.Errorf("entry %d: %v", i, err)
				}
			}
			if got := len(content(t, k)); got != 99 {
				t.Errorf("%d entries, want 99", got)
			}
		})
	}
}

// Memory for the entries of such a map comes from per-CPU lists that the kernel fills
// in the background: a burst must not fail because it was faster.
func TestNoPreallocBulk(t *testing.T) {
	k := openMap(t, newKernelMap(t, withFlags(hashSpec(48, 176, 60000), noPrealloc)), Options{})
	put(t, k, 0, 60000, 1)
	put(t, k, 0, 60000, 2)
	if n := len(content(t, k)); n != 60000 {
		t.Errorf("%d entries", n)
	}
	put(t, k, 0, 60000, -1)
	checkContent(t, k, 0, 0, 0)
}

func TestBatchRefuses(t *testing.T) {
	k := openMap(t, newKernelMap(t, hashSpec(8, 8, 100)), Options{Burst: 16})
	b := k.Batch()
	for _, w := range [][2]int{{7, 8}, {9, 8}, {8, 7}, {8, 9}, {8, 0}} {
		if b.Add(make([]byte, w[0]), make([]byte, w[1])) == nil {
			t.Errorf("write of %v bytes taken", w)
		}
	}
	for n := range 16 {
		if err := b.Add(entry(n, 0, 8, 8)); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Add(entry(16, 0, 8, 8)); !errors.Is(err, ErrBatchFull) {
		t.Errorf("full batch: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, spec := range []*ebpf.MapSpec{
		{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1},
		{Type: ebpf.PerCPUHash, KeySize: 4, ValueSize: 4, MaxEntries: 1},
		hashSpec(8, MaxValueSize+1, 1),
	} {
		_, err := Open(newKernelMap(t, spec), Options{})
		if !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s %d+%d: %v", spec.Type, spec.KeySize, spec.ValueSize, err)
		}
		t.Log(err)
	}
}

// Without the privilege to read BTF by id the lock is found all the same.
func TestLockSearched(t *testing.T) {
	for _, offset := range []uint32{0, 36, 172} {
		k := openMap(t, newKernelMap(t, lockSpec(176, offset, 1000)), Options{})
		if err := k.looker.close(); err != nil {
			t.Fatal(err)
		}
		k.info.LockOffset = -1
		if err := k.openLooker(&Options{}); err != nil || k.info.LockOffset != int(offset) {
			t.Fatalf("lock at %d, want %d: %v", k.info.LockOffset, offset, err)
		}
		testRoundTrip(t, k)
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
			i.ValueSize != int(c.spec.ValueSize) || i.ID == 0 || i.Supported != nil || (i.BTFID != 0) != c.lock {
			t.Errorf("%+v", i)
		}
	}
}
