package kmap

import (
	"bytes"
	"context"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
)

// TestScansOfUnchangedMapAreRare has a scanner follow an unchanged kernel map, and then a change, in
// simulated time.
func TestScansOfUnchangedMapAreRare(t *testing.T) {
	k := openMap(t, newKernelMap(t, &ebpf.MapSpec{Type: ebpf.Hash, KeySize: testKey, ValueSize: testValue, MaxEntries: 100}), Options{})
	put(t, k, 0, 100, 1)
	tab := newTable(t, table.Options{})
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		after := func(at int64) time.Duration { return time.Duration(at - start.UnixNano()) }
		var mayExtend atomic.Bool
		mayExtend.Store(true)
		budget := NewScanBudget(1)
		budget.withinShareAt = time.Since(budgetClockStart) // the clock of the test is not that of the budget
		s, err := NewScanner(tab, k, ScannerOptions{
			Interval: 10 * time.Second, MaxInterval: 80 * time.Second, MayExtend: mayExtend.Load, Budget: budget,
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.Run(ctx)
		// scansUntil returns when scans began since its last call, in seconds since the start of the test.
		var last uint64
		scansUntil := func(seconds int) (began []int) {
			for ; time.Since(start) < time.Duration(seconds)*time.Second; time.Sleep(time.Second / 2) {
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
		s.Request() // an urgent scan does not count
		check("scans find the table unchanged", 350, 15, 25, 35, 45, 65, 105, 185, 265, 345)
		if got := s.Stats().Interval; got != 80*time.Second {
			t.Errorf("interval of an unchanged map: got %s, want 80s", got)
		}
		time.Sleep(9700 * time.Millisecond) // until 359.7 s
		key, value := entry(1, 2, testKey, testValue)
		tab.Update(func(tx *table.Tx) {
			tx.Local(&table.Change{Key: key, Value: value, Time: time.Now().UnixNano(), Context: table.ContextPacket})
		})
		check("the table has changed", 398, 360, 370, 380, 390)
		mayExtend.Store(false)
		s.Request()
		check("hooks no longer report all changes", 453, 398, 408, 418, 428, 438, 448)
		if got := s.Stats().Interval; got != 10*time.Second {
			t.Errorf("interval without hooks: got %s, want 10s", got)
		}
	})
}

// TestScanIsDue checks when the next scan is due after scans that found no change, and how long the
// scanner waits before it checks again.
func TestScanIsDue(t *testing.T) {
	const base, limit = 10 * time.Second, 35 * time.Second
	unchanged := changeCount{head: 7, unsent: 3}
	for name, c := range map[string]struct {
		max       time.Duration
		count     int
		at        changeCount // of the last scan; the table is at unchanged
		forbidden bool
		since     time.Duration
		due       bool
		wait      time.Duration
	}{
		"just scanned":                        {limit, 0, unchanged, false, 0, false, base},
		"after a long scan":                   {limit, 4, unchanged, false, 8 * time.Second, false, 2 * time.Second},
		"a change does not shorten the base":  {limit, 4, changeCount{}, true, 9 * time.Second, false, time.Second},
		"few unchanged scans":                 {limit, extendAfter - 1, unchanged, false, base, true, 0},
		"enough unchanged scans":              {limit, extendAfter, unchanged, false, base, false, time.Second},
		"the last part of the interval":       {limit, extendAfter, unchanged, false, 20*time.Second - 1, false, 1},
		"twice the base":                      {limit, extendAfter, unchanged, false, 20 * time.Second, true, 0},
		"the limit":                           {limit, extendAfter + 9, unchanged, false, limit - 1, false, 1},
		"beyond the limit":                    {limit, extendAfter + 9, unchanged, false, limit, true, 0},
		"a change that was sent":              {limit, extendAfter, changeCount{head: 6, unsent: 3}, false, base, true, 0},
		"a change that was not sent":          {limit, extendAfter, changeCount{head: 7, unsent: 2}, false, base, true, 0},
		"hooks do not detect all":             {limit, extendAfter, unchanged, true, base, true, 0},
		"no longest interval":                 {0, extendAfter + 9, unchanged, false, base, true, 0},
		"no longest interval, before the end": {0, extendAfter + 9, unchanged, false, base - 1, false, 1},
	} {
		s := newScannerWithoutMap(t, ScannerOptions{Interval: base, MaxInterval: c.max, MayExtend: func() bool { return !c.forbidden }})
		s.unchanged = unchangedScans{count: c.count, at: c.at}
		// The table is empty, so that its counts are 0.
		s.unchanged.at.head -= unchanged.head
		s.unchanged.at.unsent -= unchanged.unsent
		if due, wait := s.due(c.since); due != c.due || wait != c.wait {
			t.Errorf("%s: got %t, wait %s, want %t, %s", name, due, wait, c.due, c.wait)
		}
	}
}

// TestCostlyScansAreRarer checks the interval of an unchanged map against the work of its scans.
func TestCostlyScansAreRarer(t *testing.T) {
	o := ScannerOptions{Interval: 10 * time.Second, MaxInterval: 40 * time.Second, MaxCostlyInterval: 150 * time.Second}
	for _, c := range []struct {
		unchanged  int
		work, want time.Duration
	}{
		{extendAfter - 1, time.Minute, 10 * time.Second},
		{extendAfter, time.Minute, 20 * time.Second},
		{extendAfter + 1, time.Minute, 40 * time.Second},
		{extendAfter + 2, 400 * time.Millisecond, 40 * time.Second},
		{extendAfter + 2, 401 * time.Millisecond, 80 * time.Second},
		{extendAfter + 3, 800 * time.Millisecond, 80 * time.Second},
		{extendAfter + 3, 801 * time.Millisecond, 150 * time.Second},
		{math.MaxInt, time.Minute, 150 * time.Second},
	} {
		if got := o.interval(c.unchanged, c.work); got != c.want {
			t.Errorf("interval after %d unchanged scans of %s: got %s, want %s", c.unchanged, c.work, got, c.want)
		}
	}
	if got := o.IntervalAtRest(401 * time.Millisecond); got != 80*time.Second {
		t.Errorf("interval of an unchanged map: got %s, want 80s", got)
	}
	// An interval that was set is exact, and with takeover-expiry costly scans are as frequent as others.
	for _, most := range []time.Duration{0, 40 * time.Second} {
		o.MaxCostlyInterval = most
		if got := o.IntervalAtRest(time.Minute); got != 40*time.Second {
			t.Errorf("interval of an unchanged map, at most %s: got %s, want 40s", most, got)
		}
	}
	o.MaxInterval, o.MaxCostlyInterval = 0, 0
	if got := o.IntervalAtRest(time.Minute); got != 10*time.Second {
		t.Errorf("interval of an unchanged map without a longer one: got %s, want 10s", got)
	}
}

func TestUnchangedScansAreCounted(t *testing.T) {
	var u unchangedScans
	at := changeCount{head: 5}
	for i, c := range []struct {
		at        changeCount
		mayExtend bool
		want      int
	}{
		{at, true, 0},
		{at, true, 1},
		{at, true, 2},
		{changeCount{head: 5, unsent: 1}, true, 0},
		{changeCount{head: 5, unsent: 1}, true, 1},
		{changeCount{head: 5, unsent: 1}, false, 0},
		{changeCount{head: 5, unsent: 1}, true, 1},
	} {
		if u.finished(c.at, c.mayExtend, 0); u.count != c.want {
			t.Errorf("scan %d: got %d unchanged scans, want %d", i, u.count, c.want)
		}
	}
}

// TestChangesThatAreNotSentCount: a map whose volatile fields change is not an unchanged one.
func TestChangesThatAreNotSentCount(t *testing.T) {
	significant := bytes.Repeat([]byte{0xff}, testValue)
	significant[testValue-1] = 0
	s := newScannerWithoutMap(t, ScannerOptions{})
	s.t = newTable(t, table.Options{Significant: significant})
	key, value := entry(1, 2, testKey, testValue)
	var before changeCount
	for i := range byte(3) {
		value[testValue-1] = i
		s.t.Update(func(tx *table.Tx) {
			tx.Local(&table.Change{Key: key, Value: value, Time: int64(i) + 1, Context: table.ContextPacket})
		})
		after := s.changes()
		if after == before {
			t.Errorf("change %d: got the count of changes %+v as before, want another one", i, after)
		}
		before = after
	}
}

// TestScansFindChangesInUnchangedMap: a change that no hook reports, such as one in place, is found within the interval,
// and within the longest one in a map that does not change otherwise.
func TestScansFindChangesInUnchangedMap(t *testing.T) {
	k := openMap(t, newKernelMap(t, &ebpf.MapSpec{Type: ebpf.Hash, KeySize: testKey, ValueSize: testValue, MaxEntries: 100}), Options{})
	put(t, k, 0, 10, 1)
	tab := newTable(t, table.Options{})
	if _, err := LoadAll(t.Context(), k, tab, now); err != nil {
		t.Fatal(err)
	}
	tab.Update(func(tx *table.Tx) { tx.Adopt(10) })
	const base, longest = 10 * time.Second, 40 * time.Second
	synctest.Test(t, func(t *testing.T) {
		budget := NewScanBudget(1)
		budget.withinShareAt = time.Since(budgetClockStart) // the clock of the test is not that of the budget
		s, err := NewScanner(tab, k, ScannerOptions{
			Interval: base, MaxInterval: longest, MayExtend: func() bool { return true }, Budget: budget,
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.Run(ctx)
		awaitScan := func() {
			for scans := s.Stats().Scans; s.Stats().Scans == scans; time.Sleep(time.Second / 10) {
			}
		}
		// foundAfter changes an entry right after a scan, so that the whole interval passes.
		foundAfter := func(g int) time.Duration {
			awaitScan()
			began, found := time.Now(), tab.Stats().ScanFound
			put(t, k, 0, 1, g)
			for tab.Stats().ScanFound == found {
				time.Sleep(time.Second / 10)
			}
			return time.Since(began).Round(time.Second)
		}
		if got := foundAfter(2); got != base {
			t.Errorf("change of a map that changes: got it found after %s, want %s", got, base)
		}
		for range 2 * extendAfter {
			awaitScan()
		}
		if got := foundAfter(3); got != longest {
			t.Errorf("change of an unchanged map: got it found after %s, want %s", got, longest)
		}
	})
}
