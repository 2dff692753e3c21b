package replicate

import (
	"errors"
	"time"
)

// ClockStepped reports a step of Options.Now. Decisions that depended on the former clock are taken again at
// once: records that were too far ahead are requested, nodes that were refused because of their incarnation
// are dialled, and the offsets of the peers' clocks are measured.
func (r *Replicator) ClockStepped() {
	now := time.Now()
	for _, s := range r.allInboundStreams() {
		s.clockStepped(now)
	}
	p := &r.verifier
	p.mu.Lock()
	for _, q := range p.nodes {
		if early := (aheadError{}); errors.As(q.err, &early) {
			q.due, q.failures = now, 0
		}
	}
	p.mu.Unlock()
	poke(r.wake)
}

// allInboundStreams returns the inbound streams of the live peers. It takes Replicator.mu.
func (r *Replicator) allInboundStreams() (list []*inboundStream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for node := range r.view.Load().live {
		list = append(list, r.inboundStreams[node])
	}
	return list
}

// clockStepped makes repeated full syncs and a clock probe due. It takes inboundStream.mu.
func (s *inboundStream) clockStepped(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clock.probeNow = true
	for _, in := range s.maps {
		if !in.repeatFullSyncAt.IsZero() {
			in.repeatFullSyncAt, in.repeatedFullSyncs = now, 0
		}
	}
	poke(s.wake)
}
