package replicate

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/keepalive"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

const (
	// maxRequestBytes and maxResponseBytes bound the messages to a sender and to a receiver. A
	// response has room for a full batch in which each record has a different owner.
	maxRequestBytes  = wire.MaxSchemaBytes + 16<<10
	maxResponseBytes = 1 << 20
	// streamWindow is the HTTP/2 window of a stream in bytes. It suffices for 10 Gbit/s at a round
	// trip of 3 ms, and bounds the memory that a slow peer costs this node.
	streamWindow = 4 << 20
	// ioBuffer is the size of the read and write buffers of a connection in bytes.
	ioBuffer = 128 << 10
	// requestWindow is the HTTP/2 window for the requests of a client in bytes: a few requests, or
	// a large schema in two steps.
	requestWindow = 64 << 10
	// maxHeaderBytes bounds the headers of a call and those of the answer.
	maxHeaderBytes = 8 << 10
	// healthStreams is the number of streams of a connection besides those that replicate.
	healthStreams = 4
	// handshakeTimeout bounds the TLS and HTTP/2 handshakes, maxConnectionIdle the time without a call.
	handshakeTimeout  = 5 * time.Second
	maxConnectionIdle = time.Minute

	// maxEntryBytes bounds the size of a key and its value together, so that a batch has room for
	// several. maxEncodedBytes bounds their size on the wire, where a schema can turn a few bits
	// into many bytes, so that a batch has room for one.
	maxEntryBytes   = 32 << 10
	maxEncodedBytes = 512 << 10

	// housekeepingInterval is the interval of housekeeping in Run.
	housekeepingInterval = 250 * time.Millisecond
	// ownerReviewInterval is the minimum time between two reviews of the owners of all records.
	ownerReviewInterval = time.Second
)

// Replicator replicates the changes of tables between this node and its peers. Its methods are safe
// for concurrent use. They must not be called while a table is locked (inside table.Update or View).
//
// A Replicator owns no table: AddMap shares one with the caller, which may use it further after
// RemoveMap.
type Replicator struct {
	// opt does not change after New has completed it.
	opt Options
	// codec does not change. It is safe for concurrent use.
	codec wire.Codec
	// view is the current membership; never nil. SetPeers replaces it. A goroutine that needs one
	// decision loads it once.
	view atomic.Pointer[view]
	// maps are the maps by name. The map is never changed, only replaced, with mu held.
	maps atomic.Pointer[map[string]*localMap]
	// count holds the counters for Stats.
	count counters
	// sentTraffic counts what is sent to each peer.
	sentTraffic sentTraffic

	// mu guards the fields up to ownersReviewedAt. See locks.go for the order of locks.
	mu sync.Mutex
	// inboundStreams has the stream of each live node by name, and up to maxDeparted streams of
	// nodes that have left.
	inboundStreams map[string]*inboundStream
	// gone are the nodes that are not live while records name them. Tables have the same set: see
	// setGone.
	gone map[string]bool
	// everLive are the nodes that are or were live. Those that have left are kept while records
	// name them or goneAt has them.
	everLive map[string]bool
	// goneAt is when each node of everLive left, whether or not records name it. See acknowledge_tombstones.go.
	goneAt map[string]time.Time
	// unverifiedAt is when an owner that was never live was last found; zero: never. It is one time for all of them,
	// because peers can invent any number of such owners.
	unverifiedAt time.Time
	// outboundStreams are the registered streams to peers and observers. A stream is in it from
	// registerStream to unregisterStream.
	outboundStreams map[*outboundStream]struct{}
	// lastGeneration is the generation of the map added last. Generations increase.
	lastGeneration uint64
	// membershipSince is the time of the first SetPeers; zero: none yet.
	membershipSince time.Time
	// ownersReviewedAt is the time of the last review of owners. It limits the rate of reviews,
	// which visit the owners of all tables.
	ownersReviewedAt time.Time

	// verifier verifies the nodes that gossip names. It has its own lock.
	verifier nodeVerifier

	// wake has a capacity of 1. It wakes Run.
	wake chan struct{}
	// started reports that Run was called. It never becomes false again. mu guards it.
	started bool
	// ctx is the context of Run; nil before. mu guards it. Streams end with it.
	ctx context.Context
	// wg counts the goroutines and the handlers of streams that Run waits for.
	wg sync.WaitGroup
}

// New returns a Replicator without maps and peers. The errors wrap ErrOptions. The caller then
// calls Register and Run.
func New(o Options) (*Replicator, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	r := &Replicator{
		opt:             o,
		codec:           wire.NewCodec(),
		inboundStreams:  make(map[string]*inboundStream),
		gone:            make(map[string]bool),
		everLive:        make(map[string]bool),
		goneAt:          make(map[string]time.Time),
		outboundStreams: make(map[*outboundStream]struct{}),
		wake:            make(chan struct{}, 1),
	}
	r.view.Store(newView(nil, o.Self, nil))
	r.maps.Store(&map[string]*localMap{})
	return r, nil
}

// Register adds the replication service to a gRPC server that was created with ServerOptions. The
// service accepts streams while Run runs. Before and after that, callers get Unavailable and retry.
func (r *Replicator) Register(s grpc.ServiceRegistrar) {
	mapsyncv1.RegisterReplicationServiceServer(s, &service{r: r})
}

// ServerOptions returns the options that the gRPC server needs besides credentials. They bound what
// a client can make this node allocate or keep open before and after authentication.
func (r *Replicator) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(r.codec),
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.ReadBufferSize(ioBuffer),
		grpc.WriteBufferSize(ioBuffer),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxConcurrentStreams(maxStreams + healthStreams),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		// Requests are small. Without these options a client could grow its window.
		grpc.StaticStreamWindowSize(requestWindow),
		grpc.StaticConnWindowSize(requestWindow),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: maxConnectionIdle,
			// This applies to connections without a stream of this package. Streams end earlier.
			MaxConnectionAge: r.opt.MaxStreamAge + r.opt.MaxStreamAge/4, MaxConnectionAgeGrace: handshakeTimeout,
			Time: 10 * time.Second, Timeout: KeepaliveTimeout,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 2 * time.Second, PermitWithoutStream: true}),
	}
}

// KeepaliveTimeout is the time after which a connection ends whose peer does not acknowledge anything.
const KeepaliveTimeout = 10 * time.Second

// DialOptions returns the options that a connection to a peer needs besides credentials.
// Options.Dial must use them.
func (r *Replicator) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(streamWindow),
		grpc.WithMaxHeaderListSize(maxHeaderBytes),
		grpc.WithReadBufferSize(ioBuffer),
		grpc.WithWriteBufferSize(ioBuffer),
		// TCP repeats a lost handshake after growing pauses. A new attempt is faster.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: KeepaliveTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponseBytes), grpc.ForceCodecV2(r.codec)),
	}
}

// Run keeps a stream to each live peer and serves the streams of peers until ctx is done. It then
// waits for all its goroutines and returns nil. The streams that it serves end even if the gRPC
// server is not stopped. Run can be called once. Later calls return ErrRunning at once.
func (r *Replicator) Run(ctx context.Context) error {
	r.mu.Lock()
	if r.started {
		r.mu.Unlock()
		return ErrRunning
	}
	r.started, r.ctx = true, ctx
	r.mu.Unlock()
	defer r.stop()

	tick := time.NewTicker(housekeepingInterval)
	defer tick.Stop()
	for {
		begun := time.Now()
		// Each step runs after a wake-up and at least every housekeepingInterval. Membership comes
		// first, because the others depend on it. None of the steps blocks on a peer: attempts and
		// streams have goroutines of their own.
		r.verifyNodes(ctx, time.Now())
		r.startInboundStreams(ctx)
		r.assignRoles(time.Now())
		next := nextRound(begun, time.Now())
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
			time.Sleep(time.Until(next))
		case <-tick.C:
			r.doHousekeeping()
			r.acknowledge(time.Now())
			r.audit(ctx)
		}
	}
}

// stop waits for all goroutines. No new ones start: Run itself starts them, or registerStream does
// so with r.mu held while the context is active.
func (r *Replicator) stop() {
	r.mu.Lock()
	for _, s := range r.inboundStreams {
		s.stop()
	}
	r.mu.Unlock()
	r.wg.Wait()
}

// startInboundStreams starts the inbound stream of each live peer that is not running. A stream
// that has just been stopped, for another address or incarnation, starts after its run has
// returned. It takes r.mu.
func (r *Replicator) startInboundStreams(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for node := range r.view.Load().live {
		if s := r.inboundStreams[node]; !s.running() {
			s.start(ctx, &r.wg)
		}
	}
}

// doHousekeeping does the periodic work of Run. It takes r.mu, and within it the locks of tables.
func (r *Replicator) doHousekeeping() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, m := range r.localMaps() {
		m.sampleLag(now)
		// Ids of owners without records are given back here, so that the table's room for owners
		// does not run out.
		m.table.View((*table.Tx).ReclaimOwners)
	}
	r.forgetInboundStreams(r.view.Load())
	// A node that starts finds owners in the records of its peers before gossip has reached all of
	// them.
	if !r.membershipSince.IsZero() && now.Sub(r.membershipSince) > r.opt.UnknownGrace && now.Sub(r.ownersReviewedAt) >= ownerReviewInterval {
		r.ownersReviewedAt = now
		r.reviewOwners()
	}
}

// AddMap starts to replicate a table under a name. The table must already have the initial content
// of the map (table.Tx.Load). The errors wrap ErrMap.
//
// Peers that have subscribed to the name already are served from now on, and this node subscribes
// to the map at all live peers that may write it. A table with unversioned records is not sent
// before they are adopted. AddMap takes Replicator.mu and the lock of the table.
func (r *Replicator) AddMap(name string, layout Layout, t *table.Table) error {
	m, err := newLocalMap(name, layout, t)
	if err != nil {
		return err
	}
	// The table assigns its own owner to local changes, so it must match the identity on the wire.
	if t.Self() != r.opt.Self {
		return fmt.Errorf("add map %q with the table of another node: %w", name, ErrMap)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	all := maps.Clone(r.localMaps())
	if all[name] != nil {
		return fmt.Errorf("add map %q a second time: %w", name, ErrMap)
	}
	if len(all) == MaxMaps {
		return fmt.Errorf("add map %q as number %d: %w", name, MaxMaps+1, ErrMap)
	}
	// A map that is added again is another map, also for peers that received the old one.
	r.lastGeneration = max(r.lastGeneration+1, uint64(r.opt.Now().UnixNano()))
	m.generation = r.lastGeneration
	m.access = r.opt.Access(name) // under the lock, so that a later UpdateAccess finds the map
	all[name] = m
	// The table gets the membership before the first stream uses it.
	t.Update(func(tx *table.Tx) {
		tx.SetMembers(r.members())
		tx.SetGone(r.gone)
	})
	r.maps.Store(&all)
	r.notify()
	return nil
}

// RemoveMap ends the replication of a map. It does nothing if no map has that name. Peers are
// informed and keep their records. The table keeps its content, and the caller may use it further.
// Streams that hold the table release it in their next round, so RemoveMap does not wait for them.
func (r *Replicator) RemoveMap(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := maps.Clone(r.localMaps())
	delete(all, name)
	r.maps.Store(&all)
	r.notify()
}

// notify wakes all goroutines that read maps or peers. The caller holds r.mu.
func (r *Replicator) notify() {
	poke(r.wake)
	for _, inbound := range r.inboundStreams {
		poke(inbound.wake)
	}
	for s := range r.outboundStreams {
		poke(s.wake)
	}
}

// localMaps returns the maps by name. Callers must not change the map. The result stays valid, and
// lacks later changes.
func (r *Replicator) localMaps() map[string]*localMap { return *r.maps.Load() }

// poke sends on a channel of capacity 1, unless a wake-up is pending. It never blocks, so it may be
// called with any lock held. The receiver must look at all of its state after a wake-up, because
// one wake-up may stand for many.
func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
