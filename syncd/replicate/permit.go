package replicate

import "slices"

// permit says whose records a peer may send over one inbound map stream: its own, what an
// earlier incarnation of this node owned, and what this node requested. It does not
// change, so that a merge reads it without a lock.
type permit struct {
	peer string
	// all permits the records of every owner: until the end of a full sync that this node
	// requested because it holds unadopted entries.
	all bool
	// orphaned permits orphaned records.
	orphaned bool
	// fallback says that the peer is this node's fallback sender.
	fallback bool
	// nodes are the live nodes whose records are requested, sorted.
	nodes []string
}

// allows reports whether the peer may send a node's records under a view. A repair that
// this node requested may bring the records of every owner; that is for the caller to
// know.
func (p *permit) allows(v *view, node string) bool {
	switch {
	case p.all || node == p.peer || node == v.self.Node:
		return true
	case v.orphaned(node):
		return p.orphaned
	}
	return p.requests(node)
}

// requests reports whether a live node's records are requested of the peer.
func (p *permit) requests(node string) bool {
	_, found := slices.BinarySearch(p.nodes, node)
	return found
}

// with returns a permit for what either of two allows.
func (p *permit) with(o *permit) *permit {
	nodes := append(slices.Clone(p.nodes), o.nodes...)
	slices.Sort(nodes)
	return &permit{
		peer: p.peer, all: p.all || o.all, orphaned: p.orphaned || o.orphaned,
		fallback: o.fallback, nodes: slices.Compact(nodes),
	}
}
