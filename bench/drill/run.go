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

	"mapsync/bench/lb"
)

// The two load balancers. Sessions are opened through the active one, which the drill kills.
const (
	active  = 0
	standby = 1
)

// run is one run of the drill, with syncd or, as the control, without it.
type run struct {
	opts    *Options
	tools   *tools
	workDir *workDir
	name    string
	log     *slog.Logger

	byName      bool              // syncd finds the maps by their names, and the maps have no pins
	dropUnknown bool              // kernels drop packets of unknown sessions instead of resetting them
	idle        time.Duration     // idle limit of an open session at the load balancers; 0: their default
	pause       time.Duration     // of a session between two requests; 0: derived from the speed of the machine
	adjust      func(c *settings) // changes the settings of syncd; may be nil

	net            *network
	key            uint64 // of the content
	pins           [2]string
	maps           [2]uint32 // ids
	backends       *process
	clients        *process
	balancers      [2]*process
	daemons        [2]*daemon // nil without syncd
	decider        *process   // process that counts the sessions
	refused        int        // connections that the backends closed
	last           counts     // last counts of the decider
	lossAllowed    bool       // counts lost sessions without failing the drill
	connectionRate float64
}

func (r *run) perform(ctx context.Context) (out *Outcome, err error) {
	defer func() { err = errors.Join(err, r.end()) }()
	if err := r.build(ctx); err != nil {
		return nil, err
	}
	if r.daemons[active] == nil && r.opts.Load != LoadNetperf {
		r.connectionRate = r.tools.measureRate(ctx, r)
	}
	out = &Outcome{Sessions: r.opts.Sessions}
	if err := r.open(ctx); err != nil {
		return nil, err
	}
	if err := r.prepareCut(ctx, out); err != nil {
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

// prepareCut exchanges data for Flow and then waits until the peer has caught up, as an operator
// would.
func (r *run) prepareCut(ctx context.Context, out *Outcome) error {
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

// flow exchanges data for d. It returns an error if a session is lost meanwhile.
func (r *run) flow(ctx context.Context, d time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d, errFlowed)
	defer cancel()
	_, err := r.await(ctx, func(report) bool { return false })
	if errors.Is(err, errFlowed) {
		return nil
	}
	return err
}

var errFlowed = errors.New("flow time is over")

// cut kills the active load balancer and its syncd, cuts its links and moves the route. On a
// machine that fails, all of this happens at the same time. The drill approximates that with its
// order. It kills syncd first, so that syncd cannot send the last changes to its peer. It cuts the
// link before it kills the load balancer: otherwise the node's kernel, which is still alive, would
// reset connections.
func (r *run) cut(out *Outcome) (*cutCommand, error) {
	cut := &cutCommand{Killed: monotonic()}
	r.lossAllowed = true
	var err error
	if d := r.daemons[active]; d != nil {
		err = d.process.cmd.Process.Kill()
	}
	err = errors.Join(err, r.net.cut(active), r.balancers[active].cmd.Process.Kill())
	cut.Dead = monotonic()
	err = errors.Join(err, r.net.routeTo(standby))
	out.SwitchMS = (monotonic() - cut.Killed) / int64(time.Millisecond)
	err = errors.Join(err, r.net.isolate(active))
	if err != nil {
		return nil, fmt.Errorf("cut %s off: %w", r.net.nodes[active].name, err)
	}
	r.log.Info("active load balancer is dead, its links are cut, the route is moved",
		"dead", r.net.nodes[active].name, "route", r.net.nodes[standby].name, "switch_ms", out.SwitchMS)
	return cut, nil
}

// decide waits until every session is decided.
func (r *run) decide(ctx context.Context, cut *cutCommand, out *Outcome) error {
	if err := r.decider.send(command{Cut: cut}); err != nil {
		return err
	}
	var err error
	if out.Standby, err = r.countEntries(standby); err != nil {
		return err
	}
	r.log.Info("standby's map at the cut", "entries", out.Standby.Entries, "needed", 2*r.opts.connections(),
		"handshake", out.Standby.Handshake, "closing", out.Standby.Closing)
	if err := r.awaitDecision(ctx, out); err != nil {
		return err
	}
	if out.Survived < out.Sessions {
		r.logStandbyStatus(ctx)
	}
	return nil
}

// awaitDecision waits for the decider's report on the last cut.
func (r *run) awaitDecision(ctx context.Context, out *Outcome) error {
	rep, err := r.await(ctx, func(rep report) bool { return rep.Done })
	if err != nil {
		return fmt.Errorf("decide sessions: %w", err)
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

// await forwards reports as progress until wanted accepts one. It returns an error if a process
// exits meanwhile.
func (r *run) await(ctx context.Context, wanted func(report) bool) (report, error) {
	for {
		select {
		case <-ctx.Done():
			return report{}, context.Cause(ctx)
		case <-r.balancers[standby].done:
			return report{}, fmt.Errorf("%s ended early: %w", r.balancers[standby].name, r.balancers[standby].exitReason())
		case <-r.standbyDone():
			return report{}, fmt.Errorf("%s ended early: %w", r.daemons[standby].process.name, r.daemons[standby].process.exitReason())
		case rep, ok := <-r.decider.reports:
			if rep.Counts != nil {
				r.last = *rep.Counts
			}
			switch {
			case !ok:
				return report{}, fmt.Errorf("%s ended early", r.decider.name)
			case rep.Error != "":
				return report{}, fmt.Errorf("%s: %s", r.decider.name, rep.Error)
			case !r.lossAllowed && rep.Counts.lost() > 0:
				return report{}, fmt.Errorf("%d sessions were lost before the failover, the first: %s", rep.Counts.lost(), rep.Counts.FirstLoss)
			}
			r.progress(rep)
			if wanted(rep) {
				return rep, nil
			}
		case rep, ok := <-r.backendReports():
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

// backendReports returns the backends' reports; nil if the backends are the decider.
func (r *run) backendReports() <-chan report {
	if r.decider == r.backends || r.opts.Load == LoadNetperf {
		return nil
	}
	return r.backends.reports
}

func (r *run) standbyDone() <-chan struct{} {
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

// end stops all processes. It disconnects the clients and backends first, because their sockets
// send packets when they close.
func (r *run) end() error {
	var errs []error
	if r.net != nil {
		errs = append(errs, r.net.disconnectEnds())
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
