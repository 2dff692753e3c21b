package replicate

import (
	"log/slog"
	"time"
)

// A repair brings what the peer has. A difference that remains afterwards, or for which the repair finds nothing,
// is a change that the peer has not received yet, or the digest is false. The first passes within seconds.
// A peer whose digests stay false must not cause repairs all the time, so each unexplained repair doubles the
// pause before the next one.

const (
	// falseDigestRepairs is the number of unexplained repairs above which the digests of a peer count as false.
	falseDigestRepairs = 4
	// maxUnexplained bounds the number that is remembered.
	maxUnexplained = 10
	// unexplainedTTL is the time after which one unexplained repair is forgotten. Digests that agree for a
	// moment forget none, because the peer chooses them.
	unexplainedTTL = 2 * time.Minute
)

// unexplainedRepairs counts the repairs of a map from a peer that did not explain the difference of the digests.
type unexplainedRepairs struct {
	// count is the number at the time at, at most maxUnexplained.
	count int
	at    time.Time
	// checkNext reports that the last repair changed records, and that the next digest shows whether that
	// explains the difference.
	checkNext bool
}

// forget reduces the count by the time that has passed.
func (u *unexplainedRepairs) forget(now time.Time) {
	for ; u.count > 0 && now.Sub(u.at) >= unexplainedTTL; u.at = u.at.Add(unexplainedTTL) {
		u.count--
	}
}

// isFalse reports whether the digests of the peer count as false.
func (u unexplainedRepairs) isFalse(now time.Time) bool {
	u.forget(now) // of the copy
	return u.count > falseDigestRepairs
}

// pause returns the pause before the next repair, given the digest interval.
func (u *unexplainedRepairs) pause(interval time.Duration) time.Duration {
	return min(interval<<u.count, max(interval, maxRepairBackoff))
}

// noteUnexplained counts a repair that did not explain the difference. It logs the peer once the digests count as
// false. The caller holds inboundStream.mu.
func (in *inboundMap) noteUnexplained(now time.Time) {
	u := &in.unexplained
	was := u.isFalse(now)
	u.forget(now)
	u.count, u.at = min(u.count+1, maxUnexplained), now
	in.stream.r.count.unexplained.Add(1)
	in.comparison.repairAfter = now.Add(u.pause(in.stream.r.opt.digestInterval))
	if !was && u.isFalse(now) {
		in.stream.r.opt.Logger.Warn("digests of peer stay false, comparing less often", slog.String("peer", in.stream.peer.Node),
			slog.String("map", in.m.name), slog.String("hint", "see docs/night.md#false-digests: that peer lacks changes of other nodes, or is hostile"))
	}
}
