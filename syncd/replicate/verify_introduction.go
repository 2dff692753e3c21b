package replicate

import (
	"time"

	"mapsync/syncd/table"
)

// handleIntroduction stores the incarnation and address that an authenticated caller has sent. It
// ignores an empty address.
func (r *Replicator) handleIntroduction(o table.Owner, addr string) {
	introduction := Peer{Node: o.Node, Incarnation: o.Incarnation, Addr: addr}
	if o.Node == r.opt.Self.Node || !r.plausible(introduction) {
		return
	}
	p := &r.verifier
	p.mu.Lock()
	defer p.mu.Unlock()
	// A caller may be earlier than the first Discover. Its introduction waits for that.
	q := p.node(o.Node, true)
	// An introduction is a hint to dial. It does not change a live node by itself.
	if q == nil || q.verified == introduction || q.introduction == introduction || o.Incarnation < q.verified.Incarnation {
		return
	}
	// The attempt is due at once: a caller that restarted should not wait for a backoff.
	q.introduction, q.due = introduction, time.Time{}
	poke(r.wake)
}
