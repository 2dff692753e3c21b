package daemon

import (
	"sync/atomic"
	"testing"
	"time"
)

// machine has the clocks of a machine that tests set.
type machine struct{ mono, wall atomic.Int64 }

// pass lets both clocks pass.
func (m *machine) pass(d time.Duration) { m.mono.Add(int64(d)); m.wall.Add(int64(d)) }

// newMachine returns a machine that has run for an hour, and its clock.
func newMachine() (*machine, *clock, *[]time.Duration) {
	m, steps := &machine{}, &[]time.Duration{}
	m.mono.Store(int64(time.Hour))
	m.wall.Store(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano())
	c := newClock(func() time.Time { return time.Unix(0, m.wall.Load()) }, m.mono.Load)
	c.stepped = func(d time.Duration) { *steps = append(*steps, d) }
	return m, c, steps
}

// Wall time and time stamps follow each step at once. Local time passes like the monotonic clock.
func TestClockFollowsSteps(t *testing.T) {
	for name, step := range map[string]time.Duration{"resume": 20 * time.Minute, "set back": -20 * time.Minute, "small step": 2 * time.Millisecond} {
		m, c, steps := newMachine()
		began := c.now()
		if c.wall().UnixNano() != began || len(*steps) != 0 {
			t.Fatalf("%s: got wall time %d and steps %v at the start, want local time %d", name, c.wall().UnixNano(), *steps, began)
		}
		m.pass(time.Minute)
		m.wall.Add(int64(step))
		if got := c.wall().UnixNano(); got != m.wall.Load() {
			t.Errorf("%s: got wall time %d, want %d", name, got, m.wall.Load())
		}
		if passed := c.now() - began; passed != int64(time.Minute) {
			t.Errorf("%s: local time passed by %d, want a minute", name, passed)
		}
		if got := c.times().Ktime; got != m.wall.Load()-m.mono.Load() {
			t.Errorf("%s: offset of time stamps: got %d, want %d", name, got, m.wall.Load()-m.mono.Load())
		}
		if len(*steps) != 1 || (*steps)[0] != step {
			t.Errorf("%s: got steps %v, want one", name, *steps)
		}
	}
}

// Small steps that add up are followed, too. Differences below the tolerance are not, so that the time stamps of
// two readings of one entry are equal.
func TestClockSumsUpSmallSteps(t *testing.T) {
	m, c, steps := newMachine()
	for range 10 {
		m.pass(time.Second)
		m.wall.Add(int64(400 * time.Microsecond))
		if off := (c.wall().UnixNano() - m.wall.Load()); time.Duration(off).Abs() > time.Duration(clockTolerance) {
			t.Fatalf("wall time is off by %d ns", off)
		}
	}
	if n := len(*steps); n != 3 {
		t.Errorf("got %d steps, want 3", n)
	}
}

// A reading that was interrupted between the two clocks is no step.
func TestInterruptedReadingIsNoStep(t *testing.T) {
	m, c, steps := newMachine()
	reads := 0
	c.readWall = func() time.Time {
		wall := time.Unix(0, m.wall.Load())
		if reads++; reads == 1 {
			m.pass(time.Second)
		}
		return wall
	}
	c.follow()
	if reads < 2 || len(*steps) != 0 || c.offset.Load() != 0 {
		t.Errorf("got %d readings, steps %v and offset %d, want no step", reads, *steps, c.offset.Load())
	}
}
