package kmap

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/rlimit"
)

func TestMain(m *testing.M) {
	// Kernels before 5.11 charge maps to the process's limit of locked memory.
	if err := rlimit.RemoveMemlock(); err != nil {
		panic(err)
	}
	m.Run()
}

// iteratorOr returns ByIterator if the kernel loads iterators, as every kernel of the matrix does, and
// otherwise the given method. Some hosts refuse all programs of this type.
func iteratorOr(tb testing.TB, other AccessMethod) AccessMethod {
	tb.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Tracing, AttachType: ebpf.AttachTraceIter, AttachTo: "bpf_map_elem", License: "GPL",
		Instructions: asm.Instructions{asm.LoadImm(asm.R0, 0, asm.DWord), asm.Return()},
	})
	switch {
	case err == nil:
		p.Close()
		return ByIterator
	case os.Getenv("MAPSYNC_KERNEL") != "":
		tb.Fatal("load an iterator on a kernel of the matrix: ", err)
	}
	tb.Log("this kernel loads no iterators: ", err)
	return other
}

// withoutBuckets makes k read by iterator, or by batch on a kernel without iterators.
func withoutBuckets(tb testing.TB, k *Map) {
	tb.Helper()
	if err := k.closeBucketReader(); err != nil {
		tb.Fatal(err)
	}
	if k.dumper == nil && iteratorOr(tb, ByBatch) == ByIterator {
		if err := k.openDumper(); err != nil {
			tb.Fatal(err)
		}
	}
}

// newKernelMap creates a map that is closed at the end of the test.
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

// lockSpec is a map with values of size bytes that contain a bpf_spin_lock at offset.
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

// entry returns the n-th key and its value of generation g. Each byte of the value depends on n and
// g.
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

// expectedLookup returns the expected lookup result of an entry: the lock and the padding between
// the values of CPUs read as zero.
func (k *Map) expectedLookup(value []byte) []byte {
	value = slices.Clone(value)
	if k.info.HasSpinLock {
		clear(value[k.info.LockOffset:][:4])
	}
	for at := range value {
		if k.info.CPUs > 0 && at%pad8(k.info.ElemSize) >= k.info.ElemSize {
			value[at] = 0
		}
	}
	return value
}

// fromKernel reads an entry by the library, independently of the code under test.
func (k *Map) fromKernel(key []byte) ([]byte, error) {
	if k.info.CPUs == 0 {
		value := make([]byte, k.info.ValueSize)
		err := k.m.LookupWithFlags(key, value, ebpf.MapLookupFlags(k.lookupFlags()))
		return value, err
	}
	var values [][]byte
	if err := k.m.Lookup(key, &values); err != nil {
		return nil, err
	}
	var whole []byte
	for _, v := range values {
		whole = append(whole, append(v, make([]byte, pad8(len(v))-len(v))...)...)
	}
	return whole, nil
}

// put writes entries [from, to) of generation g, or deletes them if g < 0.
func put(tb testing.TB, k *Map, from, to, g int) {
	tb.Helper()
	b := k.Batch()
	apply := func() {
		failed, err := k.Apply(b)
		if err != nil || failed != 0 {
			tb.Fatalf("apply: got %d failed writes, error %v, first result %v, want 0 failed writes",
				failed, err, b.Err(0))
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

// checkContent checks that ForEach, Lookup and bpf(2) return exactly the entries [from, to) of
// generation g.
func checkContent(t *testing.T, k *Map, from, to, g int) {
	t.Helper()
	all := content(t, k)
	if len(all) != to-from {
		t.Errorf("ForEach: got %d entries, want %d", len(all), to-from)
	}
	var keys []byte
	var want [][]byte
	for n := from; n < to; n++ {
		key, value := entry(n, g, k.info.KeySize, k.info.ValueSize)
		value = k.expectedLookup(value)
		if all[string(key)] != string(value) {
			t.Fatalf("ForEach: entry %d:\ngot  %x\nwant %x", n, all[string(key)], value)
		}
		if got, err := k.fromKernel(key); err != nil || !bytes.Equal(got, value) {
			t.Fatalf("bpf(2): entry %d: error %v, got %x, want %x", n, err, got, value)
		}
		keys, want = append(keys, key...), append(want, value)
	}
	absent, _ := entry(to+1, 0, k.info.KeySize, k.info.ValueSize)
	keys = append(keys, absent...)
	calls := 0
	err := k.Lookup(keys, func(i int, key, value []byte, found bool) {
		if i != calls || !bytes.Equal(key, keys[i*k.info.KeySize:][:k.info.KeySize]) {
			t.Errorf("Lookup: call %d: got index %d, key %x, want index %d and the key at it", calls, i, key, calls)
		}
		calls++
		if i == len(want) {
			if found || value != nil {
				t.Errorf("Lookup: absent key: got found, want not found")
			}
		} else if !found || !bytes.Equal(value, want[i]) {
			t.Errorf("Lookup: entry %d: got found %v, value %x, want %x", i, found, value, want[i])
		}
	})
	if err != nil || calls != len(want)+1 {
		t.Fatalf("Lookup: got %d calls, error %v, want %d and nil", calls, err, len(want)+1)
	}
}
