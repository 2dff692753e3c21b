package capture

import "github.com/cilium/ebpf/link"

// Contexts is the number of contexts that an event can have: table.ContextPacket
// to table.ContextOwn.
const Contexts = 4

// Stats counts, since Open, what the hooks saw and what became of it.
type Stats struct {
	Events    uint64           // handed to tables
	ByContext [Contexts]uint64 // the same, by who wrote
	Malformed uint64           // records that no map's layout fits
	Unwatched uint64           // of maps that were no longer watched

	Seen   uint64 // runs of a hook for a watched map
	Failed uint64 // writes that the kernel refused
	Own    uint64 // this daemon's own writes

	LostReservations uint64 // the buffer was full, as the hooks saw it
	PerfLost         uint64 // the same, as the perf buffer's own records tell
	SequenceGaps     uint64 // the same, as numbers missing between events tell
	Nested           uint64 // interrupts nested too deep for an event

	// Skipped counts runs that the kernel skipped. With kprobe attach those for
	// bpf(2) writes are among them, of any hash map: a kprobe never sees them.
	Skipped uint64
	// SkippedCounted is false where the kernel skips runs and does not count
	// them: only a scan can find what was missed.
	SkippedCounted bool
}

// Lost is the number of events that are known not to have arrived. A full buffer
// shows in three ways, of which some come late.
func (s *Stats) Lost() uint64 {
	return max(s.LostReservations, s.PerfLost, s.SequenceGaps) + s.Nested + s.Skipped
}

// Stats returns the counters. It may be called after Close.
func (c *Capture) Stats() Stats {
	c.pump.mu.Lock()
	defer c.pump.mu.Unlock()
	s := c.pump.stats
	s.Skipped, s.SkippedCounted = c.pump.skipped, c.pump.skippedCounted
	if !c.detached {
		s.Skipped, s.SkippedCounted = c.skipped()
	}
	sums := c.pump.final
	if c.slots != nil {
		sums = c.slots.sum()
	}
	s.Seen, s.Failed, s.Own = sums.seen, sums.failed, sums.own
	s.LostReservations, s.Nested = sums.lost, sums.nested
	return s
}

// skipped sums the runs that the kernel skipped. An fexit program is skipped when
// it runs already on that CPU (since 5.12; before it never is). A kprobe's program
// is skipped while the CPU is inside bpf(2) or another such program; its return
// probe, while the CPU is inside a probe. Both are counted since 6.7.
func (c *Capture) skipped() (n uint64, counted bool) {
	if c.objects == nil || c.attached == AttachNone {
		return 0, true
	}
	for name, p := range c.objects.Programs {
		// Where the entry was skipped, the return is no second loss.
		if name == returnProgram {
			continue
		}
		if stats, err := p.Stats(); err == nil {
			n += stats.RecursionMisses
		}
	}
	for _, l := range c.returns {
		n += kprobeMissed(l)
	}
	return n, c.attached == AttachFexit || kernelAtLeast(6, 7)
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
