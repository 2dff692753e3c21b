package replicate

import (
	"fmt"
	"time"
)

// plausible reports whether a node can exist as named: an incarnation is the wall clock at which a
// process started, so it is not in the future.
func (r *Replicator) plausible(p Peer) bool {
	return validPeer(p) && p.Incarnation <= r.latestIncarnation()
}

// aheadError is the error about a node whose clock was too far ahead when it started.
type aheadError struct {
	// ahead is the incarnation minus this node's clock at the check, limit is Options.MaxClockAhead.
	ahead, limit time.Duration
}

// Error returns the text of the error.
func (e aheadError) Error() string {
	return fmt.Sprintf("its clock was %s ahead of this node's when it started, more than max-clock-ahead (%s)", e.ahead.Round(time.Second), e.limit)
}

// latestIncarnation returns the highest incarnation that a running process can have, if its clock
// is ahead by MaxClockAhead.
func (r *Replicator) latestIncarnation() uint64 {
	return uint64(r.opt.Now().Add(r.opt.MaxClockAhead).UnixNano())
}
