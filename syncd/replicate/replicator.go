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
	"mapsync/syncd/table"
)

const (
	// maxRequestBytes and maxResponseBytes bound a message to a sender and to a
	// receiver. The latter has room for a full batch in which each record has an
	// owner of its own.
	maxRequestBytes  = maxSchemaBytes + 16<<10
	maxResponseBytes = 1 << 20
	// streamWindow is what one stream may have under way: enough for 10 Gbit/s at
	// 3 ms, and all that a slow peer ever costs its own node.
	streamWindow = 4 << 20
	ioBuffer     = 128 << 10
	// requestWindow is what a client may have under way: a few requests, or a large
	// schema in two steps.
	requestWindow = 64 << 10
	// maxHeaderBytes bounds the headers of a call, and those of the answer.
	maxHeaderBytes = 8 << 10
	// healthStreams are streams of a connection beside those that replicate.
	healthStreams = 4
	// handshakeTimeout bounds TLS and HTTP/2 handshakes, maxConnectionIdle the time
	// without any call.
	handshakeTimeout  = 5 * time.Second
	maxConnectionIdle = time.Minute
	// connectTimeout bounds one attempt to connect.
	connectTimeout = 3 * time.Second

	// maxEntryBytes bounds a key and its value, so that a batch holds several, and
	// maxEncodedBytes what they may become on the wire where a schema makes much of
	// few bits, so that a batch holds one.
	maxEntryBytes   = 32 << 10
	maxEncodedBytes = 512 << 10

	housekeeping = 250 * time.Millisecond
	// reviewPause is how often the owners of all records are looked at.
	reviewPause = time.Second
)

// Replicator carries the changes of tables between this node and its peers. Its
// methods may be called from any goroutine. It must not be called while a table
// is locked (from inside table.Update or View).
type Replicator struct {
	opt   Options
	codec codec
	view  atomic.Pointer[view]
	maps  atomic.Pointer[map[string]*localMap] // by name; never changed, but replaced
	count counters

	mu    sync.Mutex
	links map[string]*link // by node; some are kept when a peer goes, for its positions
	gone  map[string]bool  // nodes that are not live, while records name them
	// proven are the nodes that are live or were, the latter while records name them or while
	// goneAt has them.
	proven map[string]bool
	// goneAt is when proven nodes left, whether or not records name them. strangerAt is when an
	// owner that was never live was last found: peers can invent any number of those. See
	// acknowledge.go.
	goneAt     map[string]time.Time
	strangerAt time.Time
	sessions   map[*session]struct{}
	serial     uint64    // last generation of a map
	known      time.Time // of the first SetPeers
	reviewed   time.Time // of owners

	proofs proofs

	wake    chan struct{} // for Run
	started bool
	ctx     context.Context // of Run; nil before
	wg      sync.WaitGroup
}

// New returns a Replicator without maps and peers. Its errors wrap ErrOptions.
func New(o Options) (*Replicator, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	r := &Replicator{
		opt:      o,
		codec:    newCodec(),
		links:    make(map[string]*link),
		gone:     make(map[string]bool),
		proven:   make(map[string]bool),
		goneAt:   make(map[string]time.Time),
		sessions: make(map[*session]struct{}),
		wake:     make(chan struct{}, 1),
	}
	r.view.Store(newView(nil, o.Self, nil))
	r.maps.Store(&map[string]*localMap{})
	return r, nil
}

// Register adds the replication service to a gRPC server that was made with
// ServerOptions. Streams are served while Run runs.
func (r *Replicator) Register(s grpc.ServiceRegistrar) {
	mapsyncv1.RegisterReplicationServiceServer(s, &service{r: r})
}

// ServerOptions returns what the gRPC server needs besides credentials.
func (r *Replicator) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(r.codec),
		grpc.MaxRecvMsgSize(maxRequestBytes),
		grpc.ReadBufferSize(ioBuffer),
		grpc.WriteBufferSize(ioBuffer),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.MaxConcurrentStreams(maxStreams + healthStreams),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		// Requests are small: without these a window grows as the sender likes.
		grpc.StaticStreamWindowSize(requestWindow),
		grpc.StaticConnWindowSize(requestWindow),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: maxConnectionIdle,
			// For connections without a stream of this package: streams end earlier.
			MaxConnectionAge: r.opt.MaxStreamAge + r.opt.MaxStreamAge/4, MaxConnectionAgeGrace: handshakeTimeout,
			Time: 10 * time.Second, Timeout: 10 * time.Second,
		}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 2 * time.Second, PermitWithoutStream: true}),
	}
}

// DialOptions returns what a connection to a peer needs besides credentials.
func (r *Replicator) DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithStaticStreamWindowSize(streamWindow),
		grpc.WithStaticConnWindowSize(streamWindow),
		grpc.WithMaxHeaderListSize(maxHeaderBytes),
		grpc.WithReadBufferSize(ioBuffer),
		grpc.WithWriteBufferSize(ioBuffer),
		// A lost handshake is repeated by TCP after ever longer pauses: begin anew instead.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: connectTimeout}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 10 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponseBytes), grpc.ForceCodecV2(r.codec)),
	}
}

// Run keeps a stream to each live peer and serves theirs until ctx is done. It
// returns nil after all that it started has ended, which the streams that it
// serves do without the gRPC server's being stopped. It can be called once.
func (r *Replicator) Run(ctx context.Context) error {
	r.mu.Lock()
	if r.started {
		r.mu.Unlock()
		return ErrRunning
	}
	r.started, r.ctx = true, ctx
	r.mu.Unlock()
	defer r.stop()

	tick := time.NewTicker(housekeeping)
	defer tick.Stop()
	for {
		r.prove(ctx, time.Now())
		r.connect(ctx)
		r.assign(time.Now())
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-tick.C:
			r.keepHouse()
			r.acknowledge(time.Now())
			r.audit(ctx)
		}
	}
}

// stop waits for all goroutines. From here on no new one is started: those are
// started by Run itself, or under the lock by enter while the context lives.
func (r *Replicator) stop() {
	r.mu.Lock()
	for _, l := range r.links {
		l.stop()
	}
	r.mu.Unlock()
	r.wg.Wait()
}

// connect starts a link to each live peer that has none running.
func (r *Replicator) connect(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for node := range r.view.Load().live {
		if l := r.links[node]; !l.running() {
			l.start(ctx, &r.wg)
		}
	}
}

// keepHouse does what is due from time to time.
func (r *Replicator) keepHouse() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	for _, m := range r.localMaps() {
		m.sampleLag(now)
		m.table.View((*table.Tx).ReclaimOwners)
	}
	r.forgetLinks(r.view.Load())
	if !r.known.IsZero() && now.Sub(r.known) > r.opt.UnknownGrace && now.Sub(r.reviewed) >= reviewPause {
		r.reviewed = now
		r.reviewOwners()
	}
}

// AddMap begins to replicate a table under a name. The table must hold the
// map's first content already (table.Tx.Load). The errors wrap ErrMap.
func (r *Replicator) AddMap(name string, layout Layout, t *table.Table) error {
	m, err := newLocalMap(name, layout, t)
	if err != nil {
		return err
	}
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
	// A map that comes again is another one, also to peers that saw the old one.
	r.serial = max(r.serial+1, uint64(r.opt.Now().UnixNano()))
	m.generation = r.serial
	m.access = r.opt.Access(name) // under the lock: UpdateAccess comes before, or finds the map
	all[name] = m
	t.Update(func(tx *table.Tx) {
		tx.SetMembers(r.members())
		tx.SetGone(r.gone)
	})
	r.maps.Store(&all)
	r.notify()
	return nil
}

// RemoveMap ends the replication of a map. It does nothing if there is none of
// that name.
func (r *Replicator) RemoveMap(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := maps.Clone(r.localMaps())
	delete(all, name)
	r.maps.Store(&all)
	r.notify()
}

// notify wakes everyone who looks at maps or peers. The lock is held.
func (r *Replicator) notify() {
	poke(r.wake)
	for _, l := range r.links {
		poke(l.wake)
	}
	for s := range r.sessions {
		poke(s.wake)
	}
}

// localMaps returns the maps by name, to be read only.
func (r *Replicator) localMaps() map[string]*localMap { return *r.maps.Load() }

// poke sends on a channel of capacity 1 unless a wake-up is pending.
func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
