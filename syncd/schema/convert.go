package schema

import (
	"math"
	"time"
)

// forever is what an instant beyond the end of Unix nanoseconds is on the wire, such
// as the -1 that stands for "never" in an unsigned field. It comes out as the highest
// value that the receiver's field holds.
const forever = math.MaxInt64

// noTimes stands for times that are not given. Nothing writes to it.
var noTimes Times

// clock says how a field holds time.
type clock struct {
	role   Role  // the one time role
	size   uint8 // bytes: 4 or 8
	signed bool
}

func clockOf(f *Field) clock {
	return clock{role: f.Roles & RoleTime, size: uint8(f.Size), signed: f.Signed}
}

// most returns the highest value that the field holds.
func (c clock) most() uint64 {
	m := uint64(math.MaxUint64) >> (64 - 8*c.size)
	if c.signed {
		m >>= 1
	}
	return m
}

// toWall converts a value that is not 0, sign extended when the field is signed, to
// Unix nanoseconds, which are never 0. ok is false when t does not say how.
func (t *Times) toWall(c clock, v uint64) (ns int64, ok bool) {
	if c.role == RoleJiffies && t.Tick <= 0 {
		return 0, false
	}
	if !c.signed && v > math.MaxInt64 {
		return forever, true
	}
	switch c.role {
	case RoleKtime:
		ns = addSaturated(int64(v), t.Ktime)
	case RoleBoottime:
		ns = addSaturated(int64(v), t.Boottime)
	case RoleSeconds:
		ns = addSaturated(mulSaturated(int64(v), int64(time.Second)), t.Ktime)
	case RoleJiffies:
		ticks := int64(v - t.Jiffies)
		if c.size == 4 {
			ticks = int64(int32(ticks)) // they wrap: the nearest that fits
		}
		ns = addSaturated(mulSaturated(ticks, t.Tick), t.JiffiesAt)
	}
	if ns == 0 {
		ns = 1
	}
	return ns, true
}

// fromWall is the inverse of toWall: the nearest value that the field holds, never 0.
func (t *Times) fromWall(c clock, ns int64) (v uint64, ok bool) {
	if c.role == RoleJiffies {
		return t.jiffies(c, ns)
	}
	if ns == forever {
		return c.most(), true
	}
	var r int64
	switch c.role {
	case RoleKtime:
		r = subSaturated(ns, t.Ktime)
	case RoleBoottime:
		r = subSaturated(ns, t.Boottime)
	case RoleSeconds:
		r = subSaturated(ns, t.Ktime) / int64(time.Second)
	}
	if r == 0 || r < 0 && (!c.signed || c.size < 8 || c.role == RoleSeconds) {
		return 1, true
	}
	if r > 0 {
		return min(uint64(r), c.most()), true
	}
	return uint64(r), true
}

func (t *Times) jiffies(c clock, ns int64) (v uint64, ok bool) {
	if t.Tick <= 0 {
		return 0, false
	}
	since := subSaturated(ns, t.JiffiesAt)
	ticks := since / t.Tick
	if rest := since % t.Tick; rest >= t.Tick-rest {
		ticks++
	} else if -rest >= t.Tick+rest {
		ticks--
	}
	switch {
	case c.size == 4:
		ticks = max(math.MinInt32, min(math.MaxInt32, ticks))
		v = uint64(uint32(t.Jiffies) + uint32(ticks))
	case ns == forever:
		v = c.most()
	default:
		v = min(c.most(), uint64(max(0, addSaturated(int64(t.Jiffies), ticks))))
	}
	return max(v, 1), true
}

func addSaturated(a, b int64) int64 {
	s := a + b
	if (a^s)&(b^s) < 0 {
		return limit(a)
	}
	return s
}

func subSaturated(a, b int64) int64 {
	s := a - b
	if (a^b)&(a^s) < 0 {
		return limit(a)
	}
	return s
}

// mulSaturated multiplies by b, which is positive.
func mulSaturated(a, b int64) int64 {
	if a > math.MaxInt64/b || a < math.MinInt64/b {
		return limit(a)
	}
	return a * b
}

// limit returns the end of the range on a's side.
func limit(a int64) int64 {
	if a < 0 {
		return math.MinInt64
	}
	return math.MaxInt64
}
