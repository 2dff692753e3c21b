package daemon

import (
	"fmt"
	"time"

	"mapsync/syncd/kmap"
	"mapsync/syncd/schema"

	"golang.org/x/sys/unix"
)

// clock is the wall clock for the times of changes. It is the kernel's monotonic clock, which
// also stamps events, plus an offset that is measured once at the start. Therefore a step of the
// wall clock while the daemon runs never reorders the changes of one node.
type clock struct {
	offset  int64         // ns to add to CLOCK_MONOTONIC
	jiffies *kmap.Jiffies // nil if the jiffies of this kernel could not be measured
}

func newClock(now func() time.Time) clock {
	// Of several pairs of readings, the pair with the shortest interval has the smallest error.
	best := clock{}
	narrowest := int64(1<<63 - 1)
	for range 16 {
		before := monotonic()
		wall := now().UnixNano()
		width := monotonic() - before
		if width < narrowest {
			narrowest = width
			best.offset = wall - before - width/2
		}
	}
	return best
}

// now returns the wall time in ns since the Unix epoch.
func (c clock) now() int64 { return monotonic() + c.offset }

func (c clock) time() time.Time { return time.Unix(0, c.now()) }

// times returns the current relation of the kernel's clocks to this clock. CLOCK_BOOTTIME
// advances while the machine sleeps and CLOCK_MONOTONIC does not, so call times again for each
// use.
func (c clock) times() schema.Times {
	t := schema.Times{Ktime: c.offset, Boottime: c.now() - read(unix.CLOCK_BOOTTIME)}
	if c.jiffies != nil {
		t.Jiffies, t.JiffiesAt, t.Tick = c.jiffies.Count, c.jiffies.At+c.offset, c.jiffies.Tick
	}
	return t
}

// monotonic returns the clock of bpf_ktime_get_ns, in ns.
func monotonic() int64 { return read(unix.CLOCK_MONOTONIC) }

func read(id int32) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic(fmt.Sprintf("read clock %d: %s", id, err)) // unreachable: every Linux kernel has these clocks
	}
	return ts.Nano()
}
