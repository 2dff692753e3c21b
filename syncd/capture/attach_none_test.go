package capture_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"testing"

	"mapsync/internal/dataplane"
	"mapsync/internal/injector"
	"mapsync/internal/poll"
	"mapsync/syncd/capture"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

func openNone(t testing.TB, bufferSize int) *capture.Capture {
	t.Helper()
	return openNoneWith(t, capture.BufferRing, bufferSize)
}

func openNoneWith(t testing.TB, buffer capture.Buffer, bufferSize int) *capture.Capture {
	t.Helper()
	c, err := capture.Open(capture.Options{
		Attach: capture.AttachNone, Buffer: buffer, BufferSize: bufferSize,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func newHash(t testing.TB, typ ebpf.MapType, keySize, valueSize, entries int) (*ebpf.Map, uint32) {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "watched", Type: typ,
		KeySize: uint32(keySize), ValueSize: uint32(valueSize), MaxEntries: uint32(entries),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, ok := info.ID()
	if !ok {
		t.Fatal("map ID: not available")
	}
	return m, uint32(id)
}

// keysOf returns all keys of a map.
func keysOf(t testing.TB, m *ebpf.Map) (keys []string) {
	t.Helper()
	key, err := m.NextKeyBytes(nil)
	for ; key != nil && err == nil; key, err = m.NextKeyBytes(key) {
		keys = append(keys, string(key))
	}
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

func newTable(t testing.TB, keySize, valueSize int) *table.Table {
	t.Helper()
	tab, err := table.New(table.Options{
		Self:    table.Owner{Node: "a", Incarnation: 1},
		KeySize: keySize, ValueSize: valueSize,
	})
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

func openInjector(t testing.TB, m *ebpf.Map, c *capture.Capture, capacity int) *injector.Injector {
	t.Helper()
	return openInjectorWith(t, m, c, injector.Options{Capacity: capacity})
}

func openInjectorWith(t testing.TB, m *ebpf.Map, c *capture.Capture, o injector.Options) *injector.Injector {
	t.Helper()
	if !kernelAtLeast(5, 17) {
		t.Skip("this kernel lacks syscall programs (5.14) or bpf_loop (5.17)")
	}
	f, err := injector.Open(m, c.Maps(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// runCapture runs c until the end of the test, which waits for the end of Run.
func runCapture(t testing.TB, c *capture.Capture) {
	t.Helper()
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func entry(keySize, valueSize, i, version int) (key, value []byte) {
	key, value = make([]byte, max(keySize, 8)), make([]byte, max(valueSize, 8))
	binary.LittleEndian.PutUint64(key, uint64(i))
	binary.LittleEndian.PutUint64(value, uint64(version))
	if keySize > 16 {
		key[keySize-1] = byte(i)
	}
	value[valueSize-1] = byte(version)
	return key[:keySize], value[:valueSize]
}

func checkRecord(t *testing.T, tab *table.Table, key, value []byte) {
	t.Helper()
	tab.View(func(tx *table.Tx) {
		var rec table.Record
		if !tx.Get(key, &rec) {
			t.Errorf("get record of key %x: not found", key)
		} else if rec.Delete != (value == nil) || value != nil && !bytes.Equal(rec.Value, value) {
			t.Errorf("record of key %x: got delete %v, value %x, want value %x",
				key, rec.Delete, rec.Value, value)
		}
	})
}

func TestEventsCarryWholeEntriesOfAnySize(t *testing.T) {
	for buffer, size := range map[capture.Buffer]int{capture.BufferRing: 1 << 20, capture.BufferPerf: 64} {
		t.Run(string(buffer), func(t *testing.T) { testEventsCarryWholeEntries(t, buffer, size) })
	}
}

func testEventsCarryWholeEntries(t *testing.T, buffer capture.Buffer, bufferSize int) {
	for _, size := range []struct{ key, value int }{{4, 4}, {1, 1}, {7, 13}, {48, 176}, {512, 4096}, {512, 1}, {3, 4096}} {
		c := openNoneWith(t, buffer, bufferSize)
		m, id := newHash(t, ebpf.Hash, size.key, size.value, 64)
		tab := newTable(t, size.key, size.value)
		if err := c.Watch(id, tab); err != nil {
			t.Fatal(err)
		}
		runCapture(t, c)
		f := openInjectorWith(t, m, c, injector.Options{Capacity: 64, Perf: buffer == capture.BufferPerf})
		for i := range 20 {
			key, value := entry(size.key, size.value, i, i+100)
			f.Add(table.OpUpdate, table.ContextPacket, key, value)
			if i%2 == 1 {
				f.Add(table.OpDelete, table.ContextPacket, key, nil)
			}
		}
		if failed, err := f.Run(); err != nil || failed != 0 {
			t.Fatalf("write the entries: got %d failed, error %v, want none", failed, err)
		}
		poll.Eventually(t, "30 events", func() bool { return c.Stats().Events == 30 })
		for i := range 20 {
			key, value := entry(size.key, size.value, i, i+100)
			if i%2 == 1 {
				value = nil
			}
			checkRecord(t, tab, key, value)
		}
		if s := c.Stats(); s.Lost() != 0 || s.Malformed != 0 || s.ByContext[table.ContextPacket] != 30 {
			t.Errorf("stats with entries of %d+%d bytes: got %+v, want 30 packet events, no losses",
				size.key, size.value, s)
		}
	}
}

func TestFailedWritesEmitNoEvents(t *testing.T) {
	c := openNone(t, 1<<20)
	m, id := newHash(t, ebpf.Hash, 8, 8, 4)
	tab := newTable(t, 8, 8)
	if err := c.Watch(id, tab); err != nil {
		t.Fatal(err)
	}
	runCapture(t, c)
	f := openInjector(t, m, c, 64)
	for i := range 10 { // 4 fit
		key, value := entry(8, 8, i, i)
		f.Add(table.OpUpdate, table.ContextPacket, key, value)
	}
	failed, err := f.Run()
	if err != nil || failed != 6 {
		t.Fatalf("run injector: got %d refused writes, error %v, want 6 refused writes", failed, err)
	}
	poll.Eventually(t, "4 events", func() bool { return c.Stats().Events == 4 })
	if s := c.Stats(); s.Seen != 10 || s.Failed != 6 || s.Lost() != 0 {
		t.Errorf("stats: got %+v, want 10 seen, 6 failed, no losses", s)
	}
	if live := tab.Stats().Live; live != 4 {
		t.Errorf("live records: got %d, want 4", live)
	}
}

func TestLossesAreCounted(t *testing.T) {
	c := openNone(t, 4096)
	m, id := newHash(t, ebpf.Hash, 48, 176, 1000)
	tab := newTable(t, 48, 176)
	if err := c.Watch(id, tab); err != nil {
		t.Fatal(err)
	}
	f := openInjector(t, m, c, 1001)
	for i := range 1000 {
		key, value := entry(48, 176, i, 1)
		f.Add(table.OpUpdate, table.ContextPacket, key, value)
	}
	unpin, err := dataplane.Pin(0) // each CPU has its own sequence
	if err != nil {
		t.Fatal(err)
	}
	defer unpin()
	if _, err := f.Run(); err != nil { // the buffer has no reader yet
		t.Fatal(err)
	}
	runCapture(t, c)
	f.Reset()
	key, value := entry(48, 176, 0, 2)
	poll.Eventually(t, "space in the buffer", func() bool { return c.Stats().Events > 0 })
	f.Add(table.OpUpdate, table.ContextPacket, key, value)
	if _, err := f.Run(); err != nil {
		t.Fatal(err)
	}
	poll.Eventually(t, "a sequence gap", func() bool { return c.Stats().SequenceGaps > 0 })
	s := c.Stats()
	if s.LostReservations == 0 || s.SequenceGaps != s.LostReservations || s.Events+s.SequenceGaps != 1001 {
		t.Errorf("stats: got %+v, want 1001 events and gaps in total, gaps equal to lost reservations", s)
	}
}

func TestWatchAndUnwatchWhileRunning(t *testing.T) {
	c := openNone(t, 1<<20)
	runCapture(t, c)
	var maps [3]*ebpf.Map
	var ids [3]uint32
	var tables [3]*table.Table
	var injectors [3]*injector.Injector
	for i := range maps {
		maps[i], ids[i] = newHash(t, ebpf.Hash, 8, 8*(i+1), 100)
		tables[i] = newTable(t, 8, 8*(i+1))
		injectors[i] = openInjector(t, maps[i], c, 16)
		for k := range 10 {
			key, value := entry(8, 8*(i+1), k, k)
			injectors[i].Add(table.OpUpdate, table.ContextProcess, key, value)
		}
	}
	run := func() {
		for _, f := range injectors {
			if _, err := f.Run(); err != nil {
				t.Fatal(err)
			}
		}
	}
	run() // no map is watched
	for _, i := range []int{0, 2} {
		if err := c.Watch(ids[i], tables[i]); err != nil {
			t.Fatal(err)
		}
	}
	run()
	poll.Eventually(t, "events of the first two maps", func() bool { return c.Stats().Events == 20 })
	c.Unwatch(ids[0])
	if err := c.Watch(ids[1], tables[1]); err != nil {
		t.Fatal(err)
	}
	run()
	poll.Eventually(t, "events of the other two maps", func() bool { return c.Stats().Events == 40 })
	for i, want := range []uint64{10, 10, 10} {
		if s := tables[i].Stats(); s.LocalAccepted != want {
			t.Errorf("stats of table %d: got %+v, want 10 accepted local changes", i, s)
		}
	}
	if s := c.Stats(); s.Seen != 40 || s.Unwatched != 0 {
		t.Errorf("stats: got %+v, want 40 seen, 0 unwatched", s)
	}
}

func TestWatchLimits(t *testing.T) {
	c := openNone(t, 4096)
	if err := c.Watch(1, newTable(t, 513, 8)); !errors.Is(err, capture.ErrEntryTooLarge) {
		t.Errorf("watch map with keys of 513 bytes: got %v, want ErrEntryTooLarge", err)
	}
	if err := c.Watch(1, newTable(t, 8, 4097)); !errors.Is(err, capture.ErrEntryTooLarge) {
		t.Errorf("watch map with values of 4097 bytes: got %v, want ErrEntryTooLarge", err)
	}
	large := newTable(t, 512, 8192)
	if err := c.WatchKeys(1, large); err != nil {
		t.Errorf("watch keys of map with values of 8192 bytes: got %v, want no error", err)
	}
	c.Unwatch(1)
	if err := c.WatchKeys(1, newTable(t, 513, 8)); !errors.Is(err, capture.ErrEntryTooLarge) {
		t.Errorf("watch keys of map with keys of 513 bytes: got %v, want ErrEntryTooLarge", err)
	}
	tab := newTable(t, 8, 8)
	for id := range uint32(capture.MaxMaps) {
		if err := c.Watch(id+1, tab); err != nil {
			t.Fatal(err)
		}
	}
	const surplus = capture.MaxMaps + 1
	if err := c.Watch(surplus, tab); err == nil {
		t.Errorf("watch map number %d: got no error, want an error", surplus)
	}
	if err := c.Watch(1, tab); err == nil {
		t.Error("watch map twice: got no error, want an error")
	}
	c.Unwatch(1)
	if err := c.Watch(surplus, tab); err != nil {
		t.Errorf("watch map after Unwatch of another: got %v, want no error", err)
	}
}

func TestBufferSizesAreValidated(t *testing.T) {
	for _, bad := range []struct {
		buffer capture.Buffer
		size   int
	}{{capture.BufferRing, 5000}, {capture.BufferRing, 1 << 31}, {capture.BufferRing, 2048}, {capture.BufferPerf, 3}, {"tape", 4096}} {
		_, err := capture.Open(capture.Options{
			Attach: capture.AttachNone, Buffer: bad.buffer, BufferSize: bad.size, Logger: slog.New(slog.DiscardHandler),
		})
		if err == nil {
			t.Errorf("open with %s buffer of size %d: got no error, want an error", bad.buffer, bad.size)
		}
	}
}

// BenchmarkDrain measures the path from the kernel's buffer into the table, which makes no
// allocations.
func BenchmarkDrain(b *testing.B) {
	const n = 1 << 14
	c := openNone(b, 16<<20)
	m, id := newHash(b, ebpf.Hash, 48, 176, n)
	tab := newTable(b, 48, 176)
	if err := c.Watch(id, tab); err != nil {
		b.Fatal(err)
	}
	f := openInjector(b, m, c, n)
	for i := range n {
		key, value := entry(48, 176, i, i)
		f.Add(table.OpUpdate, table.ContextPacket, key, value)
	}
	b.ReportAllocs()
	events := uint64(0)
	for b.Loop() {
		b.StopTimer()
		if _, err := f.Run(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		events += n
		for c.Stats().Events < events {
			if err := c.Step(); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(events), "ns/delta")
}
