package kmap

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mapsync/internal/poll"
	"mapsync/syncd/table"
)

// openDrained opens a map of sums of this host, and the drained map with entries for the same keys.
func openDrained(t *testing.T, sums int, cpus *unix.CPUSet) *Map {
	t.Helper()
	const originSize = 4
	source := openMap(t, newKernelMap(t, hashSpec(testKey-originSize, testValue, uint32(sums))), Options{})
	put(t, source, 0, sums, 1)
	origin := bytes.Repeat([]byte{7}, originSize)
	raw := newKernelMap(t, hashSpec(testKey, testValue, uint32(sums)))
	for n := range sums {
		key, value := entry(n, 1, testKey-originSize, testValue)
		if err := raw.Put(append(key, origin...), value); err != nil {
			t.Fatal(err)
		}
	}
	return openMap(t, raw, Options{ScanCPUs: cpus, Drained: &Drained{
		Source: source, Origin: origin, Calls: func() (uint64, bool) { return 0, true },
	}})
}

// TestSumsAreSearchedLikeAScan: the search for sums to remove runs on the CPUs of scans, waits while scans are paused, and
// counts as their work.
func TestSumsAreSearchedLikeAScan(t *testing.T) {
	const sums = 4 * readEntries
	before := affinity(t)
	var last unix.CPUSet
	for cpu := range maxCPU {
		if before.IsSet(cpu) {
			last.Zero()
			last.Set(cpu)
		}
	}
	k := openDrained(t, sums, &last)
	budget := NewScanBudget(0.5)
	budget.Pause(time.Now().Add(time.Hour))
	var stored atomic.Int64
	ended := make(chan error, 1)
	search := func() {
		ended <- k.Stored(t.Context(), budget, func([]byte) error {
			if got := affinity(t); got != last {
				t.Errorf("CPUs during the search: got %v, want %v", got, last)
			}
			if stored.Add(1) == 1 {
				budget.Pause(time.Now().Add(time.Hour)) // in the middle of the search
			}
			return nil
		})
	}
	go search()
	poll.Stays(t, 50*time.Millisecond, "no search in a pause", func() bool { return stored.Load() == 0 })
	budget.Resume()
	poll.Eventually(t, "the search ends its part", func() bool { return stored.Load() > 0 })
	// The rest of a part of at most readEntries may be read in the pause.
	poll.Stays(t, 50*time.Millisecond, "the search waits", func() bool { return stored.Load() <= readEntries })
	work := budget.workUntil()
	budget.Resume()
	if err := <-ended; err != nil || stored.Load() != sums {
		t.Errorf("search: got %d sums, error %v, want %d", stored.Load(), err, sums)
	}
	if after := budget.workUntil(); after <= work {
		t.Errorf("budget after the search: got work until %s, want it after %s", after, work)
	}
	if got := affinity(t); got != before {
		t.Errorf("CPUs after the search: got %v, want %v", got, before)
	}
}

func (b *ScanBudget) workUntil() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.withinShareAt
}

// TestSumsAreFoundDuringAScan: a scan in progress that waits does not stop the search for sums to remove.
func TestSumsAreFoundDuringAScan(t *testing.T) {
	const sums = 100
	k := openDrained(t, sums, nil)
	budget := NewScanBudget(1)
	tab := newTable(t, table.Options{})
	s, err := NewScanner(tab, k, ScannerOptions{Budget: budget, Now: func() int64 {
		budget.Pause(time.Now().Add(time.Hour)) // in the middle of the scan
		return time.Now().UnixNano()
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.scan(ctx, time.Now()) }()
	poll.Eventually(t, "the scan has read entries", func() bool { return tab.Stats().Scanned > 0 })
	defer func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("scan in a pause: got error %v, want %v", err, context.Canceled)
		}
	}()
	within(t, "sums while the scan is paused", func() {
		stored := 0
		err := k.Stored(t.Context(), NewScanBudget(1), func([]byte) error { stored++; return nil })
		if err != nil || stored != sums {
			t.Errorf("sums while the scan is paused: got %d, error %v, want %d", stored, err, sums)
		}
	})
}
