package replicate

import "time"

// ClockOffset is the clock offset of a live peer.
type ClockOffset struct {
	// Node is the name of the peer.
	Node string
	// Offset is the peer's clock minus this node's clock. It is negative if this node's clock is ahead.
	Offset time.Duration
}

// ClockOffsets returns the offsets of the live peers with an established stream, in no order.
func (r *Replicator) ClockOffsets() (list []ClockOffset) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for node := range r.view.Load().live {
		l := r.inboundStreams[node]
		l.mu.Lock()
		if l.up && l.clock.valid {
			list = append(list, ClockOffset{node, l.clock.offset})
		}
		l.mu.Unlock()
	}
	return list
}
