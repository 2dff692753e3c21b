package replicate

import (
	"sync"
	"time"
)

// scanBurst is the number of scans of a table that a peer may start at once after a pause. After
// them it may start one in each digest interval.
const scanBurst = 8

// scanLimit limits how often each peer makes this node scan a table: by a subscription, in both directions, by a request
// for records of other owners, by a resend, and by a handover. Such a request takes few bytes. If the scan finds
// few records to send, flow control does not slow it down.
//
// It belongs to the map and not to a stream, because a peer may subscribe again at any time.
type scanLimit struct {
	// mu guards the field below.
	mu sync.Mutex
	// usedUpTo has at most maxRememberedPeers nodes, by name. The time advances by one digest interval
	// for each scan. It is never ahead of the clock, and at most scanBurst intervals behind it.
	usedUpTo map[string]time.Time
}

// allow reports whether a peer may start a scan now, and counts the scan if so. A peer that may not
// waits: the caller asks again later.
func (l *scanLimit) allow(peer string, now time.Time, interval time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	used, known := l.usedUpTo[peer]
	if saved := now.Add(-scanBurst * interval); used.Before(saved) {
		used = saved
	}
	if used = used.Add(interval); used.After(now) {
		return false
	}
	if l.usedUpTo == nil || (!known && len(l.usedUpTo) >= maxRememberedPeers) {
		l.usedUpTo = make(map[string]time.Time)
	}
	l.usedUpTo[peer] = used
	return true
}

// allowScan is scanLimit.allow for the peer of the stream and a map of this node.
func (out *outboundMap) allowScan(m *localMap, now time.Time) bool {
	return m.scans.allow(out.s.target.Node, now, out.s.r.opt.digestInterval)
}
