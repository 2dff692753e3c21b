package schema

import (
	"math"
	"time"
)

// forever is the wire value of a time beyond the range of Unix nanoseconds, for example -1 in an
// unsigned field, which stands for "never". The receiver decodes it as the highest value of its
// field.
const forever = math.MaxInt64

// noTimes is used if no Times are given. It is never modified.
var noTimes Times

// clock describes how a field contains time.
type clock struct {
	role   Role  // the one time role
	size   uint8 // bytes: 4 or 8
	signed bool
}

func clockOf(f *Field) clock {
	return clock{role: f.Roles & RoleTime, size: uint8(f.Size), signed: f.Signed}
}

// maxValue returns the highest value of the field.
func (c clock) maxValue() uint64 {
	m := uint64(math.MaxUint64) >> (64 - 8*c.size)
	if c.signed {
		m >>= 1
	}
	return m
}

// toWall converts a value to Unix nanoseconds, which are never 0. The value must not be 0, and is
// sign extended if the field is signed. ok is false if t cannot convert it.
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
			ticks = int64(int32(ticks)) // the counter wraps: the nearest matching value
		}
		ns = addSaturated(mulSaturated(ticks, t.Tick), t.JiffiesAt)
	}
	if ns == 0 {
		ns = 1
	}
	return ns, true
}

// fromWall is the inverse of toWall. It returns the nearest value of the field, never 0.
func (t *Times) fromWall(c clock, ns int64) (v uint64, ok bool) {
	if c.role == RoleJiffies {
		return t.jiffies(c, ns)
	}
	if ns == forever {
		return c.maxValue(), true
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
		return min(uint64(r), c.maxValue()), true
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
		v = c.maxValue()
	default:
		v = min(c.maxValue(), uint64(max(0, addSaturated(int64(t.Jiffies), ticks))))
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

// mulSaturated multiplies a by b, which is positive. It saturates on overflow.
func mulSaturated(a, b int64) int64 {
	if a > math.MaxInt64/b || a < math.MinInt64/b {
		return limit(a)
	}
	return a * b
}

// limit returns the minimum or maximum int64, by the sign of a.
func limit(a int64) int64 {
	if a < 0 {
		return math.MinInt64
	}
	return math.MaxInt64
}
