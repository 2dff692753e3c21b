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
	// busyPause and calmPause are the shortest pauses that are worth being woken for, while changes
	// come in and while none do; what is owed below is kept for the next pause. A pause costs
	// more than sleep and waking: Go's runtime looks every 20 µs what its threads do in
	// the first millisecond after a rest, and with pauses of 1 ms a node with nothing else to do
	// spends nearly as much on them as on its scans. When it is busy the runtime is awake anyway, and
	// what counts is that a scan works for a fraction of a millisecond at a time.
	busyPause = 5 * time.Millisecond
	calmPause = time.Second
	// mostCredit is how much of what a scan did not use it may use later: pauses
	// last longer than asked for.
	mostCredit = 20 * time.Millisecond
	// besidesFactor: of what the rest of the process does while a scan works, no more than this
	// part of its work is counted as its own.
	besidesFactor = 8
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
	began   time.Duration
	worked  time.Duration // since start
	process time.Duration // of the whole process, at start
}

func (m *meter) start() {
	runtime.LockOSThread()
	m.began, m.worked, m.process = threadTime(), 0, cpuTime(unix.CLOCK_PROCESS_CPUTIME_ID)
}

// lap returns what was taken since start or the last lap.
func (m *meter) lap() time.Duration {
	now := threadTime()
	took := now - m.began
	m.began = now
	m.worked += took
	return took
}

// besides returns what the process took besides since start. In a node that has nothing else to do
// it is what Go's runtime does while a thread works; it is bounded, lest something else be
// taken for that.
func (m *meter) besides() time.Duration {
	took := cpuTime(unix.CLOCK_PROCESS_CPUTIME_ID) - m.process - m.worked
	return min(max(took, 0), m.worked/besidesFactor)
}

func (m *meter) stop() time.Duration {
	defer runtime.UnlockOSThread()
	return m.lap()
}

// threadTime returns the processor time of the calling thread.
func threadTime() time.Duration { return cpuTime(unix.CLOCK_THREAD_CPUTIME_ID) }

func cpuTime(clock int32) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		panic("read a processor-time clock: " + err.Error()) // no Linux lacks it
	}
	return time.Duration(ts.Nano())
}
