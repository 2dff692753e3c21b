package drained_test

import (
	"context"
	"errors"
	"fmt"
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

// mergedSums is the number of former sums of a mergeTest.
const mergedSums = 10

// mergeTest has former sums that bpf(2) cannot change. The next Open adds them to a map of another size.
type mergeTest struct {
	*testing.T
	options         drained.Options
	origin          [drained.OriginSize]byte
	former, present *ebpf.Map
}

func newMergeTest(t *testing.T, method drained.Method, room int) *mergeTest {
	t.Helper()
	m := &mergeTest{T: t, options: options(filepath.Join(mountBPF(t), "flows"))}
	m.options.Methods = []drained.Method{method}
	s, err := drained.Open(m.options)
	if err != nil {
		t.Fatal(err)
	}
	for i := range mergedSums {
		if err := s.AddBack(key(i), value(1, 2, 10)); err != nil {
			t.Fatal(err)
		}
	}
	m.origin, m.former, m.options.MaxEntries = s.Origin(), m.pinned(1), room
	closeSums(t, s)
	if err := m.former.Freeze(); err != nil {
		t.Fatal(err)
	}
	return m
}

// pinned opens the sums of a generation.
func (m *mergeTest) pinned(generation int) *ebpf.Map {
	m.Helper()
	sums, err := ebpf.LoadPinnedMap(filepath.Join(m.options.Folder, fmt.Sprint("sums-", generation)), nil)
	if err != nil {
		m.Fatal(err)
	}
	m.Cleanup(func() { sums.Close() })
	return sums
}

// eachKey is an EachKey that checks after each key that its sum is in one of the maps, and ends after a number of keys.
func (m *mergeTest) eachKey(keys int) func(sums *ebpf.Map, fn func(key []byte) error) error {
	return func(sums *ebpf.Map, fn func(key []byte) error) error {
		m.present = m.pinned(2)
		return kmap.EachKey(context.Background(), sums, nil, func(key []byte) error {
			if keys--; keys < 0 {
				return errInterrupted
			}
			err := fn(key)
			if former, present := m.in(m.former, key), m.in(m.present, key); (former == nil) == (present == nil) {
				m.Errorf("sum of key %x: got %x in the former map and %x in the present one, want it in one of them", key, former, present)
			}
			return err
		})
	}
}

var errInterrupted = errors.New("interrupted")

// key returns the key of sum i.
func (m *mergeTest) key(i int) []byte { return append(key(i), m.origin[:]...) }

// in returns the sum of a key in a map, or nil.
func (m *mergeTest) in(sums *ebpf.Map, key []byte) []byte {
	m.Helper()
	v, err := sums.LookupBytes(key)
	if err != nil {
		m.Fatal(err)
	}
	return v
}

// TestFormerSumsAreAddedOnce ends syncd while it adds the former sums to the present ones. No sum is in both maps then, so
// that the next start adds none a second time. A program removes a sum in the run that adds it: bpf(2) cannot.
func TestFormerSumsAreAddedOnce(t *testing.T) {
	const merged = 4
	eachMethod(t, func(t *testing.T, method drained.Method) {
		m := newMergeTest(t, method, 1000)
		m.options.EachKey = m.eachKey(merged)
		if s, err := drained.Open(m.options); !errors.Is(err, errInterrupted) {
			t.Fatalf("Open: got %v, error %v, want %v", s, err, errInterrupted)
		}
		want, left := make([]string, mergedSums), 0
		for i := range want {
			want[i] = "packets 1, flags 2, bytes 10"
			if m.in(m.former, m.key(i)) == nil {
				continue
			}
			left++
			want[i] = "packets 2, flags 9, bytes 11" // the other fields are those of the newest entry
			if err := m.present.Put(m.key(i), value(1, 9, 1)); err != nil {
				t.Fatal(err)
			}
		}
		if left != mergedSums-merged {
			t.Errorf("former sums after %d keys: got %d, want %d", merged, left, mergedSums-merged)
		}
		m.options.EachKey = options("").EachKey
		s := openSums(t, m.options)
		for i := range want {
			if got := sum(t, s, i); got != want[i] {
				t.Errorf("sum of key %d: got %s, want %s", i, got, want[i])
			}
		}
		if got := s.Stats().Full; got != 0 {
			t.Errorf("sums without room: got %d, want none", got)
		}
	})
}

// TestFormerSumsWithoutRoomStay: the new map has room for some of the former sums.
func TestFormerSumsWithoutRoomStay(t *testing.T) {
	const room = 4
	eachMethod(t, func(t *testing.T, method drained.Method) {
		m := newMergeTest(t, method, room)
		m.options.EachKey = m.eachKey(mergedSums)
		s := openSums(t, m.options)
		stay := 0
		for i := range mergedSums {
			if v := m.in(m.former, m.key(i)); v != nil {
				stay++
				if string(v) != string(value(1, 2, 10)) {
					t.Errorf("former sum of key %d: got %x, want %x", i, v, value(1, 2, 10))
				}
			}
		}
		if full := s.Stats().Full; stay != mergedSums-room || full != mergedSums-room {
			t.Errorf("former sums after Open: got %d, and %d counted as without room, want %d of each", stay, full, mergedSums-room)
		}
	})
}
