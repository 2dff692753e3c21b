package replicate

import (
	"fmt"
	"net"
	"sync"
	"time"

	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

const (
	// maxDiscovered bounds the nodes that gossip and callers have named. Verified nodes and callers
	// with a certificate take precedence over nodes that only gossip has named.
	maxDiscovered = 1024
	// maxConcurrentDials bounds the nodes that are dialled for verification at the same time.
	maxConcurrentDials = 32
	// minDialBackoff and maxDialBackoff bound the pauses between attempts. A pause doubles each time.
	minDialBackoff = 100 * time.Millisecond
	maxDialBackoff = 10 * time.Second
	// maxPriorityDialBackoff bounds the pauses for nodes that are verified or have a certificate.
	maxPriorityDialBackoff = time.Second
	// maxUndialledTime bounds the total time for which this node waits for first attempts: names
	// that gossip invents must not prevent it from becoming ready.
	maxUndialledTime = 10 * time.Second
	// maxAddressBytes bounds an address in bytes.
	maxAddressBytes = 300
)

// discoveredNode is a node that gossip or a caller has named, and what is verified about it. A node
// is verified once a stream to it has shown its name and incarnation. With TLS, its certificate
// must be valid for that name. Gossip only provides addresses to dial. nodeVerifier.mu guards it.
type discoveredNode struct {
	// hint is what gossip has about the node. Its Node is empty if gossip does not have the node.
	hint Peer
	// introduction is what a caller with a certificate for the name has sent about itself. Its Node
	// is empty if there is none.
	introduction Peer
	// verified is what was last verified. Its Node is empty if the node is not live.
	verified Peer

	// dialling reports that an attempt is in progress. At most one runs for each node.
	dialling bool
	// attempted reports that an attempt has ended.
	attempted bool
	// unreachable reports that the last attempt to reach verified failed.
	unreachable bool
	// failures is the number of failed attempts since the last successful one.
	failures int
	// err is the error of the last attempt.
	err error
	// due is the earliest time of the next attempt.
	due time.Time
}

// live reports whether the node was verified and has not left since.
func (p *discoveredNode) live() bool { return p.verified.Node != "" }

// matchesGossip reports whether gossip has exactly the process that was verified. Another address
// or another incarnation in gossip does not prove that the verified process is live.
func (p *discoveredNode) matchesGossip() bool { return p.live() && p.hint == p.verified }

// nodeVerifier decides which nodes are live. Its lock is never taken while Replicator.mu is held.
type nodeVerifier struct {
	// mu guards the fields below.
	mu sync.Mutex
	// nodes has at most maxDiscovered nodes, by name.
	nodes map[string]*discoveredNode
	// gossipReceived reports that Discover was called. Before it, the nodes come from SetPeers.
	gossipReceived bool
	// attempts is the number of attempts in progress, at most maxConcurrentDials.
	attempts int
	// undialledTime is the total time in which a node had no attempt yet.
	undialledTime time.Duration
	// lastStep is the time of the last verifyNodes; zero: none.
	lastStep time.Time
	// liveChanged reports that the live nodes have changed since the last SetPeers.
	liveChanged bool
}

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
		q.hint = Peer{}
	}
	for _, h := range hints {
		if h.Node == r.opt.Self.Node || !validPeer(h) {
			continue
		}
		// A name that only gossip has replaces no other node.
		q := p.node(h.Node, false)
		// A node with an incarnation in the future is dialled, so that its stream confirms it. It
		// does not replace the address of a live node.
		if q != nil && q.hint.Incarnation < h.Incarnation && (!q.live() || r.plausible(h)) {
			q.hint = h
		}
	}
	// The first call takes effect even without hints: this node has no peers then.
	if !p.gossipReceived {
		p.gossipReceived, p.liveChanged = true, true
	}
	poke(r.wake)
}

// plausible reports whether a node can exist as named: an incarnation is the wall clock at which a
// process started, so it is not in the future.
func (r *Replicator) plausible(p Peer) bool {
	return validPeer(p) && p.Incarnation <= r.latestIncarnation()
}

// validPeer reports whether the name and the address of a node are well-formed.
func validPeer(p Peer) bool { return wire.CheckName(p.Node) == nil && checkAddress(p.Addr) == nil }

// aheadError is the error about a node whose clock was too far ahead when it started.
type aheadError struct{ ahead, limit time.Duration }

// Error returns the text of the error.
func (e aheadError) Error() string {
	return fmt.Sprintf("its clock was %s ahead of this node's when it started, more than max-clock-ahead (%s)", e.ahead.Round(time.Second), e.limit)
}

// latestIncarnation returns the highest incarnation that a running process can have, if its clock
// is ahead by MaxClockAhead.
func (r *Replicator) latestIncarnation() uint64 {
	return uint64(r.opt.Now().Add(r.opt.MaxClockAhead).UnixNano())
}

// checkAddress returns an error if an address is too long or not host:port.
func checkAddress(addr string) error {
	if len(addr) > maxAddressBytes {
		return fmt.Errorf("address of %d bytes", len(addr))
	}
	_, _, err := net.SplitHostPort(addr)
	return err
}

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
	if !p.gossipReceived {
		return // verification is not in use: the caller uses SetPeers
	}
	q := p.node(o.Node, true)
	// An introduction is a hint to dial. It does not change a live node by itself.
	if q == nil || q.verified == introduction || q.introduction == introduction || o.Incarnation < q.verified.Incarnation {
		return
	}
	// The attempt is due at once: a caller that restarted should not wait for a backoff.
	q.introduction, q.due = introduction, time.Time{}
	poke(r.wake)
}

// node returns the entry of a node. It creates the entry if there is room, else it returns nil. A
// caller with a certificate replaces a node that only gossip has named. The caller holds p.mu.
func (p *nodeVerifier) node(node string, certified bool) *discoveredNode {
	if q := p.nodes[node]; q != nil {
		return q
	}
	if len(p.nodes) >= maxDiscovered && (!certified || !p.evict()) {
		return nil
	}
	if p.nodes == nil {
		p.nodes = make(map[string]*discoveredNode)
	}
	q := &discoveredNode{}
	p.nodes[node] = q
	return q
}

// evict removes a node that only gossip has named. It returns false if there is none. The caller
// holds p.mu.
func (p *nodeVerifier) evict() bool {
	for node, q := range p.nodes {
		if !q.live() && q.introduction.Node == "" && !q.dialling {
			delete(p.nodes, node)
			return true
		}
	}
	return false
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

// contactState reports whether the stream from a node is established, and whether a message arrived
// within the last three heartbeat intervals.
func (r *Replicator) contactState(node string) (connected, fresh bool) {
	r.mu.Lock()
	l := r.inboundStreams[node]
	r.mu.Unlock()
	if l == nil || !l.connected() {
		return false, false
	}
	return true, time.Since(time.Unix(0, l.lastContact.Load())) < 3*r.opt.heartbeat
}
