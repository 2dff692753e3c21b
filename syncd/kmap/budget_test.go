package kmap

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// paced lets scanners work one chunk after the other, on as many processors as they like, and
// pause as the budget says and longer, but never for less than least, for a minute, and returns
// the share of a core that they took.
func paced(b *ScanBudget, from time.Duration, scanners int, least time.Duration, random *rand.Rand) float64 {
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
			now += rest + time.Duration(random.Int64N(int64(2*time.Millisecond))) // nobody wakes in time
		}
		next[first] = now
	}
}

func TestScansKeepToTheirBudget(t *testing.T) {
	for _, least := range []time.Duration{busyPause, calmPause} {
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
		{0.1, 3, true, 0.2}, // no more than that in sum
		{0.5, 3, true, 0.5},
		{1, 1, false, 1},
	} {
		b := NewScanBudget(test.share)
		b.enter(test.urgent)
		b.enter(false)
		got := paced(b, 0, test.scanners, least, rand.New(rand.NewPCG(1, 2)))
		if got > test.want*1.02 || got < test.want*0.95 {
			t.Errorf("%+v: %.4f of a core", test, got)
		}
		b.leave(false)
		b.leave(test.urgent)
		got = paced(b, 2*time.Minute, 1, least, rand.New(rand.NewPCG(3, 4)))
		if got > test.share*1.02 || got < test.share*0.95 {
			t.Errorf("%+v: %.4f of a core when nothing is urgent any more", test, got)
		}
	}
}

// What was not used for long is not saved up.
func TestScansSaveNothingUp(t *testing.T) {
	b := NewScanBudget(0.05)
	b.spend(time.Millisecond, time.Millisecond)
	const work = 2 * time.Millisecond
	if rest := b.spend(time.Hour, work); rest != work*20-work-mostCredit {
		t.Errorf("pause of %s after an hour of rest", rest)
	}
}

// What other threads do while a scan works is not all its own.
func TestWhatIsDoneBesidesIsBounded(t *testing.T) {
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
	if besides := m.besides(); besides <= 0 || besides > m.worked/besidesFactor {
		t.Errorf("%s besides a work of %s", besides, m.worked)
	}
	m.stop()
	stop.Store(true)
	others.Wait()
}
