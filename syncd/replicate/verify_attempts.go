package replicate

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// verifyNodes starts the attempts that are due, and calls SetPeers if the live nodes have changed.
// Before the first Discover it does nothing: the caller of SetPeers decides then which nodes are
// live.
//
// Only the goroutine of Run calls it, without a lock. It holds p.mu while it looks at the nodes,
// and takes Replicator.mu within.
func (r *Replicator) verifyNodes(ctx context.Context, now time.Time) {
	p := &r.verifier
	p.mu.Lock()
	if !p.gossipReceived {
		p.mu.Unlock()
		return
	}
	// Time counts only while a node has no attempt yet. The sum bounds the wait of a node that
	// becomes ready: see UndialledNodes.
	if p.hasUndialled() && !p.lastStep.IsZero() {
		p.undialledTime += now.Sub(p.lastStep)
	}
	p.lastStep = now
	// stepNode may delete the node. The order is a copy, so that is safe.
	for _, node := range p.attemptOrder() {
		r.stepNode(ctx, node, p.nodes[node], now)
	}
	var live []Peer
	changed := p.liveChanged && !p.awaitsFirst()
	// SetPeers is called after p.mu is released, because it takes r.mu and the locks of tables.
	if changed {
		p.liveChanged = false
		for _, q := range p.nodes {
			if q.live() {
				live = append(live, q.verified)
			}
		}
	}
	p.settled = p.settled || len(live) > 0
	p.mu.Unlock()
	if changed {
		r.SetPeers(live) // only the goroutine of Run calls it, so the calls are in order
	}
}

// attemptOrder returns the names of the nodes: live nodes first, then those that have introduced
// themselves, then the others by their failures. The caller holds p.mu.
//
// At most maxConcurrentDials attempts run at a time. The order decides which nodes get them, so
// that invented names in gossip do not delay the verification of real nodes.
func (p *nodeVerifier) attemptOrder() []string {
	nodes := make([]string, 0, len(p.nodes))
	for node := range p.nodes {
		nodes = append(nodes, node)
	}
	rank := func(node string) int {
		switch q := p.nodes[node]; {
		case q.live():
			return 0
		case q.introduction.Node != "":
			return 1
		default:
			return 2 + q.failures
		}
	}
	slices.SortFunc(nodes, func(a, b string) int { return rank(a) - rank(b) })
	return nodes
}

// stepNode updates one node and starts an attempt if one is due. The caller holds p.mu.
func (r *Replicator) stepNode(ctx context.Context, node string, q *discoveredNode, now time.Time) {
	p := &r.verifier
	if q.early.Node != "" && (!q.live() || r.plausible(q.early)) {
		q.hint, q.early = q.early, Peer{}
	}
	connected, fresh := false, false
	if q.live() {
		connected, fresh = r.contactState(node)
	}
	// Recent messages prove that the process is alive, whatever the last attempt showed.
	if fresh {
		q.unreachable = false
	}
	// A node that is not live is forgotten if gossip and callers do not name it.
	switch {
	case q.gone(connected):
		q.verified, p.liveChanged = Peer{}, true
	case !q.live() && q.hint.Node == "" && q.introduction.Node == "" && !q.dialling:
		delete(p.nodes, node)
		return
	}
	target, want := q.target(connected, fresh)
	// A node that gets no attempt now is looked at again after housekeepingInterval, or as soon as
	// an attempt ends.
	if !want || q.dialling || now.Before(q.due) || p.attempts >= maxConcurrentDials {
		return
	}
	q.dialling = true
	p.attempts++
	// The attempt runs without p.mu. dialling stays set until it ends, so no other attempt starts
	// and the entry stays in p.nodes.
	r.wg.Go(func() { r.verifyNode(ctx, target) })
}

// verifyNode dials a node and records the result. It runs in a goroutine of its own, for at most
// connectTimeout, and takes p.mu only after the attempt.
func (r *Replicator) verifyNode(ctx context.Context, target Peer) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	shown, err := r.dialAndVerify(ctx, target)
	if err == nil {
		err = r.handleVerified(shown)
	}
	p := &r.verifier
	p.mu.Lock()
	defer p.mu.Unlock()
	p.attempts--
	// The place that is free now may be used for another node.
	poke(r.wake)
	q := p.nodes[target.Node]
	if q == nil {
		return
	}
	// A successful attempt is followed by another one no earlier than minDialBackoff.
	q.dialling, q.attempted = false, true
	q.due, q.err = time.Now().Add(minDialBackoff), err
	if err == nil {
		return
	}
	// Only a failure to reach the verified process counts. A wrong address in gossip proves
	// nothing.
	if target == q.verified {
		q.unreachable = true
	}
	// A live node, and one that has shown a certificate, is retried more often.
	limit := maxDialBackoff
	if q.live() || q.introduction.Node != "" {
		limit = maxPriorityDialBackoff
	}
	// The pause doubles with each failure, with a random part so that nodes do not dial at the same time.
	pause := min(minDialBackoff<<min(q.failures, 10), limit)
	q.due = time.Now().Add(pause/2 + rand.N(pause))
	if q.failures++; q.failures%8 == 0 {
		q.introduction = Peer{} // the caller repeats it
	}
	r.opt.Logger.Debug("failed to verify that node is live", slog.String("peer", target.Node), slog.String("addr", target.Addr), slog.Any("error", err))
}

// dialAndVerify opens a stream to a node and returns the name and incarnation in its Welcome. The
// credentials verify the name. The address in the result is the one that was dialled. The
// incarnation may differ from that of target: the process may have restarted since.
//
// The stream has no subscription and is closed at once. The other side does not count it as the
// stream of a peer. Errors are those of Dial, gRPC statuses, or wrap errProtocol.
func (r *Replicator) dialAndVerify(ctx context.Context, target Peer) (Peer, error) {
	conn, err := r.opt.Dial(target)
	if err != nil {
		return Peer{}, fmt.Errorf("dial %s: %w", target.Addr, err)
	}
	defer func() { _ = conn.Close() }() // it fails only if it is closed already
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := mapsyncv1.NewReplicationServiceClient(conn).Subscribe(ctx, grpc.ForceCodecV2(r.codec))
	if err != nil {
		return Peer{}, fmt.Errorf("subscribe to %s: %w", target.Addr, peerError(err))
	}
	w, err := r.exchangeHello(stream)
	if err != nil {
		return Peer{}, err
	}
	shown := welcomeSender(w)
	// The address is reused by another node of the cluster, or gossip is forged.
	if shown.Node != target.Node {
		return Peer{}, fmt.Errorf("reach %.255q, expected %q: %w", shown.Node, target.Node, errProtocol)
	}
	return Peer{Node: shown.Node, Incarnation: shown.Incarnation, Addr: target.Addr}, nil
}
