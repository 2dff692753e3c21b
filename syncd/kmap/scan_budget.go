package kmap

import (
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// An urgent scan has urgentFactor times the share of other scans, but at most maxUrgentShare of a
// core, unless the share of other scans is higher.
const (
	urgentFactor   = 4
	maxUrgentShare = 0.2
)

const (
	// minPauseBusy and minPauseIdle are the shortest pauses of a scan, while changes arrive and
	// while none arrive. The budget carries shorter pauses over to the next one. A pause costs more
	// than sleep and wakeup: in the first millisecond after a rest, Go's runtime checks its threads
	// every 20 µs. With pauses of 1 ms, an otherwise idle node would spend nearly as much time on
	// them as on its scans. On a busy node the runtime is awake anyway. There the short pause
	// ensures that a scan works for only a fraction of a millisecond at a time.
	minPauseBusy = 5 * time.Millisecond
	minPauseIdle = time.Second
	// maxCredit is the maximum unused processor time that a scan may use later, because pauses last
	// longer than requested.
	maxCredit = 20 * time.Millisecond
	// overheadDivisor limits the overhead of a scan: at most this fraction of its work is added for
	// the work of the rest of the process.
	overheadDivisor = 8
)

// ScanBudget is the share of one core that scans may use. Scanners with the same ScanBudget use at
// most that share together. It is safe for concurrent use.
type ScanBudget struct {
	share, urgentShare float64

	mu            sync.Mutex
	withinShareAt time.Duration // time from which all work so far is within the share
	urgent        int           // urgent scans in progress
	pausedUntil   time.Time     // scans are paused before this time; zero: never paused
	pauseChanged  chan struct{} // closed when pausedUntil changes; nil until the first pause
}

// NewScanBudget returns a budget of a share of one core, above 0 and at most 1. During an urgent
// scan the share is four times as high, at most 0.2.
func NewScanBudget(share float64) *ScanBudget {
	return &ScanBudget{share: share, urgentShare: max(share, min(urgentFactor*share, maxUrgentShare))}
}

// enter and leave mark the start and the end of a scan.
func (b *ScanBudget) enter(urgent bool) { b.count(urgent, 1) }
func (b *ScanBudget) leave(urgent bool) { b.count(urgent, -1) }

func (b *ScanBudget) count(urgent bool, n int) {
	if urgent {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.urgent += n
	}
}

// spend records processor time that was used until now, and returns the pause to make. now is a
// time of any monotonic clock.
func (b *ScanBudget) spend(now, work time.Duration) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	share := b.share
	if b.urgent > 0 {
		share = b.urgentShare
	}
	b.withinShareAt = max(b.withinShareAt, now-work-maxCredit) + time.Duration(float64(work)/share)
	return max(b.withinShareAt-now, 0)
}

// LongestScan returns the longest duration of a scan that needs the given processor time and uses a share of one core
// alone. Its overhead, if the table does not change meanwhile, uses a part of the share.
func LongestScan(work time.Duration, share float64) time.Duration {
	return time.Duration(float64(work+work/overheadDivisor) / share)
}

// budgetClockStart is the zero time of the clock of budgets.
var budgetClockStart = time.Now()

// meter measures the processor time of the calling goroutine. It locks the goroutine to its thread
// between start and stop.
type meter struct {
	began   time.Duration
	worked  time.Duration // since start
	process time.Duration // of the whole process, at start
}

func (m *meter) start() {
	runtime.LockOSThread()
	m.began, m.worked, m.process = threadTime(), 0, cpuTime(unix.CLOCK_PROCESS_CPUTIME_ID)
}

// lap returns the processor time since start or the last lap.
func (m *meter) lap() time.Duration {
	now := threadTime()
	took := now - m.began
	m.began = now
	m.worked += took
	return took
}

// overhead returns the processor time of the rest of the process since start. On an otherwise idle
// node that is the time of Go's runtime while a thread works. The result is bounded, because other
// work of the process may be included.
func (m *meter) overhead() time.Duration {
	took := cpuTime(unix.CLOCK_PROCESS_CPUTIME_ID) - m.process - m.worked
	return min(max(took, 0), m.worked/overheadDivisor)
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
		panic("read a processor-time clock: " + err.Error()) // every Linux kernel has this clock
	}
	return time.Duration(ts.Nano())
}
