package replicate

import (
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

const (
	// digestRate is the number of digests of a peer that are compared in one digest interval. A
	// peer sends at most four, including those that this node requests.
	digestRate = 8
	// digestBurst is the number of digests that are compared at once after a pause.
	digestBurst = 16
)

// allowDigest reports whether to compare a digest of the peer. A comparison holds the table's lock
// for some time, so digests above the rate are ignored.
//
// An ignored digest is not an error: the peer may have sent several that arrive together after a
// pause, and another one follows. The caller holds inboundStream.mu.
func (c *inboundComparison) allowDigest(now time.Time, interval time.Duration) bool {
	cost := interval / digestRate
	if saved := now.Add(-digestBurst * cost); c.rateLimitTime.Before(saved) {
		c.rateLimitTime = saved
	}
	// rateLimitTime advances by cost for each digest. While it is ahead of the clock, the rate is
	// used up.
	if c.rateLimitTime.Add(cost).After(now) {
		return false
	}
	c.rateLimitTime = c.rateLimitTime.Add(cost)
	return true
}

// handleDigest compares a digest of the peer, unless the peer exceeds the rate. The caller holds
// inboundStream.mu. The error is that of processDigest and ends the stream.
func (in *inboundMap) handleDigest(m *mapsyncv1.Digest, now time.Time) error {
	if !in.comparison.allowDigest(now, in.stream.r.opt.digestInterval) {
		return nil
	}
	return in.processDigest(m, now)
}
