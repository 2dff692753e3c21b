package schema

import (
	"math"
	"time"
)

// Wire values of fields that contain no time. Programs store all ones for "never".
const (
	// forever is a time beyond the range of Unix nanoseconds, or all ones in an unsigned field. The
	// receiver decodes it as the highest value of its field.
	forever = math.MaxInt64
	// minusOne is all ones in a signed field. The receiver decodes it as all ones.
	minusOne = math.MinInt64
)

// coarse is the number of jiffies in a unit of RoleJiffies256.
const coarse = 256

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

// counts reports whether the clock counts jiffies.
func (c clock) counts() bool { return c.role&(RoleJiffies|RoleJiffies256) != 0 }

// wraps reports whether the clock has too few bits for its counter, so that every content is a time.
func (c clock) wraps() bool { return c.role == RoleJiffies && c.size == 4 }

// toWall converts a value to Unix nanoseconds, which are never 0. The value must not be 0, and is
// sign extended if the field is signed. ok is false if t cannot convert it.
func (t *Times) toWall(c clock, v uint64) (ns int64, ok bool) {
	switch {
	case c.counts() && t.Tick <= 0:
		return 0, false
	case c.wraps():
		ns = t.ofJiffies(int64(int32(uint32(v) - uint32(t.Jiffies)))) // the nearest matching value
	case c.signed && v == math.MaxUint64:
		return minusOne, true
	case !c.signed && (v > math.MaxInt64 || v == c.maxValue()):
		return forever, true
	default:
		ns = t.ofReading(c.role, int64(v))
	}
	if ns == 0 {
		ns = 1
	}
	return max(ns, minusOne+1), true
}

// ofReading converts a reading of a clock to Unix nanoseconds.
func (t *Times) ofReading(role Role, v int64) (ns int64) {
	switch role {
	case RoleKtime:
		return addSaturated(v, t.Ktime)
	case RoleBoottime:
		return addSaturated(v, t.Boottime)
	case RoleSeconds:
		return addSaturated(mulSaturated(v, int64(time.Second)), t.Ktime)
	case RoleJiffies256:
		v = mulSaturated(v, coarse)
	}
	return t.ofJiffies(subSaturated(v, int64(t.Jiffies)))
}

// ofJiffies converts a number of jiffies after t.Jiffies to Unix nanoseconds.
func (t *Times) ofJiffies(ticks int64) (ns int64) {
	return addSaturated(mulSaturated(ticks, t.Tick), t.JiffiesAt)
}

// fromWall is the inverse of toWall. It returns the nearest value of the field, never 0.
func (t *Times) fromWall(c clock, ns int64) (v uint64, ok bool) {
	switch {
	case c.counts() && t.Tick <= 0:
		return 0, false
	case c.wraps():
		since := divRounded(subSaturated(ns, t.JiffiesAt), t.Tick)
		ticks := max(math.MinInt32, min(math.MaxInt32, since))
		return uint64(max(uint32(t.Jiffies)+uint32(ticks), 1)), true
	case ns == forever:
		return c.maxValue(), true
	case ns == minusOne && c.signed:
		return math.MaxUint64, true
	case ns == minusOne:
		return c.maxValue(), true
	}
	r := t.reading(c.role, ns)
	nanoseconds := c.role&(RoleKtime|RoleBoottime) != 0
	if r == 0 || r < 0 && (!c.signed || !nanoseconds) {
		return 1, true
	}
	if r > 0 {
		return min(uint64(r), c.maxValue()), true
	}
	return uint64(r), true
}

// reading is the inverse of ofReading.
func (t *Times) reading(role Role, ns int64) int64 {
	switch role {
	case RoleKtime:
		return subSaturated(ns, t.Ktime)
	case RoleBoottime:
		return subSaturated(ns, t.Boottime)
	case RoleSeconds:
		return divRounded(subSaturated(ns, t.Ktime), int64(time.Second))
	}
	jiffies := addSaturated(int64(t.Jiffies), divRounded(subSaturated(ns, t.JiffiesAt), t.Tick))
	if role == RoleJiffies256 {
		return divRounded(jiffies, coarse)
	}
	return jiffies
}

// divRounded divides a by b, which is positive, and rounds to the nearest integer.
func divRounded(a, b int64) int64 {
	q, rest := a/b, a%b
	if rest >= b-rest {
		q++
	} else if -rest >= b+rest {
		q--
	}
	return q
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
