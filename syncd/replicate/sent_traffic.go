package replicate

import "sync"

// maxSentTraffic is the number of counts from which on those of nodes that are not live are removed.
const maxSentTraffic = 1024

// sentTraffic has the traffic sent to each node by map, across streams.
type sentTraffic struct {
	// mu guards of, and not the counts, which are atomic.
	mu sync.Mutex
	// of has counts of nodes that are live or were connected, observers included, for maps that this node has had.
	of map[peerMap]*traffic
}

// peerMap identifies a map that is sent to a node.
type peerMap struct {
	node string // an authenticated name
	name string // a map that this node has or had
}

// sentBy returns what was sent to a node of a map.
func (r *Replicator) sentBy(node, name string) Traffic {
	s := &r.sentTraffic
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.of[peerMap{node, name}]; c != nil {
		return c.load()
	}
	return Traffic{}
}

// sentTo returns the count of a map of this node that is sent to another node. The node may not be live yet.
func (r *Replicator) sentTo(node, name string) *traffic {
	s := &r.sentTraffic
	s.mu.Lock()
	defer s.mu.Unlock()
	key := peerMap{node, name}
	if c := s.of[key]; c != nil {
		return c
	}
	if len(s.of) >= maxSentTraffic {
		live := r.view.Load().live
		for other := range s.of {
			if _, ok := live[other.node]; !ok {
				delete(s.of, other)
			}
		}
	}
	if s.of == nil {
		s.of = make(map[peerMap]*traffic)
	}
	c := new(traffic)
	s.of[key] = c
	return c
}
