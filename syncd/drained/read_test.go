package drained_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"mapsync/syncd/drained"
	"mapsync/syncd/kmap"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// openBoth opens the map of sums of a drained map.
func openBoth(t *testing.T, s *drained.Sums, m *ebpf.Map) *kmap.Map {
	t.Helper()
	open := func(m *ebpf.Map, o kmap.Options) *kmap.Map {
		k, err := kmap.Open(m, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := k.Close(); err != nil {
				t.Error(err)
			}
		})
		return k
	}
	origin := s.Origin()
	return open(s.Map(), kmap.Options{Drained: &kmap.Drained{
		Source: open(m, kmap.Options{}), Origin: origin[:], Added: []table.Range{{Offset: 0, Size: 4}, {Offset: 8, Size: 8}}, Calls: s.Calls,
	}})
}

// TestReadSumsWhileDrained reads sums while a collector drains the map. A sum that is read is never below the number of
// entries that were put before the read, and never above the number that may have been put after it.
func TestReadSumsWhileDrained(t *testing.T) {
	const keys, writes = 50, 20_000
	eachMethod(t, func(t *testing.T, method drained.Method) {
		o := options("")
		o.Methods = []drained.Method{method}
		s := openSums(t, o)
		m, id := newMap(t, ebpf.Hash)
		s.Follow(id)
		k := openBoth(t, s, m)
		var begun, made [keys]atomic.Uint64
		var running sync.WaitGroup
		// The reads need a pause of the collector that is longer than a read, whose time depends on the machine.
		var pause, reads atomic.Int64
		pause.Store(int64(time.Millisecond))
		done := make(chan struct{})
		running.Go(func() {
			defer close(done)
			for i := 0; i < writes || i < 10*writes && reads.Load() == 0; i++ {
				n := i % keys
				begun[n].Add(1)
				if m.Update(key(n), value(1, 1, 1), ebpf.UpdateNoExist) == nil {
					made[n].Add(1)
				} else {
					begun[n].Add(^uint64(0))
				}
			}
		})
		running.Go(func() {
			for more := true; more; {
				select {
				case <-done:
					more = false
				case <-time.After(time.Duration(pause.Load())):
				}
				drain(t, m, 20)
			}
		})
		origin := s.Origin()
		var all []byte
		for i := range keys {
			all = append(append(all, key(i)...), origin[:]...)
		}
		check := func(i int, found bool, v []byte, least uint64) {
			got := uint64(0)
			if found {
				got = binary.NativeEndian.Uint64(v[8:])
			}
			if most := begun[i].Load(); (got < least || got > most) && method != drained.ByKprobe && s.Stats().Missed+s.Stats().Unseen == 0 {
				t.Errorf("sum of key %d: got %d, want %d to %d", i, got, least, most)
			}
		}
		for more := true; more; {
			select {
			case <-done:
				running.Wait()
				more = false
			default:
			}
			var least [keys]uint64
			for i := range keys {
				least[i] = made[i].Load()
			}
			err := k.Lookup(all, func(i int, _, v []byte, found bool) { check(i, found, v, least[i]) })
			switch {
			case err == nil:
				reads.Add(1)
			case errors.Is(err, kmap.ErrAlwaysDrained):
				pause.Store(2 * pause.Load())
			default:
				t.Errorf("read the sums: got error %v, want none", err)
			}
		}
		// With a kprobe, the kernel may not run the program at the end of a call. It then counts as in progress for seconds.
		if n := reads.Load(); n < 2 && method != drained.ByKprobe {
			t.Errorf("reads of the sums: got %d, want one while the collector drains, and one after it", n)
		}
	})
}

// TestReadSumsOfSeveralOrigins reads the whole map: sums of this host with and without an entry in the drained map, an
// entry without a sum, and the sum of another host.
func TestReadSumsOfSeveralOrigins(t *testing.T) {
	eachMethod(t, func(t *testing.T, method drained.Method) {
		o := options("")
		o.Methods = []drained.Method{method}
		s := openSums(t, o)
		m, id := newMap(t, ebpf.Hash)
		s.Follow(id)
		for _, i := range []int{1, 2} {
			put(t, m, i, value(1, 1, 10))
		}
		drain(t, m, 100)
		put(t, m, 2, value(2, 2, 5))
		put(t, m, 3, value(3, 3, 7))
		k := openBoth(t, s, m)
		origin := s.Origin()
		write(t, k, append(key(2), "elsewher"...), value(9, 9, 9))
		write(t, k, append(key(1), origin[:]...), value(9, 9, 9)) // only the collector changes this host's sums
		got := map[string]string{}
		err := k.ForEach(context.Background(), func(k, v []byte) error {
			got[string(k)] = string(v)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		want := map[string][]byte{
			string(key(1)) + string(origin[:]): value(1, 1, 10),
			string(key(2)) + string(origin[:]): value(3, 2, 15),
			string(key(3)) + string(origin[:]): value(3, 3, 7),
			string(key(2)) + "elsewher":        value(9, 9, 9),
		}
		if len(got) != len(want) {
			t.Errorf("entries: got %d, want %d", len(got), len(want))
		}
		for k, v := range want {
			if !bytes.Equal([]byte(got[k]), v) {
				t.Errorf("entry %x: got %x, want %x", k, got[k], v)
			}
		}
	})
}

// write writes an entry like syncd.
func write(t *testing.T, k *kmap.Map, key, value []byte) {
	t.Helper()
	b := k.Batch()
	if err := b.Add(key, value); err != nil {
		t.Fatal(err)
	}
	if failed, err := k.Apply(b); err != nil || failed != 0 {
		t.Fatalf("write an entry: got %d failed, error %v, want none", failed, err)
	}
}
