package replicate

import "time"

// ClockOffset is the clock offset of a live peer. A large offset affects only true conflicts
// between nodes. Records that are ahead by more than Options.MaxClockAhead are refused.
type ClockOffset struct {
	// Node is the name of the peer.
	Node string
	// Offset is the peer's clock minus this node's clock. It is negative if this node's clock is ahead.
	Offset time.Duration
}

// ClockOffsets returns the offsets of the live peers with an established stream, in no order. A
// peer without a sample on its present stream is left out. It takes Replicator.mu and then each
// inboundStream.mu. The caller owns the slice.
func (r *Replicator) ClockOffsets() (list []ClockOffset) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for node := range r.view.Load().live {
		// It is not nil: SetPeers creates the stream together with the view.
		l := r.inboundStreams[node]
		l.mu.Lock()
		if l.up && l.clock.valid {
			list = append(list, ClockOffset{node, l.clock.offset})
		}
		l.mu.Unlock()
	}
	return list
}
