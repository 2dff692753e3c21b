package replicate

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

// hasUndialled reports whether gossip has named nodes without an attempt yet. The caller holds
// p.mu. Such a node may be live, and then this node is not the only one of the cluster.
func (p *nodeVerifier) hasUndialled() bool {
	for _, q := range p.nodes {
		if !q.attempted && !q.live() {
			return true
		}
	}
	return false
}

// awaitsFirst reports whether a node that starts waits with its first peers until each node of gossip was dialled once.
// A hostile member could otherwise be its only peer for a moment, and send records in the names of nodes that this node
// takes for departed ones. The caller holds p.mu.
func (p *nodeVerifier) awaitsFirst() bool {
	return !p.settled && p.undialledTime <= maxUndialledTime && p.hasUndialled()
}

// UndialledNodes returns the number of nodes that gossip has named and that were not dialled yet: they
// may turn out to be live. It returns 0 once this node has waited for such nodes for 10 s in total.
//
// The daemon does not treat the membership as settled before it is 0, because the records of such a
// node may be missing. The limit exists because names that gossip invents must not keep a node from
// becoming ready.
func (r *Replicator) UndialledNodes() (nodes int) {
	p := &r.verifier
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.undialledTime > maxUndialledTime {
		return 0
	}
	for _, q := range p.nodes {
		if !q.attempted && !q.live() {
			nodes++
		}
	}
	if p.liveChanged {
		nodes++ // verified, and about to be set
	}
	return nodes
}

// Unverified is a node that gossip has and that is not verified as live.
type Unverified struct {
	// Peer is the node as gossip has it.
	Peer
	// Error is why the last attempt failed.
	Error string
	// Ahead is how far the node's clock was ahead of this node's when it started, if it was refused
	// because of that; else 0.
	Ahead time.Duration
	// OtherCluster reports that the node belongs to another cluster.
	OtherCluster bool
}

// Unverified returns up to limit nodes that gossip has and that are not verified as live, ordered
// by name. Nodes without an attempt so far are left out: nothing is wrong with them yet. The caller
// owns the slice.
func (r *Replicator) Unverified(limit int) []Unverified {
	p := &r.verifier
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []Unverified
	for _, q := range p.nodes {
		if q.attempted && !q.live() && q.hint.Node != "" {
			// The operator must set a clock then, which no other error requires.
			var early aheadError
			_ = errors.As(q.err, &early) // else it is zero
			all = append(all, Unverified{q.hint, errorText(q.err), early.ahead, errors.Is(q.err, errCluster)})
		}
	}
	slices.SortFunc(all, func(a, b Unverified) int { return cmp.Compare(a.Node, b.Node) })
	return all[:min(limit, len(all))]
}
