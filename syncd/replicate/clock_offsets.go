package replicate

import "time"

// ClockOffset is how far the clock of a live peer is ahead of this node's.
type ClockOffset struct {
	// Node is the peer's name.
	Node string
	// Offset is negative if this node's clock is ahead.
	Offset time.Duration
}

// ClockOffsets returns the offsets that were measured on the streams that are up.
func (r *Replicator) ClockOffsets() (list []ClockOffset) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for node := range r.view.Load().live {
		l := r.links[node]
		l.mu.Lock()
		if l.up && l.clock.known {
			list = append(list, ClockOffset{node, l.clock.offset})
		}
		l.mu.Unlock()
	}
	return list
}
