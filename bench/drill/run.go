package drill

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"

	"mapsync/bench/lb"
)

// The two load balancers: sessions are opened through the first, which dies.
const (
	active  = 0
	standby = 1
)

// run is one pass of the drill: with syncd, or the control without.
type run struct {
	opts  *Options
	tools *tools
	place *workplace
	name  string
	log   *slog.Logger

	byName bool              // syncd follows the maps by their names, and they have no pins
	mute   bool              // what a load balancer does not know is dropped and not reset
	idle   time.Duration     // limit of an open session at the load balancers; 0: their own
	pause  time.Duration     // of a session between two requests; 0: by what the machine can do
	tune   func(c *settings) // changes what syncd is told; may be nil

	net            *network
	key            uint64 // of the content
	pins           [2]string
	maps           [2]uint32 // ids
	backends       *process
	clients        *process
	balancers      [2]*process
	daemons        [2]*daemon // nil without syncd
	judge          *process   // who counts the sessions
	refused        int        // connections that the backends ended
	last           counts     // of the judge
	judging        bool       // a session that is lost is counted, and no failure of the drill
	connectionRate float64
}

func (r *run) perform(ctx context.Context) (out *Outcome, err error) {
	defer func() { err = errors.Join(err, r.end()) }()
	if err := r.build(ctx); err != nil {
		return nil, err
	}
	if r.daemons[active] == nil {
		r.connectionRate = r.tools.measureRate(ctx, r)
	}
	out = &Outcome{Sessions: r.opts.Sessions}
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	if err := r.settle(ctx, out); err != nil {
		return nil, err
	}
	if out.MemoryMB, err = memoryUsed(); err != nil {
		return nil, err
	}
	cut, err := r.cut(out)
	if err != nil {
		return nil, err
	}
	return out, r.decide(ctx, cut, out)
}

// build makes the network and starts all in it but the clients.
func (r *run) build(ctx context.Context) (err error) {
	r.log.Info("building network", "sessions", r.opts.Sessions)
	if r.net, err = newNetwork(r.opts.Sessions, r.mute); err != nil {
		return err
	}
	if err := r.start(); err != nil {
		return err
	}
	return r.startDaemons(ctx)
}

// start brings the load balancers and backends up.
func (r *run) start() (err error) {
	if r.key, err = randomKey(); err != nil {
		return err
	}
	o := r.opts
	r.backends, err = startRole(r.net.backends, roleBackends, order{Backends: &backendsOrder{
		Listen: backends(), Key: r.key, Sessions: o.Sessions, Pattern: r.tools.pattern(),
		Fresh: o.Fresh, StallTimeout: o.StallTimeout,
	}})
	if err != nil {
		return err
	}
	if _, err := r.backends.ready(); err != nil {
		return err
	}
	for i := range r.net.nodes {
		if err := r.startBalancer(i, false, false); err != nil {
			return err
		}
	}
	return nil
}

// startClients sets the sessions going and says who will judge them.
func (r *run) startClients() (err error) {
	o := r.opts
	if o.Load == LoadTcpkali {
		r.judge = r.backends
		r.clients, err = r.tools.startTcpkali(r)
		return err
	}
	r.clients, err = startRole(r.net.clients, roleClients, order{Clients: &clientsOrder{
		Service: service(), Sources: sources(o.Sessions), Sessions: o.Sessions, Key: r.key,
		Pause: r.pause, Fresh: o.Fresh, StallTimeout: o.StallTimeout, Hold: o.Hold,
	}})
	if err != nil {
		return err
	}
	r.judge = r.clients
	_, err = r.clients.ready()
	return err
}

// startBalancer starts the load balancer of a node, with a new map. One that is held has
// its map and its program, and balances once it is told to attach.
func (r *run) startBalancer(i int, again, held bool) (err error) {
	node := r.net.nodes[i]
	o := &balancerOrder{
		Interface: balancerLink, Mode: string(r.opts.XDP), Layout: r.opts.Layouts[i], Service: service(), Backends: backends(),
		NewMap: again, Held: held, Idle: r.idle, CollectEvery: r.opts.CollectEvery,
		MaxEntries: uint32(3*r.opts.Sessions + 4096), // two a session, and room
	}
	switch {
	case r.byName: // the nodes share a kernel, so its names for the maps differ
		o.Name = mapNameOf(node.name)
	case !again:
		r.pins[i], err = r.place.pins(r.name, node.name)
	}
	if err != nil {
		return err
	}
	o.PinDir = r.pins[i]
	if r.balancers[i], err = startRole(node.ns, roleBalancer, order{Balancer: o}); err != nil {
		return err
	}
	ready, err := r.balancers[i].ready()
	r.maps[i] = ready.MapID
	return err
}

// mapNameOf is the kernel's name for the map of a node.
func mapNameOf(node string) string { return "ct_" + node }

// openMap opens the current map of a node. The caller closes it.
func (r *run) openMap(i int) (*ebpf.Map, error) {
	m, err := ebpf.NewMapFromID(ebpf.MapID(r.maps[i]))
	if err != nil {
		return nil, fmt.Errorf("open map of %s: %w", r.net.nodes[i].name, err)
	}
	return m, nil
}

// open opens the sessions and waits until every one has exchanged data.
func (r *run) open(ctx context.Context) error {
	if err := r.startClients(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.opts.OpenTimeout,
		fmt.Errorf("sessions are not open after %s", r.opts.OpenTimeout))
	defer cancel()
	rep, err := r.await(ctx, func(rep report) bool { return rep.Opened })
	if err != nil {
		return fmt.Errorf("open sessions: %w", err)
	}
	r.log.Info("all sessions are open and carry data", "sessions", rep.Counts.Opened,
		"took", rep.Counts.OpenTime.Round(time.Millisecond))
	return nil
}

// settle lets data flow, and gives the peer the chance that an operator would
// give it.
func (r *run) settle(ctx context.Context, out *Outcome) error {
	begun := time.Now()
	if err := r.flow(ctx, r.opts.Flow); err != nil {
		return err
	}
	if r.daemons[active] != nil {
		if err := r.awaitPeer(ctx); err != nil {
			return err
		}
		out.SyncMS = time.Since(begun).Milliseconds()
	}
	if r.opts.BeforeCut == nil {
		return nil
	}
	err := r.opts.BeforeCut(filepath.Join(r.pins[active], lb.MapName), filepath.Join(r.pins[standby], lb.MapName))
	if err != nil {
		return fmt.Errorf("prepare cut: %w", err)
	}
	return nil
}

// flow passes time, in which no session may be lost.
func (r *run) flow(ctx context.Context, d time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d, errFlowed)
	defer cancel()
	_, err := r.await(ctx, func(report) bool { return false })
	if errors.Is(err, errFlowed) {
		return nil
	}
	return err
}

var errFlowed = errors.New("data has flowed for long enough")

// cut kills the active load balancer and its syncd, cuts its links and moves
// the route. A node that dies does all at once. Here the order has to stand for
// that: syncd goes first, so that it can tell its peer nothing of the last
// moment, and the link goes before the load balancer, or else the node's kernel,
// alive without the program, would reset whoever speaks to it in between.
func (r *run) cut(out *Outcome) (*cutOrder, error) {
	cut := &cutOrder{Killed: monotonic()}
	r.judging = true
	var err error
	if d := r.daemons[active]; d != nil {
		err = d.process.cmd.Process.Kill()
	}
	err = errors.Join(err, r.net.cut(active), r.balancers[active].cmd.Process.Kill())
	cut.Dead = monotonic()
	err = errors.Join(err, r.net.point(standby))
	out.SwitchMS = (monotonic() - cut.Killed) / int64(time.Millisecond)
	err = errors.Join(err, r.net.isolate(active))
	if err != nil {
		return nil, fmt.Errorf("cut %s off: %w", r.net.nodes[active].name, err)
	}
	r.log.Info("active load balancer is dead, its links are cut, the route is moved",
		"dead", r.net.nodes[active].name, "route", r.net.nodes[standby].name, "switch_ms", out.SwitchMS)
	return cut, nil
}

// decide waits until every session is judged.
func (r *run) decide(ctx context.Context, cut *cutOrder, out *Outcome) error {
	if err := r.judge.order(order{Cut: cut}); err != nil {
		return err
	}
	var err error
	if out.Standby, err = r.takeCensus(standby); err != nil {
		return err
	}
	r.log.Info("standby's map at the cut", "entries", out.Standby.Entries, "needed", 2*out.Sessions,
		"handshake", out.Standby.Handshake, "closing", out.Standby.Closing)
	if err := r.verdict(ctx, out); err != nil {
		return err
	}
	if out.Survived < out.Sessions {
		r.explain(ctx)
	}
	return nil
}

// verdict waits for what the clients say of the last cut.
func (r *run) verdict(ctx context.Context, out *Outcome) error {
	rep, err := r.await(ctx, func(rep report) bool { return rep.Done })
	if err != nil {
		return fmt.Errorf("judge sessions: %w", err)
	}
	c := rep.Counts
	out.Survived, out.Reset, out.Stalled, out.Corrupt = c.Survived, c.Reset, c.Stalled, c.Corrupt
	out.MaxStallMS, out.LimitMS = c.MaxStall.Milliseconds(), c.Limit.Milliseconds()
	out.OpenMS, out.LatencyMS = c.OpenTime.Milliseconds(), c.Latency.Seconds()*1e3
	out.Exchanges, out.FirstLoss = c.Exchanges, c.FirstLoss
	r.log.Info("all sessions are decided", "survived", out.Survived, "reset", out.Reset,
		"stalled", out.Stalled, "corrupt", out.Corrupt, "max_stall_ms", out.MaxStallMS, "first_loss", out.FirstLoss)
	return nil
}

// await passes reports on as progress until one is what it waits for. A
// process that dies before its time ends the wait.
func (r *run) await(ctx context.Context, wanted func(report) bool) (report, error) {
	for {
		select {
		case <-ctx.Done():
			return report{}, context.Cause(ctx)
		case <-r.balancers[standby].done:
			return report{}, fmt.Errorf("%s ended early: %w", r.balancers[standby].name, r.balancers[standby].why())
		case <-r.standbyDaemon():
			return report{}, fmt.Errorf("%s ended early: %w", r.daemons[standby].process.name, r.daemons[standby].process.why())
		case rep, ok := <-r.judge.reports:
			if rep.Counts != nil {
				r.last = *rep.Counts
			}
			switch {
			case !ok:
				return report{}, fmt.Errorf("%s ended early", r.judge.name)
			case rep.Error != "":
				return report{}, fmt.Errorf("%s: %s", r.judge.name, rep.Error)
			case !r.judging && rep.Counts.lost() > 0:
				return report{}, fmt.Errorf("%d sessions broke where none should, the first: %s", rep.Counts.lost(), rep.Counts.FirstLoss)
			}
			r.progress(rep)
			if wanted(rep) {
				return rep, nil
			}
		case rep, ok := <-r.others():
			if !ok || rep.Error != "" {
				return report{}, fmt.Errorf("%s ended early: %s", r.backends.name, rep.Error)
			}
			if n := rep.Counts.lost(); n > r.refused {
				r.log.Warn("backends have ended connections", "connections", n, "first", rep.Counts.FirstLoss)
				r.refused = n
			}
		}
	}
}

// others gives the backends' reports when they are not the judge.
func (r *run) others() <-chan report {
	if r.judge == r.backends {
		return nil
	}
	return r.backends.reports
}

func (r *run) standbyDaemon() <-chan struct{} {
	if r.daemons[standby] == nil {
		return nil
	}
	return r.daemons[standby].process.done
}

func (r *run) progress(rep report) {
	c := rep.Counts
	if c == nil {
		return
	}
	r.log.Info("progress", "open", c.Opened, "exchanges", c.Exchanges, "survived", c.Survived,
		"reset", c.Reset, "stalled", c.Stalled, "corrupt", c.Corrupt, "latency", c.Latency.Round(time.Microsecond))
}

// end stops everything, the noisy ends first.
func (r *run) end() error {
	var errs []error
	if r.net != nil {
		errs = append(errs, r.net.silence())
	}
	for _, p := range []*process{r.clients, r.backends, r.balancers[0], r.balancers[1]} {
		if p != nil {
			errs = append(errs, p.kill())
		}
	}
	for _, d := range r.daemons {
		if d != nil {
			errs = append(errs, d.process.kill())
		}
	}
	if r.net != nil {
		errs = append(errs, r.net.close())
	}
	return errors.Join(errs...)
}

func randomKey() (uint64, error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return 0, fmt.Errorf("make content key: %w", err)
	}
	return binary.LittleEndian.Uint64(b[:]), nil
}
