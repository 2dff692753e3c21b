package replicate

import "slices"

// permit determines whose records a peer may send over an inbound map stream: its own, those of
// earlier incarnations of this node, and those that this node requested. It does not change, so a
// merge reads it without a lock.
type permit struct {
	// peer is the name of the peer.
	peer string
	// all permits the records of every owner. It ends with a full sync that this node requested
	// because it holds unadopted entries.
	all bool
	// orphaned permits the records of nodes that have left.
	orphaned bool
	// fallback reports that the peer is this node's fallback sender.
	fallback bool
	// nodes are the live nodes whose records are requested, sorted.
	nodes []string
}

// allows reports whether the peer may send a node's records under a view. It does not cover
// repairs, in which the peer may send the records of every owner; the caller checks that.
func (p *permit) allows(v *view, node string) bool {
	switch {
	case p.all || node == p.peer || node == v.self.Node:
		return true
	case v.orphaned(node):
		return p.orphaned
	}
	return p.requests(node)
}

// requests reports whether this node requests the records of a live node from the peer.
func (p *permit) requests(node string) bool {
	_, found := slices.BinarySearch(p.nodes, node)
	return found
}

// union returns a permit for everything that p or o allows. The fallback sender is that of o.
func (p *permit) union(o *permit) *permit {
	nodes := append(slices.Clone(p.nodes), o.nodes...)
	slices.Sort(nodes)
	return &permit{
		peer: p.peer, all: p.all || o.all, orphaned: p.orphaned || o.orphaned,
		fallback: o.fallback, nodes: slices.Compact(nodes),
	}
}
