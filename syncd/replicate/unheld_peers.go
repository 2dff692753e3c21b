package replicate

import (
	"slices"
	"sync"
	"time"

	"mapsync/syncd/table"
)

// unheldPeers stores since when peers lack deletes, or records of their earlier incarnations: see Ack.unheld. A peer may filter
// a record for ever. Its tombstones then wait for their lifetime, and not for the peer.
type unheldPeers struct {
	// mu guards the field below.
	mu sync.Mutex
	// peers has at most maxRememberedPeers nodes, by name.
	peers map[string]unheldSpan
}

// unheldSpan is the time of the first and of the last report of a peer. A report that is later by the lifetime of
// tombstones begins a new span. A full sync interrupts the reports.
type unheldSpan struct{ first, last time.Time }

// note stores a report. ttl is the lifetime of tombstones.
func (u *unheldPeers) note(peer string, now time.Time, ttl time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	span, known := u.peers[peer]
	if !known || now.Sub(span.last) > ttl {
		span.first = now
	}
	span.last = now
	if u.peers == nil || !known && len(u.peers) >= maxRememberedPeers {
		u.peers = make(map[string]unheldSpan)
	}
	u.peers[peer] = span
}

// hold reports whether tombstones wait for a peer that has reported. An unknown peer has just reported.
func (u *unheldPeers) hold(peer string, now time.Time, ttl time.Duration) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	span, known := u.peers[peer]
	return !known || now.Sub(span.first) < ttl
}

// forgetUnheldOverflow makes the table forget that it lacks unheld keys, once the last full sync of each live peer has brought all
// records of this node's earlier incarnations, the kernel map has them, and no node may return with others. The identity of the
// kernel map can be saved then.
func (v *ackSnapshot) forgetUnheldOverflow(m *localMap) {
	overflow, applied := false, uint64(0)
	m.table.View(func(tx *table.Tx) { overflow, applied = tx.UnheldOverflow(), tx.AppliedPosition() })
	lacks := func(s *inboundStream) bool { return s.lacksOwnRecords(m) }
	switch {
	case !overflow || len(v.inbound) == 0 || v.hasAbsentNodes(m.table.TombstoneTTL()) || slices.ContainsFunc(v.inbound, lacks):
		m.overflowHead = 0
	case m.overflowHead == 0:
		m.overflowHead = m.head() + 1
	case applied+1 >= m.overflowHead:
		m.table.Update((*table.Tx).ForgetUnheldOverflow)
	}
}

// lacksOwnRecords reports whether the peer may have records of this node's earlier incarnations that this node has not merged. It
// takes inboundStream.mu.
func (s *inboundStream) lacksOwnRecords(m *localMap) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.maps[m.name]
	switch {
	case in == nil || in.m != m:
		return true
	case in.state == StatePending || in.state == StateExcluded:
		return false // the peer does not have the map, or may not write it
	}
	return in.lacksOwn.Load() || !in.exceptions.syncComplete
}
