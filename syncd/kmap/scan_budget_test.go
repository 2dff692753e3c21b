package kmap

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// simulateScans simulates scanners for a minute, on any number of processors, and returns the share
// of a core that they used. The scanners work one chunk after the other. They pause as long as the
// budget requires or longer, but not for less than least.
func simulateScans(b *ScanBudget, from time.Duration, scanners int, least time.Duration, random *rand.Rand) float64 {
	const span = time.Minute
	var work time.Duration
	next := make([]time.Duration, scanners)
	for i := range next {
		next[i] = from
	}
	for {
		first := 0
		for i := range next {
			if next[i] < next[first] {
				first = i
			}
		}
		now := next[first]
		if now > from+span {
			return float64(work) / float64(span)
		}
		chunk := time.Duration(random.Int64N(int64(500 * time.Microsecond)))
		work += chunk
		now += chunk
		if rest := b.spend(now, chunk); rest >= least {
			now += rest + time.Duration(random.Int64N(int64(2*time.Millisecond))) // wakeups are late
		}
		next[first] = now
	}
}

func TestScanBudgetLimitsCPUShare(t *testing.T) {
	for _, least := range []time.Duration{minPauseBusy, minPauseIdle} {
		testBudget(t, least)
	}
}

func testBudget(t *testing.T, least time.Duration) {
	for _, test := range []struct {
		share    float64
		scanners int
		urgent   bool
		want     float64
	}{
		{0.05, 1, false, 0.05},
		{0.05, 7, false, 0.05},
		{0.05, 1, true, 0.2},
		{0.05, 7, true, 0.2},
		{0.01, 3, true, 0.04},
		{0.1, 3, true, 0.2}, // at most 0.2 in total
		{0.5, 3, true, 0.5},
		{1, 1, false, 1},
	} {
		b := NewScanBudget(test.share)
		b.enter(test.urgent)
		b.enter(false)
		got := simulateScans(b, 0, test.scanners, least, rand.New(rand.NewPCG(1, 2)))
		if got > test.want*1.02 || got < test.want*0.95 {
			t.Errorf("%+v: got %.4f of a core, want at most %.4f and at least %.4f", test, got, test.want*1.02, test.want*0.95)
		}
		b.leave(false)
		b.leave(test.urgent)
		got = simulateScans(b, 2*time.Minute, 1, least, rand.New(rand.NewPCG(3, 4)))
		if got > test.share*1.02 || got < test.share*0.95 {
			t.Errorf("%+v: got %.4f of a core after the urgent scan, want at most %.4f and at least %.4f", test, got, test.share*1.02, test.share*0.95)
		}
	}
}

// TestLongestScan simulates scans of one second of work, with the most overhead that counts: LongestScan is an upper
// bound of their durations, and not much longer.
func TestLongestScan(t *testing.T) {
	const total, chunk = time.Second, 300 * time.Microsecond
	for _, share := range []float64{0.01, 0.05, 0.5, 1} {
		for _, least := range []time.Duration{minPauseBusy, minPauseIdle} {
			b := NewScanBudget(share)
			var now, work, sinceStart time.Duration
			for work < total {
				work += chunk
				sinceStart += chunk
				now += chunk
				rest := b.spend(now, chunk)
				if rest < least {
					continue
				}
				if least == minPauseIdle {
					rest = b.spend(now, sinceStart/overheadDivisor)
					sinceStart = 0
				}
				now += rest
			}
			longest := LongestScan(work, share)
			if now > longest || now < longest*8/10-least {
				t.Errorf("share %v, pauses from %s on: got %s, want at most %s, and at least 80 %% of it less one pause", share, least, now, longest)
			}
		}
	}
}

// TestScanBudgetCreditIsLimited checks that processor time unused for long is not saved up.
func TestScanBudgetCreditIsLimited(t *testing.T) {
	b := NewScanBudget(0.05)
	b.spend(time.Millisecond, time.Millisecond)
	const work = 2 * time.Millisecond
	if rest := b.spend(time.Hour, work); rest != work*20-work-maxCredit {
		t.Errorf("pause after an hour of rest: got %s, want %s", rest, work*20-work-maxCredit)
	}
}

// TestScanOverheadIsBounded checks that the work of other threads during a scan is only partly
// counted as its overhead.
func TestScanOverheadIsBounded(t *testing.T) {
	var stop atomic.Bool
	var others sync.WaitGroup
	for range 4 {
		others.Go(func() {
			for !stop.Load() {
			}
		})
	}
	var m meter
	m.start()
	for m.worked < 20*time.Millisecond {
		m.lap()
	}
	if besides := m.overhead(); besides <= 0 || besides > m.worked/overheadDivisor {
		t.Errorf("overhead: got %s, want more than 0 and at most %s for work of %s", besides, m.worked/overheadDivisor, m.worked)
	}
	m.stop()
	stop.Store(true)
	others.Wait()
}
