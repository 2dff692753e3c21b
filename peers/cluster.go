package peers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/memberlist"
)

// Member is another node that lives, as far as this node knows.
type Member struct {
	// Name is unique among the nodes.
	Name string
	// Incarnation grows with each start of the node's process.
	Incarnation uint64
	// ServiceAddr is the host:port of its streams.
	ServiceAddr string
	// GossipAddr is the IP:port of its gossip.
	GossipAddr string
}

// Stats is a snapshot of a Cluster's counters.
type Stats struct {
	// Members is the number of other live nodes.
	Members int
	// HealthScore is 0 if this node can keep the pace of gossip, and grows up
	// to 2 as its probes fail for reasons that look like its own.
	HealthScore int
	// Joined, Updated and Gone count nodes that came, that changed their
	// incarnation or address without being missed, and that left or died.
	Joined, Updated, Gone uint64
	// JoinAttempts and JoinFailures count addresses contacted to join.
	JoinAttempts, JoinFailures uint64
	// KeyDiffers, PeerPlain and PeerEncrypted count messages and contacts that
	// failed because the peer has another gossip key, none, or, while this node
	// has none, one.
	KeyDiffers, PeerPlain, PeerEncrypted uint64
	// BadMeta counts signs of life that were ignored because the node's name or
	// meta data did not parse.
	BadMeta uint64
	// NameConflicts counts checks that found two live nodes with one name.
	NameConflicts uint64
	// LogsSuppressed counts messages held back by rate limits.
	LogsSuppressed uint64
	// Rejected counts incoming connections that were ended by a limit, by cause.
	// The map is the caller's.
	Rejected map[string]uint64
}

// counters are the live form of the counters in Stats.
type counters struct {
	joined, updated, gone      atomic.Uint64
	joinAttempts, joinFailures atomic.Uint64
	keyTrouble                 [keyTroubles]atomic.Uint64
	badMeta, nameConflicts     atomic.Uint64
}

// Cluster is this node's membership. Its methods may be called from any
// goroutine.
type Cluster struct {
	opts     Options
	self     netip.AddrPort
	list     *memberlist.Memberlist
	ring     *memberlist.Keyring // nil: gossip is plain
	keysMu   sync.Mutex          // held while the ring changes
	log      *slog.Logger
	gate     *gate
	moves    *gate // of log lines about members that come, change or go
	lines    *lineWriter
	limiter  *Limiter
	counters counters

	// hangUp ends every dial and conversation that this node began.
	hangUp  context.CancelFunc
	running atomic.Bool
	closed  chan struct{}
	// over is set once memberlist has stopped. Its timers may fire after that, and change nothing.
	over atomic.Bool
	// stopMu makes leaving and shutting down exclude each other: the library
	// panics when asked to leave after its shutdown.
	stopMu sync.Mutex

	mu      sync.Mutex
	members map[string]Member
	lost    map[string]lostNode
	names   map[string]time.Time // that gossip has, and when it had them last
	// mistaken are addresses of members that are not who gossip takes them for.
	mistaken  map[string]struct{}
	conflicts map[conflict]struct{}
	// contested is when another node last claimed this node's name.
	contested   time.Time
	subscribers map[int]chan<- struct{}
	nextSub     int
	joinErr     error
}

// New binds the gossip address and answers gossip from then on; Run joins the
// others. A Cluster that is never run must be closed.
func New(opts Options) (*Cluster, error) {
	opts = opts.withDefaults()
	if err := opts.check(); err != nil {
		return nil, fmt.Errorf("check gossip options: %w", err)
	}
	ctx, hangUp := context.WithCancel(context.Background())
	c := &Cluster{
		opts:        opts,
		log:         opts.Logger,
		gate:        newGate(logEvery),
		moves:       newGate(movesEvery),
		hangUp:      hangUp,
		closed:      make(chan struct{}),
		members:     make(map[string]Member),
		lost:        make(map[string]lostNode),
		names:       make(map[string]time.Time),
		mistaken:    make(map[string]struct{}),
		conflicts:   make(map[conflict]struct{}),
		subscribers: make(map[int]chan<- struct{}),
	}
	c.lines = newLineWriter(c)
	if err := c.create(ctx); err != nil {
		hangUp()
		return nil, fmt.Errorf("start gossip on %s: %w", opts.BindAddr, err)
	}
	return c, nil
}

// create binds and starts memberlist.
func (c *Cluster) create(ctx context.Context) error {
	bind, advertise, err := c.opts.addresses()
	if err != nil {
		return err
	}
	conf, err := c.opts.memberlistConfig()
	if err != nil {
		return err
	}
	c.ring = conf.Keyring
	conf.Logger = log.New(c.lines, "", 0)
	conf.Delegate, conf.Events, conf.Conflict, conf.Alive = delegate{c}, delegate{c}, delegate{c}, delegate{c}
	inner, err := listen(bind, conf.Logger)
	if err != nil {
		return err
	}
	c.limiter = NewLimiter(gossipLimits(conf.TCPTimeout), c.log)
	bounded := newTransport(ctx, inner, c.limiter, conf.Keyring)
	conf.Transport = bounded
	conf.BindAddr, conf.BindPort = bind.Addr().String(), inner.GetAutoBindPort()
	self := netip.AddrPortFrom(bind.Addr(), uint16(conf.BindPort))
	if advertise.IsValid() {
		self = advertise
	}
	c.self = netip.AddrPortFrom(self.Addr().Unmap(), self.Port())
	conf.AdvertiseAddr, conf.AdvertisePort = c.self.Addr().String(), int(c.self.Port())
	if c.list, err = memberlist.Create(conf); err != nil {
		return errors.Join(err, bounded.Shutdown())
	}
	return nil
}

// bindAttempts is how often a free port is looked for: it must be free for TCP
// and UDP alike, and the kernel promises only the first.
const bindAttempts = 10

func listen(bind netip.AddrPort, logger *log.Logger) (*memberlist.NetTransport, error) {
	conf := &memberlist.NetTransportConfig{
		BindAddrs: []string{bind.Addr().String()},
		BindPort:  int(bind.Port()),
		Logger:    logger,
	}
	if bind.Addr() == netip.IPv6Unspecified() {
		// No address at all is both families, also where IPv6 is switched off.
		conf.BindAddrs[0] = ""
	}
	attempts := 1
	if bind.Port() == 0 {
		attempts = bindAttempts
	}
	var err error
	for range attempts {
		var t *memberlist.NetTransport
		if t, err = memberlist.NewNetTransport(conf); err == nil {
			return t, nil
		}
	}
	return nil, err
}

// GossipAddr returns the IP:port that this node advertises for its gossip.
func (c *Cluster) GossipAddr() string { return c.self.String() }

// Members returns the other live nodes, in the order of their names. The slice
// is the caller's.
func (c *Cluster) Members() []Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedFunc(maps.Values(c.members), func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
}

// Subscribe sends to ch after every change of Members, without waiting: a
// channel with room for one misses nothing, as what counts is the latest state.
// The returned function ends that; it may be called more than once.
func (c *Cluster) Subscribe(ch chan<- struct{}) (cancel func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := c.nextSub
	c.nextSub++
	c.subscribers[id] = ch
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.subscribers, id)
	}
}

// changed tells the subscribers. The caller holds c.mu.
func (c *Cluster) changed() {
	for _, ch := range c.subscribers {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// JoinError returns why no other node could be joined at the last attempt, with
// one error an address, or nil once one was reached. It wraps ErrKeyDiffers,
// ErrPeerPlain or ErrPeerEncrypted where that is the cause.
func (c *Cluster) JoinError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.joinErr
}

// Stats returns the counters as they are now.
func (c *Cluster) Stats() Stats {
	c.mu.Lock()
	members := len(c.members)
	c.mu.Unlock()
	n := &c.counters
	return Stats{
		Members:        members,
		HealthScore:    c.list.GetHealthScore(),
		Joined:         n.joined.Load(),
		Updated:        n.updated.Load(),
		Gone:           n.gone.Load(),
		JoinAttempts:   n.joinAttempts.Load(),
		JoinFailures:   n.joinFailures.Load(),
		KeyDiffers:     n.keyTrouble[keyDiffers].Load(),
		PeerPlain:      n.keyTrouble[peerPlain].Load(),
		PeerEncrypted:  n.keyTrouble[peerEncrypted].Load(),
		BadMeta:        n.badMeta.Load(),
		NameConflicts:  n.nameConflicts.Load(),
		LogsSuppressed: c.gate.held() + c.moves.held() + c.lines.held(),
		Rejected:       c.limiter.Rejected(),
	}
}

// Close ends gossip without a farewell: to the others this node dies. It is for
// a Cluster that is not run, or must stop at once; it makes Run return, and may
// be called more than once.
//
// Of the goroutines, memberlist's alone outlast it: a probe under way, which cannot be
// interrupted, for up to three eighths of DeadTime, and timers for up to two DeadTimes. They
// send, log and change nothing.
func (c *Cluster) Close() error {
	c.hangUp()
	c.stopMu.Lock()
	defer c.stopMu.Unlock()
	return c.shutdown()
}

// shutdown stops memberlist. The caller holds stopMu.
func (c *Cluster) shutdown() error {
	select {
	case <-c.closed:
		return nil
	default:
	}
	close(c.closed)
	err := c.list.Shutdown()
	c.over.Store(true)
	if err != nil {
		return fmt.Errorf("stop gossip: %w", err)
	}
	return nil
}

// gossipAddr returns the host:port of a node's gossip.
func gossipAddr(n *memberlist.Node) string {
	return net.JoinHostPort(n.Addr.String(), strconv.Itoa(int(n.Port)))
}
