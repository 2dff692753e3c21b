package replicate

import "time"

// arrivalPause is the minimum time between two positions whose arrivals are awaited.
const arrivalPause = time.Second

// arrivals delays the position of a map that all peers have acknowledged, until everything has arrived that they had sent before.
// A peer may have sent an older record of a key before it received a delete. Without the tombstone, such a record would restore
// the entry. A slow stream may deliver it later than Options.TombstoneGrace of package table.
type arrivals struct {
	// settled is the position up to which tombstones may be forgotten.
	settled uint64
	// awaited is the next settled position, above it; 0: there is none. The peers had acknowledged it at the time since.
	awaited uint64
	since   time.Time
}

// settle returns the position up to which tombstones may be forgotten. acknowledged is the position that all peers have
// acknowledged. It is lower than before if one of them is absent. Without tombstones, nothing waits for a higher position.
func (a *arrivals) settle(v *ackSnapshot, acknowledged uint64, tombstones bool) uint64 {
	a.settled = min(a.settled, acknowledged)
	if a.awaited > acknowledged {
		a.awaited = 0
	}
	if a.awaited > 0 && v.arrivedSince(a.since) {
		a.settled, a.awaited = a.awaited, 0
	}
	if tombstones && a.awaited == 0 && acknowledged > a.settled && v.now.Sub(a.since) >= arrivalPause {
		a.awaited, a.since = acknowledged, time.Now()
		for _, s := range v.inbound {
			s.probeNow()
		}
	}
	return a.settled
}

// arrivedSince reports whether everything has arrived that the live peers had sent before a time. A stream that has ended delivers
// nothing more.
func (v *ackSnapshot) arrivedSince(at time.Time) bool {
	for _, s := range v.inbound {
		s.mu.Lock()
		late := s.up && !s.clock.answered.After(at)
		s.mu.Unlock()
		if late {
			return false
		}
	}
	return true
}

// probeNow makes a probe due. It takes inboundStream.mu.
func (s *inboundStream) probeNow() {
	s.mu.Lock()
	s.clock.probeNow = true
	s.mu.Unlock()
	poke(s.wake)
}
