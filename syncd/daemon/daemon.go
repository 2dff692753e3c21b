// Package daemon connects the parts of syncd and runs them: capture and kmap around the tables,
// replication between nodes, membership, and the interfaces for operators. It is the only package
// that imports all of them.
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
	"mapsync/syncd/events"
	"mapsync/syncd/kmap"
	"mapsync/syncd/privilege"
	"mapsync/syncd/problem"
	"mapsync/syncd/replicate"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
)

// Options configures a Daemon.
type Options struct {
	Config  config.Config
	Version string // of the program, for status and metrics
	Logger  *slog.Logger
	// LogLevel is the level of Logger, which a reload sets; nil: it cannot change.
	LogLevel *slog.LevelVar
	// Wall is the wall clock; nil: time.Now. Tests of nodes with different clocks, and of clocks that
	// are set, replace it. It is called concurrently.
	Wall func() time.Time
	// Unsynchronised reports whether the wall clock is not synchronised; nil: as the kernel reports it.
	Unsynchronised func() bool
	// OpenCapture opens the capture; nil: capture.Open. Tests and benchmarks replace it: they open a
	// capture without hooks and keep it, to report changes through its maps (capture.Capture.Maps).
	// The Daemon closes the capture.
	OpenCapture func(capture.Options) (*capture.Capture, error)
	// Reload returns the current settings, or an error if they cannot be used. If it is nil, the
	// Daemon refuses to reload.
	Reload func() (config.Config, error)
}

// Daemon is one node. It owns everything that it opens.
type Daemon struct {
	config       config.Config
	accessConfig atomic.Pointer[config.Config] // settings of access control; a reload replaces them
	version      string
	log          *slog.Logger
	logLevel     *slog.LevelVar // Options.LogLevel
	clock        *clock
	// unsynchronised is Options.Unsynchronised.
	unsynchronised func() bool
	clockSteps     atomic.Uint64 // steps of the wall clock
	stepped        atomic.Int64  // sum of the steps in ns that watchMaps has yet to handle
	self           table.Owner
	started        time.Time
	// followed is when Run began to look for peers. New may take long before.
	followed time.Time

	ownWriteMarks *ebpf.Map
	capture       *capture.Capture
	credentials   *peers.Credentials
	cluster       *peers.Cluster
	replicator    *replicate.Replicator
	state         *state
	entryMetrics  *entryMetrics
	links         *links
	references    references
	gossipKey     atomic.Pointer[[]byte]     // digest keys are derived from it; nil: none
	maps          atomic.Pointer[[]*replica] // in the order of the settings; see replicas
	assignments   assignments
	reloads       reloads
	pinOwners     []uint32      // users whose pins are accepted, besides root and the user of syncd
	wakeMaps      chan struct{} // wakes watchMaps
	drain         drain
	problems      *problem.List
	events        *events.Log
	contacts      contacts
	losses        losses
	programs      programSearch
	scanBudget    *kmap.ScanBudget // shared by all maps
	scanCPUs      *unix.CPUSet     // nil: any

	grpc     *grpc.Server
	health   *health.Server // served by grpc
	listener net.Listener   // of grpc
	limiter  *peers.Limiter // of listener
	// streamMeter counts the bytes of listener and of connections to peers.
	streamMeter peers.Meter
	// remoteLog is for log lines that a remote side can cause. logLimiter limits them.
	remoteLog   *slog.Logger
	logLimiter  *logLimiter
	serviceAddr string // address at which peers dial this node
	admin       *admin

	nodeState     atomic.Int32 // replicate.NodeState, for peers
	healthMu      sync.Mutex   // guards healthServing
	healthServing bool         // readiness last set in the health service

	cleanup []func() error // in the order of opening; Close runs it in reverse
}

// ErrConfig is wrapped by the errors of New about settings that cannot be used, or about files
// named in settings that cannot be used.
var ErrConfig = errors.New("settings are not usable")

// unusable wraps an error of the settings in ErrConfig.
func unusable(err error) error { return configError{err} }

type configError struct{ error }

func (e configError) Unwrap() []error { return []error{ErrConfig, e.error} }

// New checks the settings and opens everything, so that New and not Run returns the errors of
// that. The caller must call Run or Close afterwards.
func New(o Options) (_ *Daemon, err error) {
	if o.OpenCapture == nil {
		o.OpenCapture = capture.Open
	}
	if o.Unsynchronised == nil {
		o.Unsynchronised = unsynchronised
	}
	if o.Wall == nil {
		o.Wall = time.Now
	}
	d := &Daemon{
		unsynchronised: o.Unsynchronised, config: o.Config, version: o.Version, log: o.Logger, logLevel: o.LogLevel, clock: newClock(o.Wall, monotonic), started: time.Now(), wakeMaps: make(chan struct{}, 1), logLimiter: newLogLimiter(), events: new(events.Log),
	}
	d.clock.stepped = d.noteStep
	d.reloads = reloads{load: o.Reload, requests: make(chan chan<- reloadAnswer), last: d.started}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	log := slog.New(d.events.Handler(o.Logger.Handler()))
	d.problems = problem.NewList(log)
	d.log, d.remoteLog = d.problems.Observe(log), d.problems.Observe(d.logLimiter.limitLog(log))
	if err := d.open(o.OpenCapture); err != nil {
		return nil, err
	}
	return d, nil
}

// open checks the settings and opens everything. After an error, the caller closes what open has opened.
func (d *Daemon) open(openCapture func(capture.Options) (*capture.Capture, error)) error {
	if err := errors.Join(checkExposure(&d.config), checkBuffer(&d.config), limitMemory(&d.config, d.log)); err != nil {
		return unusable(err)
	}
	fields, err := ParseFields(d.config.Fields)
	if err != nil {
		return unusable(err)
	}
	if d.pinOwners, err = userIDs(d.config.PinOwners); err != nil {
		return unusable(err)
	}
	if d.links, err = newLinks(d.log); err != nil {
		return err
	}
	if d.references, err = newReferences(d, d.config.Referenced, fields); err != nil {
		return unusable(err)
	}
	d.state = openState(d.config.StateDir, d.config.NodeName, d.log)
	d.onClose(d.state.close)
	d.entryMetrics = openEntryMetrics(d)
	d.onClose(d.entryMetrics.close)
	d.self.Node = d.config.NodeName
	d.self.Incarnation = d.state.nextIncarnation(uint64(d.clock.wall().UnixNano()), d.config.MaxClockAhead)
	d.restoreDrain()
	if err := d.openKernel(openCapture); err != nil {
		return err
	}
	if err := d.openNetwork(); err != nil {
		return err
	}
	// After openNetwork no other syncd has these settings.
	if err := removeUnusedSums(&d.config); err != nil {
		d.log.Warn("failed to remove the sums of maps that are not in drain-sums", "error", err,
			"hint", "let syncd write pin-dir, or remove the folders of these maps in its folder drain-sums")
	}
	maps, err := d.newReplicas(&d.config, fields)
	if err != nil {
		return unusable(err)
	}
	d.maps.Store(&maps)
	if d.admin, err = openAdmin(d); err != nil {
		return err
	}
	d.onClose(d.admin.close)
	return nil
}

// hintAttach is the hint in the log lines about missing hooks.
const hintAttach = "set attach: auto if syncd check reports that hooks work; otherwise shorten scan-interval"

// HintNoHooks is the remedy if no hook can be attached.
const HintNoHooks = "set attach: none if the kernel allows no hooks: changes are then found by scans only"

func (d *Daemon) openKernel(open func(capture.Options) (*capture.Capture, error)) error {
	if err := privilege.AllowBPF(); err != nil {
		return err
	}
	var err error
	if d.clock.jiffies, err = kmap.MeasureJiffies(); err != nil {
		d.log.Warn("fields with the role jiffies cannot be converted on this kernel", "error", err,
			"hint", "use a kernel with bpf_jiffies64 (5.6), or remove the role jiffies from field")
	}
	if d.ownWriteMarks, err = bpf.NewOwnWriteMarks(); err != nil {
		return err
	}
	d.onClose(d.ownWriteMarks.Close)
	d.scanBudget = kmap.NewScanBudget(d.config.ScanBudget / 100)
	if d.scanCPUs, err = scanCPUs(&d.config); err != nil {
		return fmt.Errorf("scan-cpus %s: %w", d.config.ScanCPUs, err)
	}
	attach, size := capture.Attach(d.config.Attach), d.config.BufferSize
	switch attach {
	case capture.AttachSyscall:
		d.log.Warn("map functions are not hooked, writes of programs are found by scans only", "scan_interval", d.config.ScanInterval.String(), "hint", hintAttach)
	case capture.AttachNone:
		size = cmp.Or(size, capture.MinBufferSize(capture.Buffer(d.config.Buffer))) // no hook fills it
		d.log.Warn("hooks are disabled, changes are found by scans only", "scan_interval", d.config.ScanInterval.String(), "hint", hintAttach)
	}
	tick, err := kmap.TickLength()
	if err != nil {
		return err
	}
	o := capture.Options{
		Attach: attach, Buffer: capture.Buffer(d.config.Buffer),
		BufferSize: size, OwnWriteMarks: d.ownWriteMarks, Lookups: d.config.HooksAnyInPlace(), Uses: d.config.WatchesAnyUses(), Tick: tick,
		WallOffset: d.clock.start, MeasureRing: kmap.CallCreateBuffer.Measure, Logger: d.log,
	}
	// The creation of the ring is one long call.
	err = kmap.OnScanCPUs(d.scanCPUs, func() (err error) { d.capture, err = open(o); return err })
	if err != nil {
		return fmt.Errorf("open capture (run `syncd check` for the attach methods of this kernel; %s): %w", HintNoHooks, err)
	}
	d.onClose(d.capture.Close)
	return nil
}

// Run replicates until ctx ends, then leaves the cluster and closes everything. It returns nil if
// ctx has ended, and otherwise the error that stopped the daemon.
func (d *Daemon) Run(ctx context.Context) error {
	d.followed = time.Now()
	d.state.noteReplicated()
	log := d.log.With("node", d.self.Node, "incarnation", d.self.Incarnation, "version", d.version, "pid", os.Getpid())
	if !d.config.Standalone() {
		log = log.With("grpc", d.listener.Addr().String(), "gossip", d.cluster.GossipAddr())
	}
	log.Info("syncd is running")
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return d.capture.Run(ctx) })
	g.Go(func() error { return d.links.run(ctx) })
	for _, m := range d.references {
		g.Go(func() error { return m.run(ctx) })
	}
	g.Go(func() error { return d.state.run(ctx) })
	g.Go(func() error { return newNotifier(d.log).run(ctx, d.alive) })
	g.Go(func() error { return d.watchLosses(ctx) })
	g.Go(func() error { return d.watchPrograms(ctx) })
	g.Go(func() error { return d.watchFormerMaps(ctx) })
	g.Go(func() error { return d.replicator.Run(ctx) })
	g.Go(func() error { return d.credentials.Run(ctx) })
	g.Go(func() error { return d.watchMaps(ctx) })
	g.Go(func() error { return d.watchProblems(ctx) })
	g.Go(func() error { return d.admin.run(ctx) })
	g.Go(func() error { return d.followReloads(ctx, g) })
	if d.config.Standalone() {
		d.replicator.Discover(nil) // the node has no peers to wait for
	} else {
		g.Go(func() error { return d.cluster.Run(ctx) })
		g.Go(func() error { return d.followMembers(ctx) })
		g.Go(func() error { return d.servePeers(ctx) })
		g.Go(func() error { <-ctx.Done(); d.grpc.Stop(); return nil })
	}
	err := g.Wait()
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	if err == nil {
		d.saveStops()
	}
	d.log.Info("syncd has stopped")
	return errors.Join(err, d.Close())
}

func (d *Daemon) onClose(fn func() error) { d.cleanup = append(d.cleanup, fn) }

// Close releases everything that New opened, for a Daemon that never ran. Run calls it at its
// end.
func (d *Daemon) Close() error {
	var errs []error
	for len(d.cleanup) > 0 {
		last := len(d.cleanup) - 1
		errs = append(errs, d.cleanup[last]())
		d.cleanup = d.cleanup[:last]
	}
	return errors.Join(errs...)
}
