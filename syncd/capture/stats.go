package capture

import (
	"slices"
	"sync"

	"github.com/cilium/ebpf/link"
)

// Contexts is the number of contexts of an event: table.ContextPacket to table.ContextOwn.
const Contexts = 4

// Stats are counters since Open.
type Stats struct {
	Events    uint64           // events applied to tables
	ByContext [Contexts]uint64 // the same, by write context
	Malformed uint64           // events that do not fit the layout of their map
	Unwatched uint64           // events of maps that are no longer watched

	Seen   uint64 // runs of a hook for a watched map
	Failed uint64 // writes that the kernel refused
	Own    uint64 // syncd's own writes

	// Lookups counts lookups of entries that a hook has reported. LookupsMissed counts those that no hook has
	// reported: above the limits, or because the kernel skipped the hook's run for any map. A scan finds changes
	// in place that follow them.
	Lookups, LookupsMissed uint64

	LostReservations uint64 // events lost to a full buffer, as counted by the hooks
	PerfLost         uint64 // the same, as counted by the perf buffer
	SequenceGaps     uint64 // the same, as gaps in the sequence numbers
	Nested           uint64 // events lost to interrupts nested too deep

	// Skipped counts hook runs that the kernel skipped. With kprobe attach it includes the bpf(2)
	// writes of any hash map, which a kprobe never reports.
	Skipped uint64
	// SkippedCalls is the part of Skipped at the return of bpf(2) with kprobe attach. Each may hide
	// writes of a watched map.
	SkippedCalls uint64
	// SkippedCounted is false if the kernel skips runs without counting them. Only a scan then
	// finds the missed writes.
	SkippedCounted bool
}

// Lost returns the number of events that are known to be lost. A full buffer shows in three
// counters, of which some are updated late.
func (s *Stats) Lost() uint64 {
	return max(s.LostReservations, s.PerfLost, s.SequenceGaps) + s.Nested + s.Skipped
}

// Stats returns the counters. It may be called after Close.
func (c *Capture) Stats() Stats {
	skipped := c.latestSkipped() // many calls into the kernel: the pump does not wait for them
	c.pump.mu.Lock()
	defer c.pump.mu.Unlock()
	s := c.pump.stats
	s.Skipped, s.SkippedCalls, s.SkippedCounted = skipped.all, skipped.calls, skipped.counted
	sums := c.pump.final
	if c.slots != nil {
		sums = c.slots.sum()
	}
	s.Seen, s.Failed, s.Own = sums.seen, sums.failed, sums.own
	s.LostReservations, s.Nested = sums.lost, sums.nested
	s.LookupsMissed = skipped.lookups + sums.unreported + c.pump.lookups.dropped
	return s
}

// latestSkipped returns the present numbers of skipped hook runs, or those from the begin of Close.
func (c *Capture) latestSkipped() skipped {
	c.skips.mu.Lock()
	defer c.skips.mu.Unlock()
	if !c.skips.detached {
		c.skips.last = c.skipped()
	}
	return c.skips.last
}

// skips are the latest numbers of skipped hook runs. Its lock is never held together with that of the pump.
type skips struct {
	mu       sync.Mutex
	last     skipped
	detached bool // Close has begun: the links and programs cannot be read any more
}

// skipped returns the number of hook runs that the kernel skipped, and whether it counts them. The
// kernel skips an fexit program that already runs on that CPU, from 5.12 on, and a program at a
// tracepoint from 6.2 on; before, it never skips one. It skips a kprobe's program while the CPU is inside bpf(2) or another such program. It skips
// a return probe while the CPU is inside a probe. The kernel counts the latter two from 6.7 on.
func (c *Capture) skipped() (s skipped) {
	if c.objects == nil || c.attached == AttachNone {
		return skipped{counted: true}
	}
	for name, p := range c.objects.Programs {
		// If the entry was skipped, the return is not counted again.
		if name == returnProgram {
			continue
		}
		stats, err := p.Stats()
		if err != nil {
			continue
		}
		if slices.ContainsFunc(hooks, func(h hook) bool { return h.lookup && h.fexit == name }) {
			s.lookups += stats.RecursionMisses
			continue
		}
		s.all += stats.RecursionMisses
		if name == callProgram {
			s.calls += stats.RecursionMisses
		}
	}
	for _, l := range c.returns {
		s.all += kprobeMissed(l)
	}
	for _, l := range c.calls {
		missed := kprobeMissed(l)
		s.all, s.calls = s.all+missed, s.calls+missed
	}
	s.counted = c.attached != AttachKprobe || kernelAtLeast(6, 7)
	return s
}

// skipped are the fields Skipped, SkippedCalls and SkippedCounted of Stats.
type skipped struct {
	all, calls uint64
	lookups    uint64 // not part of all
	counted    bool
}

func kprobeMissed(l link.Link) uint64 {
	info, err := l.Info()
	if err != nil {
		return 0
	}
	event := info.PerfEvent()
	if event == nil || event.Kprobe() == nil {
		return 0
	}
	return event.Kprobe().Missed
}
