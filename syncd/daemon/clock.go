package daemon

import (
	"time"

	"golang.org/x/sys/unix"
)

// clock is wall time as the product dates changes: the kernel's monotonic clock,
// which also stamps events, plus an offset taken once at start. A step of the wall
// clock while the daemon runs therefore never reorders what one node did.
type clock struct {
	offset int64 // ns to add to CLOCK_MONOTONIC
}

func newClock() clock {
	// The tightest of a few pairs of readings is the one least disturbed.
	best := clock{}
	narrowest := int64(1<<63 - 1)
	for range 16 {
		before := monotonic()
		wall := time.Now().UnixNano()
		width := monotonic() - before
		if width < narrowest {
			narrowest = width
			best.offset = wall - before - width/2
		}
	}
	return best
}

// now returns wall time in ns.
func (c clock) now() int64 { return monotonic() + c.offset }

func (c clock) time() time.Time { return time.Unix(0, c.now()) }

// monotonic reads the clock of bpf_ktime_get_ns.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("read CLOCK_MONOTONIC: " + err.Error()) // no Linux lacks it
	}
	return ts.Nano()
}
