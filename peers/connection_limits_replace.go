package peers

import "net/netip"

// An address with up to minPendingShare pending connections, or 1/pendingShares of Limits.Pending, does
// not count as the cause of a flood.
const minPendingShare, pendingShares = 2, 32

// connToReplace returns the pending connection that a new connection from an address replaces, and the
// cause. It returns nil if the limits permit the new connection. Beyond PendingPerAddr it is the oldest
// one of the same address. Beyond Pending it is the oldest one of the address that has the most. If none
// has more than its share, it is the oldest of all: in a flood from many addresses, the one with the most
// may be that of legitimate clients. The caller holds l.mu.
func (l *Limiter) connToReplace(from netip.Prefix) (*limitedConn, string) {
	if limit := l.limits.PendingPerAddr; limit > 0 && l.pendingByAddr[from] >= limit {
		return l.oldestPending(func(c *limitedConn) bool { return c.from == from }), RejectAddress
	}
	if limit := l.limits.Pending; limit <= 0 || l.pending.Len() < limit {
		return nil, ""
	}
	most := 0
	for _, n := range l.pendingByAddr { // at most Pending addresses
		most = max(most, n)
	}
	if most <= max(minPendingShare, l.limits.Pending/pendingShares) {
		most = 0
	}
	return l.oldestPending(func(c *limitedConn) bool { return l.pendingByAddr[c.from] >= most }), RejectPending
}

// oldestPending returns the oldest pending connection with a property, or nil if none has it. The caller
// holds l.mu.
func (l *Limiter) oldestPending(has func(*limitedConn) bool) *limitedConn {
	for e := l.pending.Front(); e != nil; e = e.Next() {
		if c := e.Value.(*limitedConn); has(c) {
			return c
		}
	}
	return nil
}
