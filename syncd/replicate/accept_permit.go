package replicate

import "slices"

// permit determines whose records a peer may send over an inbound map stream: its own, those of
// earlier incarnations of this node, and those that this node requested. It does not change, so a
// merge reads it without a lock.
type permit struct {
	// peer is the name of the peer.
	peer string
	// all also permits orphaned records while the table holds unadopted entries. It ends with the full sync that this
	// node requested because of them.
	all bool
	// orphaned permits the records of nodes that have left.
	orphaned bool
	// fallback reports that the peer is this node's fallback sender.
	fallback bool
	// nodes are the live nodes whose records are requested, sorted.
	nodes []string
}

// allows reports whether the peer may send a node's records under a view. answer reports that the peer
// answers a request to send records again, or a subscription of a node with unadopted entries. Every peer may
// then send orphaned records, which versions alone decide. It may not send those of other live nodes, except
// in place of a node from which this node receives nothing.
func (p *permit) allows(v *view, node string, answer bool) bool {
	switch {
	case node == p.peer || node == v.self.Node:
		return true
	case v.orphaned(node):
		return p.orphaned || answer
	}
	return p.requests(node)
}

// requests reports whether this node requests the records of a live node from the peer.
func (p *permit) requests(node string) bool {
	_, found := slices.BinarySearch(p.nodes, node)
	return found
}

// succeededBy returns the permit while o is requested and the peer has not confirmed it: orphaned records of the
// request before may still arrive. The nodes are those of o alone. Otherwise a peer that confirms nothing
// would keep the permission to send the records of a live node.
func (p *permit) succeededBy(o *permit) *permit {
	return &permit{
		peer: p.peer, all: p.all || o.all, orphaned: p.orphaned || o.orphaned,
		fallback: o.fallback, nodes: o.nodes,
	}
}
