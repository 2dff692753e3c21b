package replicate

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

const (
	// maxProspects bounds the nodes that gossip and callers have named. Proven ones
	// and callers with a certificate go before names that gossip alone has.
	maxProspects = 1024
	// probesAtOnce bounds the nodes that are dialled for a proof at the same time.
	probesAtOnce = 32
	// firstProbe and lastProbe bound the pauses between attempts, which double.
	firstProbe = 100 * time.Millisecond
	lastProbe  = 10 * time.Second
	// eagerProbe bounds them for nodes that were proven or have a certificate.
	eagerProbe = time.Second
	// settleTime bounds for how long in all this node waits for the first attempts:
	// names that gossip invents must not keep it from being ready.
	settleTime = 10 * time.Second
	// maxAddress bounds an address in bytes.
	maxAddress = 300
)

// prospect is a node that was named, and what is proved of it. A node is proven
// once it was dialled and its stream showed name and incarnation, with TLS under
// a certificate for that name. Gossip is a hint where to dial.
type prospect struct {
	// hint is what gossip says; its Node is empty if gossip does not have the node.
	hint Peer
	// claim is what a caller with a certificate for the name said of itself.
	claim Peer
	// proven is what was proved last; its Node is empty if nothing was.
	proven Peer

	probing  bool
	tried    bool
	refuted  bool // the last attempt to reach proven failed
	failures int
	err      error // of the last attempt
	due      time.Time
}

func (p *prospect) live() bool { return p.proven.Node != "" }

// vouched reports whether gossip has the very process that was proved. That it has
// the name elsewhere, or another incarnation, does not say that this one lives.
func (p *prospect) vouched() bool { return p.live() && p.hint == p.proven }

// proofs decide which nodes are live. Their lock is never taken under the
// replicator's.
type proofs struct {
	mu        sync.Mutex
	prospects map[string]*prospect
	known     bool // gossip has said something
	running   int  // attempts
	settling  time.Duration
	stepped   time.Time
	changed   bool // the live nodes are no longer those that were set last
}

// Discover takes in which other nodes gossip has, in place of SetPeers. A node
// counts as live, restarted or moved only after a stream to it has proved its
// name and incarnation, and as gone only when gossip does not have it as it was
// proved, its stream is down, and it cannot be reached again. The slice is not kept.
func (r *Replicator) Discover(hints []Peer) {
	p := &r.proofs
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.prospects {
		q.hint = Peer{}
	}
	for _, h := range hints {
		if h.Node == r.opt.Self.Node || !valid(h) {
			continue
		}
		q := p.prospect(h.Node, false)
		// A node from the future is dialled, so that its stream proves that. It replaces the
		// address of no live node.
		if q != nil && q.hint.Incarnation < h.Incarnation && (!q.live() || r.plausible(h)) {
			q.hint = h
		}
	}
	if !p.known {
		p.known, p.changed = true, true
	}
	poke(r.wake)
}

// plausible reports whether a node may be as it is named: an incarnation is the
// wall clock at which a process started.
func (r *Replicator) plausible(p Peer) bool {
	return valid(p) && p.Incarnation <= r.latestIncarnation()
}

func valid(p Peer) bool { return checkName(p.Node) == nil && checkAddress(p.Addr) == nil }

// aheadError is why a node is refused whose clock was too far ahead when it started.
type aheadError struct{ ahead, limit time.Duration }

func (e aheadError) Error() string {
	return fmt.Sprintf("its clock was %s ahead of this node's when it started, more than max-clock-ahead (%s)", e.ahead.Round(time.Second), e.limit)
}

// latestIncarnation returns the highest incarnation of a process that has started by now, by
// a clock that is ahead as far as it may be.
func (r *Replicator) latestIncarnation() uint64 {
	return uint64(r.opt.Now().Add(r.opt.MaxClockAhead).UnixNano())
}

func checkAddress(addr string) error {
	if len(addr) > maxAddress {
		return fmt.Errorf("address of %d bytes", len(addr))
	}
	_, _, err := net.SplitHostPort(addr)
	return err
}

// introduced takes in the incarnation and the address that an authenticated caller has sent. An
// empty address is not plausible.
func (r *Replicator) introduced(o table.Owner, addr string) {
	claim := Peer{Node: o.Node, Incarnation: o.Incarnation, Addr: addr}
	if o.Node == r.opt.Self.Node || !r.plausible(claim) {
		return
	}
	p := &r.proofs
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.known {
		return // nobody wants proofs: SetPeers is used
	}
	q := p.prospect(o.Node, true)
	if q == nil || q.proven == claim || q.claim == claim || o.Incarnation < q.proven.Incarnation {
		return
	}
	q.claim, q.due = claim, time.Time{}
	poke(r.wake)
}

// prospect returns the entry of a node, made if there is room, or nil. A caller with a
// certificate takes the place of a name that gossip alone has. The lock is held.
func (p *proofs) prospect(node string, certified bool) *prospect {
	if q := p.prospects[node]; q != nil {
		return q
	}
	if len(p.prospects) >= maxProspects && (!certified || !p.evict()) {
		return nil
	}
	if p.prospects == nil {
		p.prospects = make(map[string]*prospect)
	}
	q := &prospect{}
	p.prospects[node] = q
	return q
}

// evict removes a name that gossip alone has, and returns false if there is none. The lock
// is held.
func (p *proofs) evict() bool {
	for node, q := range p.prospects {
		if !q.live() && q.claim.Node == "" && !q.probing {
			delete(p.prospects, node)
			return true
		}
	}
	return false
}

// proved takes in that a stream to p.Addr has shown the name and incarnation. The error is an
// aheadError.
func (r *Replicator) proved(p Peer) error {
	if !r.plausible(p) {
		return aheadError{time.Duration(p.Incarnation - uint64(r.opt.Now().UnixNano())), r.opt.MaxClockAhead}
	}
	connected, _ := r.contactWith(p.Node)
	ps := &r.proofs
	ps.mu.Lock()
	defer ps.mu.Unlock()
	q := ps.prospects[p.Node]
	if q == nil {
		return nil
	}
	q.failures, q.refuted = 0, false
	if q.claim.Incarnation <= p.Incarnation {
		q.claim = Peer{}
	}
	same := p.Incarnation == q.proven.Incarnation
	if p == q.proven || p.Incarnation < q.proven.Incarnation || same && connected {
		return nil // a healthy stream is better than another address
	}
	q.proven, ps.changed = p, true
	poke(r.wake)
	return nil
}

// contactWith reports whether the stream from a node is up, and whether something
// came over it just now.
func (r *Replicator) contactWith(node string) (connected, fresh bool) {
	r.mu.Lock()
	l := r.links[node]
	r.mu.Unlock()
	if l == nil || !l.connected() {
		return false, false
	}
	return true, time.Since(time.Unix(0, l.contact.Load())) < 3*r.opt.heartbeat
}

// prove starts the attempts that are due, and sets the live nodes if they are
// others now. Run calls it.
func (r *Replicator) prove(ctx context.Context, now time.Time) {
	p := &r.proofs
	p.mu.Lock()
	if !p.known {
		p.mu.Unlock()
		return
	}
	if p.unsettled() && !p.stepped.IsZero() {
		p.settling += now.Sub(p.stepped)
	}
	p.stepped = now
	for _, node := range p.order() {
		r.step(ctx, node, p.prospects[node], now)
	}
	var live []Peer
	changed := p.changed
	if p.changed = false; changed {
		for _, q := range p.prospects {
			if q.live() {
				live = append(live, q.proven)
			}
		}
	}
	p.mu.Unlock()
	if changed {
		r.SetPeers(live) // by Run's goroutine alone, so in order
	}
}

// order returns the nodes, those first that have shown more. The lock is held.
func (p *proofs) order() []string {
	nodes := make([]string, 0, len(p.prospects))
	for node := range p.prospects {
		nodes = append(nodes, node)
	}
	rank := func(node string) int {
		switch q := p.prospects[node]; {
		case q.live():
			return 0
		case q.claim.Node != "":
			return 1
		default:
			return 2 + q.failures
		}
	}
	slices.SortFunc(nodes, func(a, b string) int { return rank(a) - rank(b) })
	return nodes
}

// step looks at one node. The lock is held.
func (r *Replicator) step(ctx context.Context, node string, q *prospect, now time.Time) {
	p := &r.proofs
	connected, fresh := false, false
	if q.live() {
		connected, fresh = r.contactWith(node)
	}
	if fresh {
		q.refuted = false
	}
	switch {
	case q.live() && !q.vouched() && !connected && q.refuted:
		q.proven, p.changed = Peer{}, true
	case !q.live() && q.hint.Node == "" && q.claim.Node == "" && !q.probing:
		delete(p.prospects, node)
		return
	}
	target, want := q.target(connected, fresh)
	if !want || q.probing || now.Before(q.due) || p.running >= probesAtOnce {
		return
	}
	q.probing = true
	p.running++
	r.wg.Go(func() { r.attempt(ctx, target) })
}

// target returns whom to dial for a proof, if anyone. The lock is held.
func (p *prospect) target(connected, fresh bool) (Peer, bool) {
	var targets []Peer
	add := func(t Peer) {
		if t.Node != "" {
			targets = append(targets, t)
		}
	}
	switch {
	case !p.live():
		add(p.claim)
		add(p.hint)
	case connected:
		// The same process elsewhere, as gossip says, does not matter now.
		if p.claim.Incarnation > p.proven.Incarnation {
			add(p.claim)
		}
		if p.hint.Incarnation > p.proven.Incarnation {
			add(p.hint)
		}
		if !p.vouched() && !fresh {
			add(p.proven)
		}
	default:
		if !p.vouched() {
			add(p.proven)
		}
		if p.claim != p.proven {
			add(p.claim)
		}
		if p.hint != p.proven {
			add(p.hint)
		}
	}
	if len(targets) == 0 {
		return Peer{}, false
	}
	return targets[p.failures%len(targets)], true
}

// attempt dials a node, and notes what came of it.
func (r *Replicator) attempt(ctx context.Context, target Peer) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	shown, err := r.dialForProof(ctx, target)
	if err == nil {
		err = r.proved(shown)
	}
	p := &r.proofs
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running--
	poke(r.wake)
	q := p.prospects[target.Node]
	if q == nil {
		return
	}
	q.probing, q.tried = false, true
	q.due, q.err = time.Now().Add(firstProbe), err
	if err == nil {
		return
	}
	if target == q.proven {
		q.refuted = true
	}
	limit := lastProbe
	if q.live() || q.claim.Node != "" {
		limit = eagerProbe
	}
	pause := min(firstProbe<<min(q.failures, 10), limit)
	q.due = time.Now().Add(pause/2 + rand.N(pause))
	if q.failures++; q.failures%8 == 0 {
		q.claim = Peer{} // its caller repeats it
	}
	r.opt.Logger.Debug("node is not proved to be live", slog.String("peer", target.Node), slog.String("addr", target.Addr), slog.Any("error", err))
}

// dialForProof opens a stream to a node and returns what its welcome shows. The
// credentials verify the name.
func (r *Replicator) dialForProof(ctx context.Context, target Peer) (Peer, error) {
	conn, err := r.opt.Dial(target)
	if err != nil {
		return Peer{}, fmt.Errorf("dial %s: %w", target.Addr, err)
	}
	defer func() { _ = conn.Close() }() // it can only have been closed already
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := mapsyncv1.NewReplicationServiceClient(conn).Subscribe(ctx, grpc.ForceCodecV2(r.codec))
	if err != nil {
		return Peer{}, fmt.Errorf("subscribe to %s: %w", target.Addr, peerError(err))
	}
	w, err := r.welcome(stream)
	if err != nil {
		return Peer{}, err
	}
	shown := shownBy(w)
	if shown.Node != target.Node {
		return Peer{}, fmt.Errorf("reach %.255q, expected %q: %w", shown.Node, target.Node, errProtocol)
	}
	return Peer{Node: shown.Node, Incarnation: shown.Incarnation, Addr: target.Addr}, nil
}
