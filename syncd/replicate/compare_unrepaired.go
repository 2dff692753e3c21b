package replicate

import (
	"log/slog"
	"time"
)

// backOffRepair doubles the pause before the next repair, from the digest interval up to
// maxRepairBackoff. Differences that no repair removes, for example because of a full table,
// therefore cost little. The caller holds inboundStream.mu.
func (in *inboundMap) backOffRepair(now time.Time) {
	c := &in.comparison
	c.repairBackoff = min(max(2*c.repairBackoff, in.stream.r.opt.digestInterval), maxRepairBackoff)
	c.repairAfter = now.Add(c.repairBackoff)
}

// endResend evaluates a resend that has ended. The caller holds inboundStream.mu. It requests
// another digest with buckets, which shows whether the repair has helped.
func (in *inboundMap) endResend(j *inboundResend, now time.Time) {
	c := &in.comparison
	c.resend, c.requestBuckets = nil, true
	poke(in.stream.wake)
	if j.list != nil {
		j.list.end(nil)
		return
	}
	// Batches merged after this are acknowledged only after the repair is in the kernel map.
	in.tableHead = max(in.tableHead, j.tableHead)
	in.stream.r.count.repaired.Add(uint64(j.repaired))
	c.divergent = j.repaired + j.unrepaired
	if j.repaired+j.unrepaired > 0 {
		c.inSync = false
		in.stream.r.opt.Logger.Warn("repaired divergent buckets from peer", slog.String("peer", in.stream.peer.Node),
			slog.String("map", in.m.name), slog.Int("repaired", j.repaired), slog.Int("left", j.unrepaired),
			slog.String("hint", "if it returns: syncd resync MAP, and report it with the logs of both nodes"))
	}
	// The same records would fail again at once.
	if j.unrepaired > 0 {
		in.backOffRepair(now)
		return
	}
	// The backoff of earlier repairs does not apply after a successful one. That of repairs that explain
	// nothing does.
	in.unexplained.forget(now)
	c.repairBackoff, c.repairAfter = 0, now.Add(in.unexplained.pause(in.stream.r.opt.digestInterval))
	if in.unexplained.checkNext = j.repaired > 0; !in.unexplained.checkNext {
		in.noteUnexplained(now)
	}
	// This node now holds all records that the peer resent, or newer ones. The peer has to detect
	// the remaining differences, or is about to receive the newer records. The next digest then
	// counts the remaining differences of these buckets as explained: see compareBuckets.
	for _, s := range c.divergentNodes {
		s.repairedBuckets = j.buckets
	}
}
