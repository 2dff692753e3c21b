// Package daemon wires the parts of syncd together and runs them: capture and
// kmap around the tables, replicate between nodes, membership, and what an
// operator looks at. It is the only place that knows all of them.
package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"mapsync/bpf"
	"mapsync/peers"
	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/kmap"
	"mapsync/syncd/replicate"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// Options configures a Daemon.
type Options struct {
	Config  config.Config
	Version string // of the program, for status and metrics
	Logger  *slog.Logger
	// Wall is the wall clock, which is read at the start; time.Now when nil. A test of
	// nodes whose clocks differ replaces it.
	Wall func() time.Time
	// OpenCapture attaches the hooks; capture.Open when nil. A test or a benchmark
	// that brings its own source of events replaces it.
	OpenCapture func(capture.Options) (*capture.Capture, error)
	// Reload returns the settings as they are now, or what is wrong with them; a Daemon
	// without it refuses to reload.
	Reload func() (config.Config, error)
}

// Daemon is one node. It owns everything that it opens.
type Daemon struct {
	config  config.Config
	trusted atomic.Pointer[config.Config] // the settings that say who may do what: a reload replaces them
	version string
	log     *slog.Logger
	clock   clock
	self    table.Owner
	started time.Time

	ownWriter   *ebpf.Map
	capture     *capture.Capture
	credentials *peers.Credentials
	cluster     *peers.Cluster
	replicator  *replicate.Replicator
	state       *state
	links       *links
	gossipKey   atomic.Pointer[[]byte]     // that digest keys are made from; nil: none
	maps        atomic.Pointer[[]*replica] // in the order of the settings; see replicas
	claims      claims
	reloads     reloads
	pinOwners   []uint32      // users whose pins are accepted, besides root and syncd's own
	look        chan struct{} // wakes watchMaps
	drain       drain
	contacts    contacts
	losses      losses
	scanBudget  *kmap.ScanBudget // of all maps

	grpc     *grpc.Server
	health   *health.Server // beside the replication, on the same listener
	listener net.Listener   // of grpc
	limiter  *peers.Limiter // of listener
	// remoteLog is for lines that a remote side can cause.
	remoteLog  *slog.Logger
	logLimiter *logLimiter
	service    string // address at which peers dial it
	admin      *admin

	healthMu sync.Mutex // guards what follows
	serving  bool       // what the health service was told

	cleanup []func() error // in the order of opening
}

// ErrConfig is wrapped by the errors of New about settings, or files that settings name, that
// cannot be used.
var ErrConfig = errors.New("settings are not usable")

// unusable marks an error as one of the settings.
func unusable(err error) error { return configError{err} }

type configError struct{ error }

func (e configError) Unwrap() []error { return []error{ErrConfig, e.error} }

// New checks the settings and opens everything, so that whatever cannot work is
// an error here and not later. Run or Close must follow.
func New(o Options) (_ *Daemon, err error) {
	if o.OpenCapture == nil {
		o.OpenCapture = capture.Open
	}
	if o.Wall == nil {
		o.Wall = time.Now
	}
	d := &Daemon{
		config: o.Config, version: o.Version, log: o.Logger, clock: newClock(o.Wall), started: time.Now(), look: make(chan struct{}, 1), logLimiter: newLogLimiter(),
	}
	d.reloads = reloads{load: o.Reload, requests: make(chan chan<- reloadAnswer), last: d.started}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	d.remoteLog = d.logLimiter.limitLog(d.log)
	if err := errors.Join(checkExposure(&d.config), checkBuffer(&d.config), limitMemory(&d.config, d.log)); err != nil {
		return nil, unusable(err)
	}
	fields, err := ParseFields(d.config.Fields)
	if err != nil {
		return nil, unusable(err)
	}
	if d.pinOwners, err = userIDs(d.config.PinOwners); err != nil {
		return nil, unusable(err)
	}
	if d.links, err = newLinks(d.log); err != nil {
		return nil, err
	}
	d.state = openState(d.config.StateDir, d.config.NodeName, d.log)
	d.onClose(d.state.close)
	d.self.Node = d.config.NodeName
	d.self.Incarnation = d.state.begin(uint64(d.clock.now()), d.config.MaxClockAhead)
	if err := d.openKernel(o.OpenCapture); err != nil {
		return nil, err
	}
	if err := d.openNetwork(); err != nil {
		return nil, err
	}
	maps, err := d.newReplicas(&d.config, fields)
	if err != nil {
		return nil, unusable(err)
	}
	d.maps.Store(&maps)
	if d.admin, err = openAdmin(d); err != nil {
		return nil, err
	}
	d.onClose(d.admin.close)
	return d, nil
}

func (d *Daemon) openKernel(open func(capture.Options) (*capture.Capture, error)) error {
	// Kernels before 5.11 charge BPF memory to this limit.
	if err := rlimit.RemoveMemlock(); err != nil {
		return fmt.Errorf("raise the limit of locked memory (needs CAP_SYS_RESOURCE before kernel 5.11): %w", err)
	}
	var err error
	if d.clock.jiffies, err = kmap.MeasureJiffies(); err != nil {
		d.log.Warn("fields with the role jiffies cannot be converted on this kernel", "error", err)
	}
	if d.ownWriter, err = bpf.NewOwnWriter(); err != nil {
		return err
	}
	d.onClose(d.ownWriter.Close)
	d.scanBudget = kmap.NewScanBudget(d.config.ScanBudget / 100)
	attach, size := capture.Attach(d.config.Attach), d.config.BufferSize
	if attach == capture.AttachNone {
		size = cmp.Or(size, capture.MinBufferSize(capture.Buffer(d.config.Buffer))) // nobody fills it
		d.log.Warn("attach is none: changes are found by scans alone", "scan_interval", d.config.ScanInterval.String())
	}
	d.capture, err = open(capture.Options{
		Attach: attach, Buffer: capture.Buffer(d.config.Buffer),
		BufferSize: size, OwnWriter: d.ownWriter,
		WallOffset: d.clock.offset, Logger: d.log,
	})
	if err != nil {
		return fmt.Errorf("open capture (`syncd check` says what this kernel offers): %w", err)
	}
	d.onClose(d.capture.Close)
	return nil
}

func (d *Daemon) openNetwork() error {
	var err error
	d.trusted.Store(&d.config)
	if d.credentials, err = openCredentials(&d.config, d.remoteLog); err != nil {
		return unusable(err)
	}
	if err := d.openReplicator(); err != nil {
		return err
	}
	connections, err := raiseFiles(&d.config, d.log)
	if err != nil {
		return err
	}
	inner, err := net.Listen("tcp", d.config.GRPCListen)
	if err != nil {
		return fmt.Errorf("listen for peers: %w", err)
	}
	d.limiter = peers.NewLimiter(grpcLimits(connections), d.remoteLog)
	d.listener = d.limiter.Listener(inner)
	d.onClose(func() error { d.grpc.Stop(); return nil })
	keys, err := readGossipKeys(d.config.GossipKeyFile, d.log)
	if err != nil {
		return unusable(err)
	}
	if len(keys) > 0 {
		d.setGossipKey(keys[0])
	}
	d.service = cmp.Or(d.config.GRPCAdvertise, d.listener.Addr().String())
	options := peers.Options{
		NodeName: d.self.Node, Incarnation: d.self.Incarnation,
		BindAddr: d.config.GossipListen, AdvertiseAddr: d.config.GossipAdvertise,
		Join: d.config.Join, GossipKeys: keys, ServiceAddr: d.service,
		DeadTime: d.config.DeadTime, Logger: d.remoteLog,
	}
	if err := options.Check(); err != nil {
		return unusable(err)
	}
	if d.cluster, err = peers.New(options); err != nil {
		return fmt.Errorf("open gossip: %w", err)
	}
	d.onClose(d.cluster.Close)
	return nil
}

func (d *Daemon) openReplicator() error {
	o := replicate.Options{
		Self: d.self, Logger: d.remoteLog, Now: d.clock.time, Times: d.clock.times, MaxClockAhead: d.config.MaxClockAhead,
		Dial: func(p replicate.Peer) (*grpc.ClientConn, error) {
			options := append(d.replicator.DialOptions(), grpc.WithTransportCredentials(d.credentials.Client(p.Node)))
			return grpc.NewClient("passthrough:///"+p.Addr, options...)
		},
		Addr:     func() string { return d.service },
		Mistaken: func(node string) { d.cluster.Refresh(node) },
	}
	o.Authenticate, o.Access = d.authenticate, d.access
	_, o.Expected = d.config.Expected()
	var err error
	if d.replicator, err = replicate.New(o); err != nil {
		return err
	}
	d.grpc = grpc.NewServer(append(d.replicator.ServerOptions(), grpc.Creds(d.credentials.Server()))...)
	d.replicator.Register(d.grpc)
	d.health = newHealth()
	healthv1.RegisterHealthServer(d.grpc, d.health)
	return nil
}

// Run replicates until ctx ends, then leaves the cluster and closes everything.
// It returns nil at such an end, and otherwise what went wrong.
func (d *Daemon) Run(ctx context.Context) error {
	d.log.Info("syncd is running", "node", d.self.Node, "incarnation", d.self.Incarnation,
		"version", d.version, "pid", os.Getpid(), "grpc", d.listener.Addr().String(), "gossip", d.cluster.GossipAddr())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.capture.Run(ctx) })
	g.Go(func() error { return d.cluster.Run(ctx) })
	g.Go(func() error { return d.links.run(ctx) })
	g.Go(func() error { return d.state.run(ctx) })
	g.Go(func() error { return newNotifier(d.log).run(ctx, d.alive) })
	g.Go(func() error { return d.watchLosses(ctx) })
	g.Go(func() error { return d.replicator.Run(ctx) })
	g.Go(func() error { return d.followMembers(ctx) })
	g.Go(func() error { return d.credentials.Run(ctx) })
	g.Go(func() error { return d.watchMaps(ctx) })
	g.Go(func() error { return d.watchRedundancy(ctx) })
	g.Go(func() error { return d.watchClocks(ctx) })
	g.Go(func() error { return d.admin.run(ctx) })
	g.Go(func() error { return d.followReloads(ctx, g) })
	g.Go(func() error { return d.servePeers(ctx) })
	g.Go(func() error { <-ctx.Done(); d.grpc.Stop(); return nil })
	err := g.Wait()
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	d.log.Info("syncd has stopped")
	return errors.Join(err, d.Close())
}

func (d *Daemon) onClose(fn func() error) { d.cleanup = append(d.cleanup, fn) }

// Close frees what New opened, of a Daemon that never ran.
func (d *Daemon) Close() error {
	var errs []error
	for len(d.cleanup) > 0 {
		last := len(d.cleanup) - 1
		errs = append(errs, d.cleanup[last]())
		d.cleanup = d.cleanup[:last]
	}
	return errors.Join(errs...)
}
