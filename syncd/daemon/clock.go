package daemon

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"mapsync/syncd/kmap"
	"mapsync/syncd/schema"

	"golang.org/x/sys/unix"
)

// clockTolerance is the smallest difference that counts as a step of the wall clock. NTP slews the wall clock
// and the monotonic clock alike, so smaller differences come from the measurement.
const clockTolerance = int64(time.Millisecond)

// clock has the two clocks of the daemon.
//
// Local time orders the changes of this node. It is the kernel's monotonic clock, which also stamps events,
// plus an offset that never changes. No step of the wall clock reorders local time.
//
// Wall time is the wall clock. Versions, their limits and time stamps on the wire follow it. Each use
// compares it with the machine's wall clock, so it follows a step, or a resume from suspend, at once.
type clock struct {
	readWall func() time.Time
	readMono func() int64
	// start is the fixed offset of local time from the monotonic clock, in ns.
	start int64
	// offset is wall time minus local time, in ns.
	offset atomic.Int64
	// stepping serialises the changes of offset.
	stepping sync.Mutex
	// stepped is called after each change of offset with the size of the step. It must not block. Nil: no call.
	stepped func(step time.Duration)
	jiffies *kmap.Jiffies // nil if the jiffies of this kernel could not be measured
}

func newClock(wall func() time.Time, mono func() int64) *clock {
	c := &clock{readWall: wall, readMono: mono}
	c.start = c.measure()
	return c
}

// measure returns the wall clock minus the monotonic clock, in ns.
func (c *clock) measure() (offset int64) {
	// Of several pairs of readings, the pair with the shortest interval has the smallest error.
	narrowest := int64(1<<63 - 1)
	for range 16 {
		before := c.readMono()
		wall := c.readWall().UnixNano()
		width := c.readMono() - before
		if width < narrowest {
			narrowest = width
			offset = wall - before - width/2
		}
	}
	return offset
}

// now returns local time in ns since the Unix epoch.
func (c *clock) now() int64 { return c.readMono() + c.start }

// wall returns wall time.
func (c *clock) wall() time.Time {
	c.follow()
	return time.Unix(0, c.now()+c.offset.Load())
}

// follow makes wall time follow the machine's wall clock if that was stepped.
func (c *clock) follow() {
	if c.differs(c.readWall().UnixNano() - c.now()) {
		c.step()
	}
}

// differs reports whether a measured offset shows a step.
func (c *clock) differs(offset int64) bool {
	return time.Duration(offset-c.offset.Load()).Abs() > time.Duration(clockTolerance)
}

// step measures the offset again. An interruption between two readings is not taken for a step.
func (c *clock) step() {
	c.stepping.Lock()
	defer c.stepping.Unlock()
	offset := c.measure() - c.start
	if !c.differs(offset) {
		return
	}
	step := offset - c.offset.Swap(offset)
	if c.stepped != nil {
		c.stepped(time.Duration(step))
	}
}

// times returns the current relation of the kernel's clocks to wall time. CLOCK_BOOTTIME
// advances while the machine sleeps and CLOCK_MONOTONIC does not, so call times again for each
// use.
func (c *clock) times() schema.Times {
	c.follow()
	offset := c.start + c.offset.Load()
	t := schema.Times{Ktime: offset, Boottime: c.readMono() + offset - read(unix.CLOCK_BOOTTIME)}
	if c.jiffies != nil {
		t.Jiffies, t.JiffiesAt, t.Tick = c.jiffies.Count, c.jiffies.At+offset, c.jiffies.Tick
	}
	return t
}

// unsynchronised reports whether the kernel has the wall clock as not synchronised.
func unsynchronised() bool {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	return err == nil && (state == unix.TIME_ERROR || t.Status&unix.STA_UNSYNC != 0)
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
