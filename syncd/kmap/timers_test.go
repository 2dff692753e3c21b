package kmap

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"mapsync/internal/dataplane"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// timerOffset is the offset of the bpf_timer in the values of timerSpec.
const timerOffset = 8

// timerSpec is a map with a bpf_timer in its values, and a bpf_spin_lock if lock is set.
func timerSpec(typ ebpf.MapType, lock bool) *ebpf.MapSpec {
	u64 := &btf.Int{Name: "unsigned long long", Size: 8}
	u32 := &btf.Int{Name: "unsigned int", Size: 4}
	timer := &btf.Struct{Name: "bpf_timer", Size: 16, Members: []btf.Member{{Name: "__opaque", Type: &btf.Array{Type: u64, Index: u32, Nelems: 2}}}}
	value := &btf.Struct{Name: "session", Size: 32, Members: []btf.Member{{Name: "state", Type: u64}, {Name: "timer", Type: timer, Offset: timerOffset * 8}}}
	if lock {
		l := &btf.Struct{Name: "bpf_spin_lock", Size: 4, Members: []btf.Member{{Name: "val", Type: u32}}}
		value.Members = append(value.Members, btf.Member{Name: "lock", Type: l, Offset: 24 * 8})
	}
	return &ebpf.MapSpec{Type: typ, KeySize: 8, ValueSize: 32, MaxEntries: 100, Key: u64, Value: value}
}

// timerKeys are keys with a timer that is set up, without one, and whose timer an update has removed.
var timerKeys = func() (keys [3][]byte) {
	for i := range keys {
		keys[i] = binary.NativeEndian.AppendUint64(nil, uint64(i+1))
	}
	return keys
}()

// timers returns which of timerKeys have a timer, as read from the whole map and as looked up.
func timers(t *testing.T, k *Map) string {
	t.Helper()
	var read, looked [len(timerKeys)]bool
	note := func(into *[len(timerKeys)]bool, key, value []byte) {
		into[binary.NativeEndian.Uint64(key)-1] = slices.ContainsFunc(value[timerOffset:][:16], func(b byte) bool { return b != 0 })
	}
	err := k.ForEach(context.Background(), func(key, value []byte) error { note(&read, key, value); return nil })
	err = errors.Join(err, k.Lookup(slices.Concat(timerKeys[:]...), func(_ int, key, value []byte, found bool) {
		if found {
			note(&looked, key, value)
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(read, looked)
}

// TestTimersAreRead: reads by programs return the bytes of a timer, which are zero if none is set up, or after an update.
// If bpf(2) reads the map, ReadsTimers returns false.
func TestTimersAreRead(t *testing.T) {
	if err := dataplane.HasTimers(); errors.Is(err, ebpf.ErrNotSupported) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	for _, typ := range []ebpf.MapType{ebpf.Hash, ebpf.LRUHash} {
		t.Run(typ.String(), func(t *testing.T) {
			m := newKernelMap(t, timerSpec(typ, false))
			k := openMap(t, m, Options{})
			for i, key := range timerKeys {
				if err := m.Put(key, make([]byte, 32)); err != nil {
					t.Fatal(err)
				}
				if i != 1 {
					if err := dataplane.InitTimer(m, key, timerOffset); err != nil {
						t.Fatal(err)
					}
				}
			}
			b := k.Batch()
			if err := b.Add(timerKeys[2], make([]byte, 32)); err != nil {
				t.Fatal(err)
			}
			if failed, err := k.Apply(b); failed != 0 || err != nil {
				t.Fatalf("update: got %d failed, error %v, want none", failed, err)
			}
			if got, want := timers(t, k), "[true false false] [true false false]"; got != want || !k.ReadsTimers() {
				t.Errorf("timers: got %s, readable %t, want %s, true", got, k.ReadsTimers(), want)
			}
			if k := openMap(t, m, Options{NoProgram: true}); k.ReadsTimers() {
				t.Errorf("timers read by bpf(2): got readable, and %s, want not readable", timers(t, k))
			}
		})
	}
	t.Run("lock", func(t *testing.T) {
		if k := openMap(t, newKernelMap(t, timerSpec(ebpf.Hash, true)), Options{}); k.ReadsTimers() {
			t.Errorf("timers beside a spin lock: got readable by %s and %s, want not readable", k.AccessMethods().Read, k.AccessMethods().Lookup)
		}
	})
}
