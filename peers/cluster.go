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

// Member is another node that this node considers alive.
type Member struct {
	// Name is unique among the nodes.
	Name string
	// Incarnation increases with each start of the node's process.
	Incarnation uint64
	// ServiceAddr is the host:port at which the node serves streams.
	ServiceAddr string
	// GossipAddr is the node's IP:port for gossip.
	GossipAddr string
}

// Stats is a snapshot of the counters of a Cluster.
type Stats struct {
	// Members is the number of other live nodes.
	Members int
	// HealthScore is memberlist's health score of this node, from 0 (healthy) to 2. It grows when
	// probes fail for reasons that indicate a problem on this node.
	HealthScore int
	// Joined counts nodes that joined. Updated counts members that changed their incarnation or
	// address without being detected as dead. Gone counts nodes that left or died.
	Joined, Updated, Gone uint64
	// JoinAttempts and JoinFailures count addresses that this node contacted to join, and those that
	// failed.
	JoinAttempts, JoinFailures uint64
	// KeyDiffers counts messages and contacts that failed because the peer has another gossip key.
	// PeerUnencrypted counts those that failed because only this node has a key. PeerEncrypted counts
	// those that failed because only the peer has a key.
	KeyDiffers, PeerUnencrypted, PeerEncrypted uint64
	// BadMeta counts alive messages that were ignored because the node's name or metadata is invalid.
	BadMeta uint64
	// NameConflicts counts checks that found two live nodes with one name.
	NameConflicts uint64
	// LogsSuppressed counts messages that rate limits suppressed.
	LogsSuppressed uint64
	// Rejected counts incoming connections that a limit ended, by cause. The caller owns the map.
	Rejected map[string]uint64
}

// counters holds the atomic counters behind Stats.
type counters struct {
	joined, updated, gone      atomic.Uint64
	joinAttempts, joinFailures atomic.Uint64
	keyMismatch                [keyMismatches]atomic.Uint64
	badMeta, nameConflicts     atomic.Uint64
}

// Cluster is this node's view of the membership. Its methods are safe for concurrent use.
type Cluster struct {
	opts           Options
	self           netip.AddrPort
	list           *memberlist.Memberlist
	keyring        *memberlist.Keyring // nil: gossip is not encrypted
	keysMu         sync.Mutex          // held while the keyring changes
	log            *slog.Logger
	logLimit       *logLimiter
	memberLogLimit *logLimiter // limits log lines about members that join, change or leave
	memberlistLog  *memberlistLog
	limiter        *Limiter
	meter          *Meter
	counters       counters

	// cancelDials ends every dial and every connection that this node opened.
	cancelDials context.CancelFunc
	running     atomic.Bool
	closed      chan struct{}
	// joined is closed once the first attempt to reach all nodes has ended.
	joined      chan struct{}
	closeJoined func()
	// stopped is set once memberlist has stopped. Timers of memberlist that fire later then change
	// nothing.
	stopped atomic.Bool
	// stopMu serialises leaving and shutdown. memberlist panics if it leaves after its shutdown.
	stopMu sync.Mutex

	mu        sync.Mutex
	members   map[string]Member
	lost      map[string]lostNode
	seenNames map[string]time.Time // names present in gossip, with the time at which each was last seen
	// refreshAddrs holds the gossip addresses of members whose gossip state is outdated.
	refreshAddrs map[string]struct{}
	conflicts    map[conflict]struct{}
	// ownNameConflictAt is the time at which another node last used this node's name.
	ownNameConflictAt time.Time
	subscribers       map[int]chan<- struct{}
	nextSub           int
	joinErr           error
}

// New binds the gossip address and answers gossip from then on. Run joins the other nodes. The caller
// must close a Cluster that it never runs.
func New(opts Options) (*Cluster, error) {
	opts = opts.withDefaults()
	if err := opts.check(); err != nil {
		return nil, fmt.Errorf("check gossip options: %w", err)
	}
	ctx, hangUp := context.WithCancel(context.Background())
	c := newCluster(opts, hangUp)
	if err := c.create(ctx); err != nil {
		hangUp()
		return nil, fmt.Errorf("start gossip on %s: %w", opts.BindAddr, err)
	}
	return c, nil
}

// newCluster returns a Cluster without memberlist. Its options are valid.
func newCluster(opts Options, hangUp context.CancelFunc) *Cluster {
	joined := make(chan struct{})
	c := &Cluster{
		opts:           opts,
		log:            opts.Logger,
		logLimit:       newLogLimiter(logEvery),
		memberLogLimit: newLogLimiter(memberLogEvery),
		cancelDials:    hangUp,
		closed:         make(chan struct{}),
		joined:         joined,
		closeJoined:    sync.OnceFunc(func() { close(joined) }),
		members:        make(map[string]Member),
		lost:           make(map[string]lostNode),
		seenNames:      make(map[string]time.Time),
		refreshAddrs:   make(map[string]struct{}),
		conflicts:      make(map[conflict]struct{}),
		subscribers:    make(map[int]chan<- struct{}),
	}
	c.memberlistLog = newMemberlistLog(c)
	return c
}

// create binds and starts memberlist.
func (c *Cluster) create(ctx context.Context) error {
	bind, advertise, err := c.opts.addresses()
	if err != nil {
		return err
	}
	conf, err := c.memberlistConfig()
	if err != nil {
		return err
	}
	inner, err := listen(bind, conf.Logger)
	if err != nil {
		return err
	}
	c.limiter = NewLimiter(gossipLimits(conf.TCPTimeout), c.log)
	bounded := newTransport(ctx, inner, c)
	c.meter = &bounded.meter
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

// memberlistConfig returns the settings of memberlist, which calls c. It sets the keyring of c.
func (c *Cluster) memberlistConfig() (*memberlist.Config, error) {
	conf, err := c.opts.memberlistConfig()
	if err != nil {
		return nil, err
	}
	c.keyring = conf.Keyring
	conf.Logger = log.New(c.memberlistLog, "", 0)
	conf.Delegate, conf.Events, conf.Conflict, conf.Alive = delegate{c}, delegate{c}, delegate{c}, delegate{c}
	return conf, nil
}

// GossipAddr returns the IP:port that this node advertises for gossip.
func (c *Cluster) GossipAddr() string { return c.self.String() }

// NetworkBytes returns the bytes of gossip on the network.
func (c *Cluster) NetworkBytes() NetworkBytes { return c.meter.Bytes() }

// Members returns the other live nodes, sorted by name. The caller owns the slice.
func (c *Cluster) Members() []Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedFunc(maps.Values(c.members), func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })
}

// Subscribe sends to ch after every change of Members, without blocking. A channel with a buffer of
// one is sufficient, because only the latest state matters. The returned function cancels the
// subscription and may be called more than once.
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

// notifySubscribers sends to every subscriber without blocking. The caller holds c.mu.
func (c *Cluster) notifySubscribers() {
	for _, ch := range c.subscribers {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// Joined returns a channel that is closed once this node has tried to reach all Join addresses, and has received the members of
// those that it has reached. Before that, Members may have a part of the members.
func (c *Cluster) Joined() <-chan struct{} { return c.joined }

// JoinError returns why the last attempt reached no other node, with one error per address. It returns
// nil once a node was reached. The error wraps ErrKeyDiffers, ErrPeerUnencrypted or ErrPeerEncrypted
// if that is the cause.
func (c *Cluster) JoinError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.joinErr
}

// Stats returns the current values of the counters.
func (c *Cluster) Stats() Stats {
	c.mu.Lock()
	members := len(c.members)
	c.mu.Unlock()
	n := &c.counters
	return Stats{
		Members:         members,
		HealthScore:     c.list.GetHealthScore(),
		Joined:          n.joined.Load(),
		Updated:         n.updated.Load(),
		Gone:            n.gone.Load(),
		JoinAttempts:    n.joinAttempts.Load(),
		JoinFailures:    n.joinFailures.Load(),
		KeyDiffers:      n.keyMismatch[keyDiffers].Load(),
		PeerUnencrypted: n.keyMismatch[peerUnencrypted].Load(),
		PeerEncrypted:   n.keyMismatch[peerEncrypted].Load(),
		BadMeta:         n.badMeta.Load(),
		NameConflicts:   n.nameConflicts.Load(),
		LogsSuppressed:  c.logLimit.suppressedCount() + c.memberLogLimit.suppressedCount() + c.memberlistLog.suppressedCount(),
		Rejected:        c.limiter.Rejected(),
	}
}

// Close stops gossip without a leave message. The other nodes detect this node as dead. Close is meant
// for a Cluster that is not run or must stop immediately. It makes Run return and may be called more
// than once.
//
// Only goroutines of memberlist outlive Close. A running probe cannot be interrupted and takes up to
// three eighths of DeadTime. Timers run for up to two DeadTimes. They send, log and change nothing.
func (c *Cluster) Close() error {
	c.cancelDials()
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
	c.stopped.Store(true)
	if err != nil {
		return fmt.Errorf("stop gossip: %w", err)
	}
	return nil
}

// gossipAddr returns the host:port of a node's gossip.
func gossipAddr(n *memberlist.Node) string {
	if n.Addr == nil {
		return ""
	}
	return net.JoinHostPort(n.Addr.String(), strconv.Itoa(int(n.Port)))
}
