package replicate

import (
	"sync"
	"time"
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
	// early is what gossip has about a live node if its incarnation is too far in the future. It becomes hint once the
	// clocks are right, or once the node is not live any more. Its Node is empty if there is none.
	early Peer
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
	// settled reports that SetPeers was called with a peer: see awaitsFirst.
	settled bool
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
