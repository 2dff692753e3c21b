package replicate

import "time"

// This file decides when a verified node is gone. Two other times concern a silent peer. Gossip counts
// a node as dead after the setting dead-time (Options.DeadTime of package peers). A stream ends with
// errReceiveTimeout after Options.receiveTimeout without a message.

// contactState reports whether the stream from a node is established, and whether a message arrived
// within the last three heartbeat intervals.
func (r *Replicator) contactState(node string) (connected, fresh bool) {
	r.mu.Lock()
	s := r.inboundStreams[node]
	r.mu.Unlock()
	if s == nil || !s.connected() {
		return false, false
	}
	return true, time.Since(time.Unix(0, s.lastContact.Load())) < 3*r.opt.heartbeat
}

// gone reports whether a live node is gone. A broken stream alone does not suffice: gossip, the stream and
// a new attempt must all fail.
func (p *discoveredNode) gone(connected bool) bool {
	return p.live() && !p.matchesGossip() && !connected && p.unreachable
}
