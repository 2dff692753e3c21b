package kmap

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/features"
	"golang.org/x/sys/unix"
)

func arraySpec(t ebpf.MapType, value, entries uint32) *ebpf.MapSpec {
	return withType(hashSpec(4, value, entries), t)
}

// arrayLookup returns how an array is looked up and read on this kernel. Programs read the values of other
// CPUs from 5.19 on.
func arrayLookup(t *testing.T, typ ebpf.MapType) AccessMethod {
	if code, err := features.LinuxVersionCode(); err != nil {
		t.Fatal(err)
	} else if typ == ebpf.PerCPUArray && code < 5<<16|19<<8 {
		return BySingle
	}
	return ByProgram
}

func TestRoundTripArray(t *testing.T) {
	lock := lockSpec(64, 8, 3000)
	lock.Type, lock.KeySize, lock.Key = ebpf.Array, 4, &btf.Int{Name: "unsigned int", Size: 4}
	for _, c := range []struct {
		name  string
		spec  *ebpf.MapSpec
		write AccessMethod
	}{
		{"4", arraySpec(ebpf.Array, 4, 3000), ByProgram},
		{"odd 27", arraySpec(ebpf.Array, 27, 3000), ByProgram},
		{"largest", arraySpec(ebpf.Array, MaxValueSize, 200), ByProgram},
		{"mapped into memory", withFlags(arraySpec(ebpf.Array, 16, 3000), unix.BPF_F_MMAPABLE), ByProgram},
		{"programs may not write", withFlags(arraySpec(ebpf.Array, 16, 3000), unix.BPF_F_RDONLY_PROG), ByBatch},
		{"lock", lock, ByProgram},
		{"per CPU", arraySpec(ebpf.PerCPUArray, 36, 3000), BySingle},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := openMap(t, newKernelMap(t, c.spec), Options{})
			lookup := arrayLookup(t, c.spec.Type)
			want := AccessMethods{Read: lookup, Lookup: lookup, Write: c.write}
			got := k.AccessMethods()
			if (got.Reason == nil) != (c.write == ByProgram) {
				t.Errorf("reason: got %v, want nil only if all access is by program", got.Reason)
			}
			if got.Reason = nil; got != want {
				t.Errorf("access methods: got %+v, want %+v", got, want)
			}
			testRoundTrip(t, k)
		})
		t.Run(c.name+" by bpf(2)", func(t *testing.T) {
			k := openMap(t, newKernelMap(t, c.spec), Options{NoProgram: true})
			testRoundTrip(t, k)
			k.accessMethods.Write, k.syscallWriter.batched = BySingle, false
			testRoundTrip(t, k)
		})
	}
}

// TestArrayElementWithoutContent checks that a value of zeros counts as absent, whatever the bits that are not carried have,
// and that an update leaves them.
func TestArrayElementWithoutContent(t *testing.T) {
	for _, o := range []Options{{}, {NoProgram: true}} {
		// Bytes 4 and 5 are local, and byte 6 is padding.
		o.Keep, o.Carried = []table.Range{{Offset: 4, Size: 2}}, []byte{255, 255, 255, 255, 0, 0, 0, 255}
		m := newKernelMap(t, arraySpec(ebpf.Array, 8, 4))
		k := openMap(t, m, o)
		local := []byte{0, 0, 0, 0, 5, 6, 7, 0}
		for i, value := range [][]byte{local, {0, 0, 0, 0, 0, 0, 0, 1}, {0, 0, 0, 1, 0, 0, 0, 0}} {
			if err := m.Put(uint32(i), value); err != nil {
				t.Fatal(err)
			}
		}
		if got := content(t, k); len(got) != 2 || got["\x00\x00\x00\x00"] != "" {
			t.Errorf("entries: got %q, want those of elements 1 and 2", got)
		}
		apply := func(value []byte) {
			t.Helper()
			b := k.Batch()
			if err := b.Add([]byte{0, 0, 0, 0}, value); err != nil {
				t.Fatal(err)
			}
			if failed, err := k.Apply(b); failed != 0 || err != nil {
				t.Fatalf("apply: got %d failed, error %v, want none", failed, err)
			}
		}
		check := func(want []byte) {
			t.Helper()
			if got, err := m.LookupBytes(uint32(0)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("element 0: got %x, error %v, want %x", got, err, want)
			}
		}
		apply([]byte{1, 0, 0, 0, 0, 0, 0, 2})
		check([]byte{1, 0, 0, 0, 5, 6, 0, 2}) // the padding is written
		apply(nil)
		check(make([]byte, 8))
	}
}

// TestArrayWithoutIndex writes an index that an array does not have: as the records of a peer with a larger one.
func TestArrayWithoutIndex(t *testing.T) {
	for _, typ := range []ebpf.MapType{ebpf.Array, ebpf.PerCPUArray} {
		for _, o := range []Options{{}, {NoProgram: true}} {
			k := openMap(t, newKernelMap(t, arraySpec(typ, 8, 4)), o)
			b := k.Batch()
			for _, n := range []int{4, 3, 5} {
				key, value := entry(n, 1, 4, k.info.ValueSize)
				if n == 5 {
					value = nil
				}
				if err := b.Add(key, value); err != nil {
					t.Fatal(err)
				}
			}
			failed, err := k.Apply(b)
			if failed != 1 || err != nil || !errors.Is(b.Err(0), unix.E2BIG) || b.Err(1) != nil || b.Err(2) != nil {
				t.Errorf("%s: apply: got %d failed, error %v, results %v, %v, %v; want E2BIG for the first only",
					typ, failed, err, b.Err(0), b.Err(1), b.Err(2))
			}
		}
	}
}

// TestArrayKeepsEntriesOfPeers: a record without an index takes no entry of a peer out of the array, as it would
// out of a full hash map.
func TestArrayKeepsEntriesOfPeers(t *testing.T) {
	m := openMap(t, newKernelMap(t, arraySpec(ebpf.Array, 8, 4)), Options{})
	tab, err := table.New(table.Options{Self: table.Owner{Node: "here", Incarnation: 2}, KeySize: 4, ValueSize: 8, MaxEntries: 4})
	if err != nil {
		t.Fatal(err)
	}
	f := newSyncFixture(t, tab, m)
	receive := func(n int) {
		t.Helper()
		key, value := entry(n, 1, 4, 8)
		now := time.Now().UnixNano()
		tab.Update(func(tx *table.Tx) {
			d := table.Delta{Key: key, Value: value, Version: table.Version(now), Owner: f.peer}
			if got := tx.Remote(&d, now, table.RemoteOptions{}); got != table.Accepted {
				t.Errorf("apply delta %d: got %s, want accepted", n, got)
			}
		})
	}
	for n := range 4 {
		receive(n)
	}
	f.awaitSynced()
	receive(4)
	f.awaitFailed(1)
	if n, s := len(content(t, m)), f.sync.Stats(); n != 4 || s.Displaced != 0 || s.FailedFull != 1 {
		t.Errorf("entries: got %d, %+v, want 4, none displaced and one write refused", n, s)
	}
}
