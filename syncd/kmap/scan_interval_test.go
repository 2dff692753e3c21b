package kmap

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// TestScansOfUnchangedMapAreRare has a scanner follow a kernel map at rest, and then a change, in
// simulated time.
func TestScansOfUnchangedMapAreRare(t *testing.T) {
	k := openMap(t, newKernelMap(t, &ebpf.MapSpec{Type: ebpf.Hash, KeySize: testKey, ValueSize: testValue, MaxEntries: 100}), Options{})
	put(t, k, 0, 100, 1)
	tab := newTable(t, table.Options{})
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		after := func(at int64) time.Duration { return time.Duration(at - start.UnixNano()) }
		mayExtend := true
		budget := NewScanBudget(1)
		budget.withinShareAt = time.Since(budgetClockStart) // the clock of the test is not that of the budget
		s, err := NewScanner(tab, k, ScannerOptions{
			Interval: 10 * time.Second, MaxInterval: 80 * time.Second, MayExtend: func() bool { return mayExtend }, Budget: budget,
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.Run(ctx)
		// scansUntil returns when scans began, in seconds since the start of the test.
		scansUntil := func(seconds int) (began []int) {
			for last := s.Stats().Scans; time.Since(start) < time.Duration(seconds)*time.Second; time.Sleep(time.Second / 2) {
				if st := s.Stats(); st.Scans != last {
					last = st.Scans
					began = append(began, int(after(st.Began)/time.Second))
				}
			}
			return began
		}
		check := func(when string, until int, want ...int) {
			t.Helper()
			if got := scansUntil(until); !slices.Equal(got, want) {
				t.Errorf("%s: scans began at %v s, want %v s", when, got, want)
			}
		}
		check("the first scan finds all entries", 15, 10)
		check("scans find the table unchanged", 345, 20, 30, 40, 60, 100, 180, 260, 340)
		if got := s.Stats().Interval; got != 80*time.Second {
			t.Errorf("interval of a map at rest: got %s, want 80s", got)
		}
		time.Sleep(10 * time.Second) // until 355 s
		key, value := entry(1, 2, testKey, testValue)
		tab.Update(func(tx *table.Tx) {
			tx.Local(&table.Change{Key: key, Value: value, Time: time.Now().UnixNano(), Context: table.ContextPacket})
		})
		check("the table has changed", 405, 360, 370, 380, 390)
		mayExtend = false
		check("hooks no longer report all changes", 455, 410, 420, 430, 440, 450)
		if got := s.Stats().Interval; got != 10*time.Second {
			t.Errorf("interval without hooks: got %s, want 10s", got)
		}
	})
}
