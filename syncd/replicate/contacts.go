package replicate

import "time"

// Contact is a node that is or was a peer, and when this node last received from it.
type Contact struct {
	// Node is its name.
	Node string
	// Last is when its last message came, by the clock of time.Now; zero: none ever did.
	Last time.Time
	// Live says that membership has it. Connected says that its stream to this node is up,
	// and Serving that this node's stream to it is.
	Live, Connected, Serving bool
}

// Contacts returns all nodes that this Replicator has a link to, or had one, in no order.
func (r *Replicator) Contacts() []Contact {
	r.mu.Lock()
	defer r.mu.Unlock()
	live := r.view.Load().live
	serving := make(map[string]bool, len(r.sessions))
	for s := range r.sessions {
		if p, ok := live[s.target.Node]; ok && !s.observing.Load() && p.Incarnation == s.target.Incarnation {
			serving[s.target.Node] = true
		}
	}
	all := make([]Contact, 0, len(r.links))
	for node, l := range r.links {
		_, alive := live[node]
		c := Contact{Node: node, Live: alive, Connected: alive && l.connected(), Serving: serving[node]}
		if at := l.contact.Load(); at != 0 {
			c.Last = time.Unix(0, at)
		}
		all = append(all, c)
	}
	return all
}
