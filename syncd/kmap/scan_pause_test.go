package kmap

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// TestScansArePaused: in a pause no scan begins, not even an urgent one. The pause ends with Resume or at its end.
func TestScansArePaused(t *testing.T) {
	k := openMap(t, newKernelMap(t, &ebpf.MapSpec{Type: ebpf.Hash, KeySize: testKey, ValueSize: testValue, MaxEntries: 100}), Options{})
	put(t, k, 0, 100, 1)
	tab := newTable(t, table.Options{})
	synctest.Test(t, func(t *testing.T) {
		budget := NewScanBudget(1)
		budget.withinShareAt = time.Since(budgetClockStart) // the clock of the test is not that of the budget
		s, err := NewScanner(tab, k, ScannerOptions{Interval: 10 * time.Second, Budget: budget})
		if err != nil {
			t.Fatalf("create a scanner: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.Run(ctx)
		scansAfter := func(what string, d time.Duration, want uint64) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if got := s.Stats().Scans; got != want {
				t.Errorf("%s: got %d scans, want %d", what, got, want)
			}
		}
		until := time.Now().Add(time.Hour)
		budget.Pause(until)
		if got := budget.PausedUntil(); !got.Equal(until) {
			t.Errorf("end of the pause: got %s, want %s", got, until)
		}
		s.Request()
		scansAfter("paused", time.Minute, 0)
		budget.Resume()
		scansAfter("resumed", time.Millisecond, 1)
		if got := budget.PausedUntil(); !got.IsZero() {
			t.Errorf("end of the pause after Resume: got %s, want none", got)
		}
		budget.Pause(time.Now().Add(time.Minute))
		budget.Pause(time.Now().Add(30 * time.Second)) // replaces the first one
		scansAfter("before the end of the pause", 29*time.Second, 1)
		scansAfter("after the end of the pause", 2*time.Second, 2)
		budget.Pause(time.Now().Add(time.Hour))
		cancel() // Run ends in a pause
	})
}

// TestScanInProgressIsPaused: a pause stops a scan in progress after the current chunk. It does not count as
// duration of the scan.
func TestScanInProgressIsPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScannerWithoutMap(t, ScannerOptions{})
		p := scanPass{Scanner: s}
		s.opts.Budget.Pause(time.Now().Add(time.Hour))
		done := make(chan error)
		go func() {
			p.meter.start()
			defer p.meter.stop()
			done <- p.throttle(t.Context())
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("scan in a pause: got an end with error %v, want none", err)
		default:
		}
		s.opts.Budget.Resume()
		if err := <-done; err != nil || p.paused != time.Minute {
			t.Errorf("scan after a pause of a minute: got %s, error %v, want 1m0s", p.paused, err)
		}
	})
}
