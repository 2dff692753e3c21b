package daemon

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/internal/race"
	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/kmap"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// TestStatedScanTimesHold compares the times that `syncd check` states with those of real scans: the processor time of a
// scan on this machine, within scan-budget. Load delays scans, and hardly changes their processor time. The statements are for
// machines on which a call costs at most slowestMachine times as much as on the reference machine: where it costs more, scans
// may, too.
func TestStatedScanTimesHold(t *testing.T) {
	race.SkipSequential(t)
	if os.Getenv("MAPSYNC_KERNEL") != "" {
		t.Skip("an emulated processor is slower than any machine for which the statements hold")
	}
	c := config.Default()
	c.ScanInterval = time.Nanosecond // the stated time is then that of two scans
	for name, test := range map[string]struct {
		spec    ebpf.MapSpec
		entries uint64
	}{
		"full":             {ebpf.MapSpec{Type: ebpf.Hash, KeySize: 48, ValueSize: 176, MaxEntries: 100_000}, 100_000},
		"sparse":           {ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 16, MaxEntries: 1_000_000}, 100},
		"sparse, by keys":  {ebpf.MapSpec{Type: ebpf.LRUCPUHash, KeySize: 8, ValueSize: 16, MaxEntries: 200_000}, 100},
		"large values":     {ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 8192, MaxEntries: 5000}, 5000},
		"per-CPU":          {ebpf.MapSpec{Type: ebpf.PerCPUHash, KeySize: 8, ValueSize: 16, MaxEntries: 50_000}, 50_000},
		"per-CPU LRU":      {ebpf.MapSpec{Type: ebpf.LRUCPUHash, KeySize: 8, ValueSize: 16, MaxEntries: 50_000}, 40_000},
		"per-CPU array":    {ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 16, MaxEntries: 100_000}, 0},
		"array of nothing": {ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 100_000}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			scanner, info := scannerOf(t, &test.spec, test.entries)
			stated := coverage(info, nil, &capture.ProbeResult{Attach: capture.AttachNone}, &c, 0).Scan
			var works []time.Duration
			var slower float64
			poll.Eventually(t, fmt.Sprintf("a scan of which two take at most the stated %v s", stated), func() bool {
				slower = max(1, float64(timeOfCall(t))/(slowestMachine*referenceCall))
				works = append(works, workOfScan(t, scanner))
				return 2*kmap.LongestScan(works[len(works)-1], c.ScanBudget/100).Seconds() <= slower*stated
			}, func() any { return fmt.Sprintf("%v, on a machine %.1f times slower than the slowest", works, slower) })
			t.Logf("two scans: stated at most %.3f s; processor time of a scan: %s, estimated for the reference machine: %s; a call: %s",
				stated, works[len(works)-1], scanWork(info), timeOfCall(t))
		})
	}
}

// referenceCall is the processor time of timeOfCall on the reference machine, in nanoseconds.
const referenceCall = 1200

// timeOfCall returns the processor time of a bpf(2) call that looks up an entry of a small map.
func timeOfCall(t *testing.T) time.Duration {
	t.Helper()
	const calls = 2000
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	key, value := uint64(1), uint64(1)
	if err := m.Put(key, value); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := threadTime(t)
	for range calls {
		if err := m.Lookup(&key, &value); err != nil {
			t.Fatal(err)
		}
	}
	return (threadTime(t) - before) / calls
}

// threadTime returns the processor time of the calling thread.
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}

// scannerOf returns a running scanner, without limits of its budget, of a map with entries and its table.
func scannerOf(t *testing.T, spec *ebpf.MapSpec, entries uint64) (*kmap.Scanner, *kmap.Info) {
	t.Helper()
	raw, err := ebpf.NewMap(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { raw.Close() })
	k, err := kmap.Open(raw, kmap.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	info := k.Info()
	info.Entries = int(entries)
	if kmap.IsArray(info.Type) {
		info.Entries = info.MaxEntries
	}
	fill(t, k, &info, entries)
	tab, err := table.New(table.Options{
		Self: table.Owner{Node: "here", Incarnation: 1}, KeySize: info.KeySize, ValueSize: info.ValueSize,
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kmap.LoadAll(t.Context(), k, tab, func() int64 { return time.Now().UnixNano() }); err != nil {
		t.Fatal(err)
	}
	tab.Update(func(tx *table.Tx) { tx.Adopt(int(entries)) })
	s, err := kmap.NewScanner(tab, k, kmap.ScannerOptions{Interval: time.Hour, Budget: kmap.NewScanBudget(1)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return s, &info
}

// fill writes entries with the keys 0 to n-1.
func fill(t *testing.T, k *kmap.Map, info *kmap.Info, n uint64) {
	t.Helper()
	key, value := make([]byte, info.KeySize), make([]byte, info.ValueSize)
	value[0] = 1
	b := k.Batch()
	for i := range n {
		binary.NativeEndian.PutUint64(key, i)
		if err := b.Add(key, value); err != nil {
			t.Fatal(err)
		}
		if b.Len() < b.Cap() && i < n-1 {
			continue
		}
		if failed, err := k.Apply(b); err != nil || failed != 0 {
			t.Fatalf("write entries up to %d: got %d failed, error %v, want none", i, failed, err)
		}
		b.Reset()
	}
}

// workOfScan makes one scan and returns its processor time.
func workOfScan(t *testing.T, s *kmap.Scanner) time.Duration {
	t.Helper()
	before := s.Stats().Scans
	s.Request()
	poll.Eventually(t, "a scan", func() bool { return s.Stats().Scans > before })
	return s.Stats().Work
}
