package suggest

import (
	"math"
	"slices"
	"strings"
	"time"

	"mapsync/syncd/schema"
)

// Host is what the values of fields are compared with: clocks, interfaces and network namespaces of this node.
type Host struct {
	// Ktime and Boottime are the current readings of the two clocks in nanoseconds.
	Ktime, Boottime int64
	// Jiffies is the current number of jiffies, and Tick the length of one. Without a Tick no field has them.
	Jiffies uint64
	Tick    time.Duration
	// Interfaces are the indexes of the interfaces.
	Interfaces map[uint64]bool
	// Namespaces returns the inode numbers of network namespaces. It is called only if a field may have one. Nil: none are known.
	Namespaces func() map[uint64]bool
}

const (
	// ahead is how far a time may be after now, for example the expiry of an entry.
	ahead = 7 * 24 * time.Hour
	// bootShare is the first part of the time since boot whose times are not compared: durations and counters are as small.
	bootShare = 100
	// farAhead is a time that no program means.
	farAhead = 10 * 365 * 24 * time.Hour
)

// test is a meaning that the values of a field may have.
type test struct {
	role    string
	bit     schema.Role // of a clock; 0: the values are no time of the field's clock
	meaning string      // of values, as a noun
	clock   bool
	// agrees reports whether a value of a size in bytes has the meaning. away is how far a time is from now, in nanoseconds.
	agrees func(h *Host, size int, v uint64) (away int64, ok bool)
}

// roles returns the roles for a field.
func (t *test) roles(f *schema.Field) string {
	if t.clock && changesWithUse(f.Name) || f.Roles&schema.RoleVolatile != 0 {
		return t.role + ",volatile"
	}
	return t.role
}

// The tests of 8-byte clocks, of clocks of 4 and 8 bytes, and of other numbers.
var (
	nanosecondTests = []test{
		{"ktime", schema.RoleKtime, "times of bpf_ktime_get_ns", true, func(h *Host, _ int, v uint64) (int64, bool) { return near(v, h.Ktime, 1) }},
		{"boottime", schema.RoleBoottime, "times of bpf_ktime_get_boot_ns", true, func(h *Host, _ int, v uint64) (int64, bool) { return near(v, h.Boottime, 1) }},
	}
	coarseTests = []test{
		{"seconds", schema.RoleSeconds, "seconds of bpf_ktime_get_ns", true, func(h *Host, _ int, v uint64) (int64, bool) { return near(v, h.Ktime, time.Second) }},
		{"jiffies", schema.RoleJiffies, "jiffies", true, func(h *Host, size int, v uint64) (int64, bool) { return h.nearJiffies(v, size, 1) }},
		{"jiffies/256", schema.RoleJiffies256, "jiffies / 256", true, func(h *Host, _ int, v uint64) (int64, bool) { return h.nearJiffies(v, 8, 256) }},
	}
	interfaceTest = test{role: "ifindex", meaning: "indexes of this node's interfaces", agrees: func(h *Host, _ int, v uint64) (int64, bool) { return 0, h.Interfaces[v] }}
	namespaceTest = test{role: "local", meaning: "network namespaces of this node", agrees: func(h *Host, _ int, v uint64) (int64, bool) { return 0, h.Namespaces != nil && h.Namespaces()[v] }}

	wordTests = nanosecondTests
)

// testsOf returns the tests that fit the type, the roles and the name of a field.
func testsOf(f *schema.Field, key, inUnion bool) (list []test) {
	number := f.Kind == schema.KindUint || f.Kind == schema.KindSint || f.Kind == schema.KindTime
	if role := f.Roles & schema.RoleTime; number && role != 0 {
		return append(clockTests(f), tooFar(role))
	}
	if !number || f.Roles&^schema.RoleVolatile != 0 {
		return nil
	}
	if namesTime(f.Name) && !key {
		list = append(list, clockTests(f)...)
	}
	if namesInterface(f.Name) && f.Size >= 2 {
		list = append(list, interfaceTest)
	}
	if namesNamespace(f.Name) && f.Size >= 4 && !key && !inUnion {
		list = append(list, namespaceTest)
	}
	return list
}

// clockTests returns the tests of the clocks that a field can have.
func clockTests(f *schema.Field) (list []test) {
	if f.Size == 8 {
		list = append(list, nanosecondTests...)
		if strings.Contains(strings.ToLower(f.Name), "boot") {
			slices.Reverse(list)
		}
	}
	if f.Size >= 4 {
		list = append(list, coarseTests...)
	}
	return list
}

// tooFar returns the test for values that are no times of a clock.
func tooFar(role schema.Role) test {
	return test{agrees: func(h *Host, size int, v uint64) (int64, bool) {
		switch jiffies := int64(h.Jiffies) * int64(h.Tick); role {
		case schema.RoleKtime:
			return 0, after(v, h.Ktime, 1)
		case schema.RoleBoottime:
			return 0, after(v, h.Boottime, 1)
		case schema.RoleSeconds:
			return 0, after(v, h.Ktime, time.Second)
		case schema.RoleJiffies:
			return 0, size == 8 && h.Tick > 0 && after(v, jiffies, h.Tick)
		default:
			return 0, h.Tick > 0 && after(v, jiffies, 256*h.Tick)
		}
	}}
}

// after reports whether a value in a unit is years after now, in nanoseconds.
func after(v uint64, now int64, unit time.Duration) bool {
	return v > (uint64(now)+uint64(farAhead))/uint64(unit)
}

// near reports whether a value in a unit is a time since boot or soon, and how far it is from now. now is in nanoseconds.
func near(v uint64, now int64, unit time.Duration) (away int64, ok bool) {
	if v > math.MaxInt64/uint64(unit) {
		return 0, false
	}
	ns := int64(v) * int64(unit)
	return max(now-ns, ns-now), ns >= now/bootShare && ns <= now+int64(ahead)
}

// nearJiffies is near for a counter of jiffies of size bytes, in units. The counter starts 5 minutes before it wraps in 32 bits.
func (h *Host) nearJiffies(v uint64, size, unit int) (away int64, ok bool) {
	if h.Tick <= 0 || v > math.MaxInt64/uint64(unit) {
		return 0, false
	}
	since := int64(v)*int64(unit) - int64(h.Jiffies)
	if size == 4 {
		since = int64(int32(uint32(v) - uint32(h.Jiffies)))
	}
	uptime := h.Boottime / int64(h.Tick)
	ok = since >= -uptime && since <= int64(ahead/h.Tick)
	return max(since, -since) * int64(h.Tick), ok
}
