package kmap

import (
	"math"
	"runtime"
	"sync/atomic"
	"time"
)

// CallKind is a kind of system call that reads or writes a map, or creates a large one.
type CallKind int

// The kinds of calls.
const (
	CallProgram      CallKind = iota // runs a program that reads or writes entries
	CallElement                      // reads or writes one entry
	CallBatch                        // reads or writes many entries
	CallIterator                     // reads from an iterator
	CallCreateBuffer                 // creates the ring buffer of events
	CallCreateSums                   // creates the map of sums of a drained map

	callKinds = iota
)

// String returns the value of the label call of mapsync_kernel_call_seconds.
func (c CallKind) String() string {
	return [...]string{"program", "element", "batch", "iterator", "create_buffer", "create_sums"}[c]
}

// callBounds are the upper bounds of the buckets of CallDurations.
var callBounds = [...]time.Duration{
	10 * time.Microsecond, 25 * time.Microsecond, 50 * time.Microsecond,
	100 * time.Microsecond, 250 * time.Microsecond, 500 * time.Microsecond,
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond,
	10 * time.Millisecond, 25 * time.Millisecond, 100 * time.Millisecond,
}

// CallDurations are the durations of one kind of calls of this process. A duration is the time for which the
// call had a processor, without the time in which the kernel ran other threads on it. Unless the kernel accounts for
// interrupts separately (CONFIG_IRQ_TIME_ACCOUNTING), it includes theirs.
type CallDurations struct {
	Kind  CallKind
	Count uint64
	Sum   time.Duration
	// Longest is the duration of the longest call.
	Longest time.Duration
	// Within has the number of calls of at most a duration in seconds, as a Prometheus histogram.
	Within map[float64]uint64
}

// callCounts are the calls of all maps of the process.
var callCounts [callKinds]struct {
	sum     atomic.Int64 // ns
	longest atomic.Int64 // ns
	buckets [len(callBounds) + 1]atomic.Uint64
	// recent has the longest call of each of the latest seconds: the second since recentStart in the upper half, and the
	// duration in recentUnit in the lower one.
	recent [recentSeconds]atomic.Uint64
}

// MaxRecent is the longest window of LongestCalls.
const MaxRecent = 10 * time.Minute

const (
	recentSeconds = int(MaxRecent/time.Second) + 2
	recentUnit    = 100 * time.Nanosecond
)

// recentStart is before all calls.
var recentStart = time.Now().Add(-time.Second)

// startCall returns the processor time of this thread and keeps the goroutine on it. ended must follow.
func startCall() time.Duration {
	runtime.LockOSThread()
	return threadTime()
}

// ended counts a call that began at start, as startCall returned it.
func (c CallKind) ended(start time.Duration) {
	d := threadTime() - start
	runtime.UnlockOSThread()
	c.count(d)
}

// Measure counts the processor time of a call of this kind.
func (c CallKind) Measure(call func()) {
	defer c.ended(startCall())
	call()
}

func (c CallKind) count(d time.Duration) {
	b := 0
	for b < len(callBounds) && d > callBounds[b] {
		b++
	}
	n := &callCounts[c]
	n.sum.Add(int64(d))
	n.buckets[b].Add(1)
	for was := n.longest.Load(); int64(d) > was && !n.longest.CompareAndSwap(was, int64(d)); was = n.longest.Load() {
	}
	second := uint64(time.Since(recentStart) / time.Second)
	recent, now := &n.recent[second%uint64(recentSeconds)], second<<32|uint64(min(d/recentUnit, math.MaxUint32))
	// Another second, or a shorter call.
	for was := recent.Load(); now > was && !recent.CompareAndSwap(was, now); was = recent.Load() {
	}
}

// LongestCalls returns the longest call of each kind that ended within the last window of up to MaxRecent, or within a
// second before it. It is 0 without a call.
func LongestCalls(window time.Duration) (longest [callKinds]time.Duration) {
	now := uint64(time.Since(recentStart) / time.Second)
	first := now - min(now, uint64((window+time.Second-1)/time.Second))
	for kind := range longest {
		for i := range callCounts[kind].recent {
			last := callCounts[kind].recent[i].Load()
			if second := last >> 32; second >= first && second <= now {
				longest[kind] = max(longest[kind], time.Duration(last&math.MaxUint32)*recentUnit)
			}
		}
	}
	return longest
}

// Calls returns the durations of all calls of this process, by kind. The caller owns the result.
func Calls() []CallDurations {
	all := make([]CallDurations, callKinds)
	for kind := range all {
		c, d := &callCounts[kind], &all[kind]
		d.Kind, d.Within = CallKind(kind), make(map[float64]uint64, len(callBounds))
		d.Sum, d.Longest = time.Duration(c.sum.Load()), time.Duration(c.longest.Load())
		for i := range c.buckets {
			d.Count += c.buckets[i].Load()
			if i < len(callBounds) {
				d.Within[callBounds[i].Seconds()] = d.Count
			}
		}
	}
	return all
}
