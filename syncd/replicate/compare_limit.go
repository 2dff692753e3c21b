package replicate

import (
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

const (
	// digestRate is how many digests of a peer are compared in one interval between digests. A peer
	// sends at most four, also if it is asked.
	digestRate = 8
	// digestBurst is how many are compared at once, after a pause.
	digestBurst = 16
)

// admit reports whether the peer's digest is to be compared, which takes the table's lock for a
// while. A peer that sends more than it should gets the rest ignored.
func (c *comparing) admit(now time.Time, interval time.Duration) bool {
	cost := interval / digestRate
	if saved := now.Add(-digestBurst * cost); c.spent.Before(saved) {
		c.spent = saved
	}
	if c.spent.Add(cost).After(now) {
		return false
	}
	c.spent = c.spent.Add(cost)
	return true
}

// takeDigest compares a digest of the peer, unless too many have come. The lock is held.
func (in *intake) takeDigest(m *mapsyncv1.Digest, now time.Time) error {
	if !in.comparing.admit(now, in.l.r.opt.compare) {
		return nil
	}
	return in.compare(m, now)
}
