package replicate

import "time"

// Contact is a current or former peer, and when this node last received a message from it.
//
// A drain needs a live peer that receives from this node. An operator may not remove the records of
// a node that is live or connected. A former peer is forgotten after maxDeparted others have left.
type Contact struct {
	// Node is the name of the peer.
	Node string
	// Last is when its last message arrived, by the clock of time.Now; zero: never.
	Last time.Time
	// Live reports that membership has the peer. Connected reports that the stream from the peer is
	// established, and Serving that the stream to the peer is.
	Live, Connected, Serving bool
}

// Contacts returns all nodes for which this Replicator keeps an inbound stream, current or former,
// in no order. It takes Replicator.mu and then the lock of each inbound stream. The caller owns the
// slice.
func (r *Replicator) Contacts() []Contact {
	r.mu.Lock()
	defer r.mu.Unlock()
	live := r.view.Load().live
	serving := make(map[string]bool, len(r.outboundStreams))
	for s := range r.outboundStreams {
		// A stream of an earlier incarnation may be registered until its end is detected.
		if p, ok := live[s.target.Node]; ok && !s.observing.Load() && p.Incarnation == s.target.Incarnation {
			serving[s.target.Node] = true
		}
	}
	all := make([]Contact, 0, len(r.inboundStreams))
	for node, inbound := range r.inboundStreams {
		_, alive := live[node]
		c := Contact{Node: node, Live: alive, Connected: alive && inbound.connected(), Serving: serving[node]}
		if at := inbound.lastContact.Load(); at != 0 {
			c.Last = time.Unix(0, at)
		}
		all = append(all, c)
	}
	return all
}
