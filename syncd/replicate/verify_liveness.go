package replicate

import (
	"fmt"
	"net"
	"time"

	"mapsync/printable"
	"mapsync/syncd/replicate/wire"
)

// connectTimeout bounds one attempt to connect.
const connectTimeout = 3 * time.Second

// Discover sets the other nodes that gossip has. It is used in place of SetPeers. A node counts as
// live, restarted or moved only after a stream to it has verified its name and incarnation. It
// counts as gone only if three conditions hold: gossip does not have it as it was verified, its
// stream is down, and an attempt to reach it has failed. The slice is not kept.
func (r *Replicator) Discover(hints []Peer) {
	p := &r.verifier
	p.mu.Lock()
	defer p.mu.Unlock()
	// Hints are replaced as a whole: gossip no longer has a node that is not in the list.
	for _, q := range p.nodes {
		q.hint, q.early = Peer{}, Peer{}
	}
	for _, h := range hints {
		if h.Node == r.opt.Self.Node || !validPeer(h) {
			continue
		}
		// A name that only gossip has replaces no other node.
		q := p.node(h.Node, false)
		// A node with an incarnation in the future is dialled, so that its stream confirms it. It
		// does not replace the address of a live node.
		switch {
		case q == nil || q.hint.Incarnation >= h.Incarnation:
		case q.live() && !r.plausible(h):
			q.early = h
		default:
			q.hint = h
		}
	}
	// The first call takes effect even without hints: this node has no peers then.
	if !p.gossipReceived {
		p.gossipReceived, p.liveChanged = true, true
	}
	poke(r.wake)
}

// validPeer reports whether the name and the address of a node are well-formed.
func validPeer(p Peer) bool { return wire.CheckName(p.Node) == nil && checkAddress(p.Addr) == nil }

// checkAddress returns an error if an address is too long, not printable or not host:port.
func checkAddress(addr string) error {
	if len(addr) > maxAddressBytes || !printable.IsName(addr) {
		return fmt.Errorf("address %.64q of %d bytes", addr, len(addr))
	}
	_, _, err := net.SplitHostPort(addr)
	return err
}

// handleVerified records that a stream to p.Addr has shown p.Node and p.Incarnation. The error is
// an aheadError.
func (r *Replicator) handleVerified(p Peer) error {
	if !r.plausible(p) {
		return aheadError{time.Duration(p.Incarnation - uint64(r.opt.Now().UnixNano())), r.opt.MaxClockAhead}
	}
	connected, _ := r.contactState(p.Node)
	ps := &r.verifier
	ps.mu.Lock()
	defer ps.mu.Unlock()
	q := ps.nodes[p.Node]
	if q == nil {
		return nil
	}
	// Any successful attempt ends the backoff.
	q.failures, q.unreachable = 0, false
	// The introduction is confirmed or outdated.
	if q.introduction.Incarnation <= p.Incarnation {
		q.introduction = Peer{}
	}
	same := p.Incarnation == q.verified.Incarnation
	if p == q.verified || p.Incarnation < q.verified.Incarnation || same && connected {
		return nil // a healthy stream takes precedence over another address
	}
	q.verified, ps.liveChanged = p, true
	poke(r.wake)
	return nil
}

// target returns the peer to dial for verification, if there is one. The caller holds the
// verifier's lock. connected and fresh are the results of contactState.
//
// A live node that gossip confirms has no target without a differing introduction, even while its
// stream is down: its inbound stream connects again by itself. With several targets, each failed
// attempt selects the next one.
func (p *discoveredNode) target(connected, fresh bool) (Peer, bool) {
	var targets []Peer
	add := func(t Peer) {
		if t.Node != "" {
			targets = append(targets, t)
		}
	}
	switch {
	case !p.live():
		// A caller with a certificate is more trustworthy than gossip, so its address comes first.
		add(p.introduction)
		add(p.hint)
	case connected:
		// Another address in gossip does not matter while the same process is connected.
		if p.introduction.Incarnation > p.verified.Incarnation {
			add(p.introduction)
		}
		if p.hint.Incarnation > p.verified.Incarnation {
			add(p.hint)
		}
		// Gossip lacks this process and its stream is silent. Only an attempt shows whether it is
		// gone.
		if !p.matchesGossip() && !fresh {
			add(p.verified)
		}
	// The verified address comes first: gossip can be forged, and a short interruption must not
	// move the node.
	default:
		if !p.matchesGossip() {
			add(p.verified)
		}
		if p.introduction != p.verified {
			add(p.introduction)
		}
		if p.hint != p.verified {
			add(p.hint)
		}
	}
	if len(targets) == 0 {
		return Peer{}, false
	}
	// Failed attempts rotate through the addresses.
	return targets[p.failures%len(targets)], true
}
