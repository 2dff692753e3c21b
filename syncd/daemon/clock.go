package daemon

import (
	"fmt"
	"time"

	"mapsync/syncd/kmap"
	"mapsync/syncd/schema"

	"golang.org/x/sys/unix"
)

// clock is wall time as the product dates changes: the kernel's monotonic clock,
// which also stamps events, plus an offset taken once at start. A step of the wall
// clock while the daemon runs therefore never reorders what one node did.
type clock struct {
	offset  int64         // ns to add to CLOCK_MONOTONIC
	jiffies *kmap.Jiffies // nil when the kernel would not tell
}

func newClock(now func() time.Time) clock {
	// The tightest of a few pairs of readings is the one least disturbed.
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

// now returns wall time in ns.
func (c clock) now() int64 { return monotonic() + c.offset }

func (c clock) time() time.Time { return time.Unix(0, c.now()) }

// times says how the kernel's clocks relate to this one now. While the machine
// sleeps CLOCK_BOOTTIME goes on and CLOCK_MONOTONIC does not, so ask again each time.
func (c clock) times() schema.Times {
	t := schema.Times{Ktime: c.offset, Boottime: c.now() - read(unix.CLOCK_BOOTTIME)}
	if c.jiffies != nil {
		t.Jiffies, t.JiffiesAt, t.Tick = c.jiffies.Count, c.jiffies.At+c.offset, c.jiffies.Tick
	}
	return t
}

// monotonic reads the clock of bpf_ktime_get_ns.
func monotonic() int64 { return read(unix.CLOCK_MONOTONIC) }

func read(id int32) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		panic(fmt.Sprintf("read clock %d: %s", id, err)) // no Linux lacks it
	}
	return ts.Nano()
}
