package replicate

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

// unsettled reports whether gossip has named nodes that were not dialled yet. The
// lock is held.
func (p *proofs) unsettled() bool {
	for _, q := range p.prospects {
		if !q.tried && !q.live() {
			return true
		}
	}
	return false
}

// Settling returns how many nodes gossip has named that were not dialled yet: they
// may turn out to be live. It is 0 once this node has waited for such for 10 s in
// all.
func (r *Replicator) Settling() (nodes int) {
	p := &r.proofs
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.settling > settleTime {
		return 0
	}
	for _, q := range p.prospects {
		if !q.tried && !q.live() {
			nodes++
		}
	}
	if p.changed {
		nodes++ // proved, and about to be set
	}
	return nodes
}

// Unproven is a node that gossip has and that did not prove that it is live.
type Unproven struct {
	// Peer is what gossip says of it.
	Peer
	// Error is why the last attempt failed.
	Error string
	// Ahead is how far its clock was ahead of this node's when it started, if it is refused
	// because of that.
	Ahead time.Duration
}

// Unproven returns the nodes that gossip has and that did not prove that they are
// live, by name, at most limit of them.
func (r *Replicator) Unproven(limit int) []Unproven {
	p := &r.proofs
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []Unproven
	for _, q := range p.prospects {
		if q.tried && !q.live() && q.hint.Node != "" {
			var early aheadError
			_ = errors.As(q.err, &early) // else it is zero
			all = append(all, Unproven{q.hint, text(q.err), early.ahead})
		}
	}
	slices.SortFunc(all, func(a, b Unproven) int { return cmp.Compare(a.Node, b.Node) })
	return all[:min(limit, len(all))]
}
