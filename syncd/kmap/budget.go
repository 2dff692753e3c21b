package kmap

import (
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// An urgent scan has urgentFactor times the share of others, but no more than
// urgentMost of a core, unless others have that already.
const (
	urgentFactor = 4
	urgentMost   = 0.2
)

const (
	// leastPause is the shortest pause that is worth being woken for; what is owed
	// below it is kept for the next one.
	leastPause = time.Millisecond
	// mostCredit is how much of what a scan did not use it may use later: pauses
	// last longer than asked for.
	mostCredit = 20 * time.Millisecond
)

// ScanBudget is the share of one core that scans may take. Scanners that have the same
// one take no more than that together. It is safe for concurrent use.
type ScanBudget struct {
	calm, hurry float64

	mu     sync.Mutex
	even   time.Duration // when all that was spent is within the share again
	urgent int           // urgent scans under way
}

// NewScanBudget returns a budget of a share of one core, above 0 and at most 1.
// While an urgent scan is under way it is four times that, at most 0.2.
func NewScanBudget(share float64) *ScanBudget {
	return &ScanBudget{calm: share, hurry: max(share, min(urgentFactor*share, urgentMost))}
}

// enter and leave stand around a scan.
func (b *ScanBudget) enter(urgent bool) { b.count(urgent, 1) }
func (b *ScanBudget) leave(urgent bool) { b.count(urgent, -1) }

func (b *ScanBudget) count(urgent bool, n int) {
	if urgent {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.urgent += n
	}
}

// spend notes processor time that was spent up to now, a time of any clock that does not
// step back, and returns how long to pause.
func (b *ScanBudget) spend(now, work time.Duration) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	share := b.calm
	if b.urgent > 0 {
		share = b.hurry
	}
	b.even = max(b.even, now-work-mostCredit) + time.Duration(float64(work)/share)
	return max(b.even-now, 0)
}

// started is the beginning of the clock of budgets.
var started = time.Now()

// meter measures what the calling goroutine takes of a processor, for which it
// stays on one thread between start and stop.
type meter struct {
	began time.Duration
}

func (m *meter) start() {
	runtime.LockOSThread()
	m.began = threadTime()
}

func (m *meter) stop() time.Duration {
	defer runtime.UnlockOSThread()
	return threadTime() - m.began
}

// threadTime returns the processor time of the calling thread.
func threadTime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		panic("read the thread's clock: " + err.Error()) // no Linux lacks it
	}
	return time.Duration(ts.Nano())
}
