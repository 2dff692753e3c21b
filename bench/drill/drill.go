// Package drill kills a load balancer and counts the TCP sessions that survive through its peer. It
// builds a network of namespaces with clients, a router, two load balancers and backends. Each load
// balancer has its own syncd. The drill opens sessions through the active load balancer and
// exchanges verified data on all of them. Then it kills the active load balancer, moves the route
// and decides for every session whether it survived. The control run does the same without syncd,
// before the run with syncd.
//
// The drill needs root and nothing else: no tools, no outside network. Every process is this
// executable in another role. Therefore the calling program starts with [RunRole].
package drill

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"mapsync/bench/lb"
)

// Load is the program that drives the sessions.
type Load string

// The loads. The built-in client verifies every byte on both sides. The backends decide the
// sessions of tcpkali, because they verify the bytes that they receive. A session of netperf is a
// request and response test with a control and a data connection, and netperf decides it.
const (
	LoadBuiltin Load = "builtin"
	LoadTcpkali Load = "tcpkali"
	LoadNetperf Load = "netperf"
)

// connections returns the number of connections of each session.
func (l Load) connections() int {
	if l == LoadNetperf {
		return 2
	}
	return 1
}

// Options configures a drill. A zero field takes the default at the end of its comment.
type Options struct {
	Sessions     int    // TCP sessions to open; 1000
	Syncd        string // path of the syncd program; empty runs only the control
	StandbySyncd string // path of the standby's syncd program, such as that of another release; Syncd
	Attach       string // attach type of syncd: kprobe, fexit or auto; kprobe
	Buffer       string // event buffer of syncd: ring or perf; ring

	// Layouts are the layouts of the connection-tracking maps of the active load balancer and of
	// the standby; lb.LayoutV1. Different layouts simulate a cluster in the middle of an upgrade.
	Layouts [2]lb.Layout

	SkipControl bool    // for development: such a result never passes
	Load        Load    // LoadBuiltin
	XDP         lb.Mode // lb.ModeAuto

	Fresh        int           // exchanges that a session must complete after the cut to survive; 2
	StallTimeout time.Duration // time limit of an exchange, to which 50 mean latencies are added; 20 s
	Flow         time.Duration // minimum time of data exchange on all sessions before the cut; 3 s
	Hold         time.Duration // time for which surviving sessions continue after all decisions; 5 s
	OpenTimeout  time.Duration // limit for opening all sessions; 10 min
	SyncTimeout  time.Duration // limit for the peer to catch up before the cut; 2 min
	CollectEvery time.Duration // interval of the load balancers' collectors; 30 s

	// BeforeCut, if set, runs when all sessions are open, immediately before the kill of the active
	// load balancer. Its arguments are the pin paths of both maps.
	BeforeCut func(active, standby string) error

	Logger *slog.Logger // logs progress; required
}

func (o *Options) setDefaults() {
	setDefault(&o.Sessions, 1000)
	setDefault(&o.StandbySyncd, o.Syncd)
	setDefault(&o.Attach, "kprobe")
	setDefault(&o.Buffer, "ring")
	for i := range o.Layouts {
		setDefault(&o.Layouts[i], lb.LayoutV1)
	}
	setDefault(&o.Load, LoadBuiltin)
	setDefault(&o.XDP, lb.ModeAuto)
	setDefault(&o.Fresh, 2)
	setDefault(&o.StallTimeout, 20*time.Second)
	setDefault(&o.Flow, 3*time.Second)
	setDefault(&o.Hold, 5*time.Second)
	setDefault(&o.OpenTimeout, 10*time.Minute)
	setDefault(&o.SyncTimeout, 2*time.Minute)
	setDefault(&o.CollectEvery, 30*time.Second)
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (o *Options) validate() error {
	if o.Sessions < 1 || o.Sessions > 1_000_000 {
		return fmt.Errorf("%d sessions: choose 1 to 1000000", o.Sessions)
	}
	switch {
	case o.Load != LoadBuiltin && o.Load != LoadTcpkali && o.Load != LoadNetperf:
		return fmt.Errorf("load %q: choose %s, %s or %s", o.Load, LoadBuiltin, LoadTcpkali, LoadNetperf)
	case o.Load == LoadNetperf && o.Sessions > maxNetperfSessions:
		return fmt.Errorf("%d sessions of netperf, each of two processes: choose at most %d", o.Sessions, maxNetperfSessions)
	}
	return errors.Join(o.Layouts[active].Validate(), o.Layouts[standby].Validate())
}

// connections returns the number of connections of all sessions.
func (o *Options) connections() int { return o.Sessions * o.Load.connections() }

// Outcome is the result of the sessions of one run.
type Outcome struct {
	Sessions   int         `json:"sessions"`
	Survived   int         `json:"survived"` // completed exchanges that began after the cut, every byte correct
	Reset      int         `json:"reset"`    // reset or closed
	Stalled    int         `json:"stalled"`  // no answer within the limit
	Corrupt    int         `json:"corrupt"`  // the client received a wrong byte
	MaxStallMS int64       `json:"max_stall_ms"`
	LimitMS    int64       `json:"stall_limit_ms"`
	OpenMS     int64       `json:"open_ms"`    // time to open all sessions, one exchange each included
	LatencyMS  float64     `json:"latency_ms"` // mean of an exchange before the cut
	Exchanges  uint64      `json:"exchanges"`
	SyncMS     int64       `json:"sync_ms"`   // time that the drill waited for the peer before the cut
	SwitchMS   int64       `json:"switch_ms"` // time from the kill until the route was moved
	Standby    EntryCounts `json:"standby"`   // entries of the peer's map immediately after the cut
	FirstLoss  string      `json:"first_loss,omitempty"`
	MemoryMB   int         `json:"memory_mb"` // used memory of the whole machine when all sessions were open
}

// Result is the result of a whole drill.
type Result struct {
	Kernel  string       `json:"kernel"` // major.minor
	Attach  string       `json:"attach"`
	Buffer  string       `json:"buffer"`
	Load    Load         `json:"load"`
	Layouts [2]lb.Layout `json:"layouts"` // of the active load balancer and the standby
	Control *Outcome     `json:"control,omitempty"`
	Real    *Outcome     `json:"real,omitempty"`

	// ConnectionRate is netperf's TCP_CRR between the clients and a backend's own address, in
	// connections per second; 0 if netperf is not installed or has failed.
	ConnectionRate float64 `json:"connection_rate,omitempty"`
}

// Line returns the one-line summary of the result. A run that did not take place counts as zero.
// The line names layouts that differ from the default.
func (r *Result) Line() string {
	control, real := r.Control, r.Real
	if control == nil {
		control = &Outcome{}
	}
	if real == nil {
		real = &Outcome{}
	}
	line := fmt.Sprintf("drill: kernel=%s attach=%s sessions=%d control_survived=%d survived=%d reset=%d stalled=%d max_stall_ms=%d",
		r.Kernel, r.Attach, max(control.Sessions, real.Sessions), control.Survived,
		real.Survived, real.Reset, real.Stalled, real.MaxStallMS)
	if l := r.Layouts; l != [2]lb.Layout{lb.LayoutV1, lb.LayoutV1} {
		line += fmt.Sprintf(" layouts=%s,%s", l[active], l[standby])
	}
	return line
}

// Err returns the reason why the drill failed. It returns nil if the control run lost at least nine
// sessions in ten and the run with syncd lost no session.
func (r *Result) Err() error {
	if r.Control == nil {
		return errors.New("there was no control run")
	}
	if r.Control.Survived*10 > r.Control.Sessions {
		return fmt.Errorf("control run kept %d of %d sessions: the drill proves nothing",
			r.Control.Survived, r.Control.Sessions)
	}
	if r.Real == nil {
		return errors.New("there was no run with syncd")
	}
	if r.Real.Survived != r.Real.Sessions {
		return fmt.Errorf("%d of %d sessions were lost", r.Real.Sessions-r.Real.Survived, r.Real.Sessions)
	}
	return nil
}

// Run performs the drill and always cleans up afterwards. It returns an error if the drill could
// not be performed. [Result.Err] reports whether the drill passed.
func Run(ctx context.Context, opts Options) (*Result, error) {
	opts.setDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	tools, err := findTools(opts.Load)
	if err != nil {
		return nil, err
	}
	release, err := kernelRelease()
	if err != nil {
		return nil, err
	}
	if err := rlimit.RemoveMemlock(); err != nil { // for the router's program, before kernel 5.11
		return nil, fmt.Errorf("raise memory lock limit: %w", err)
	}
	result := &Result{Kernel: release, Attach: opts.Attach, Buffer: opts.Buffer, Load: opts.Load, Layouts: opts.Layouts}
	place, err := newWorkDir()
	if err != nil {
		return nil, err
	}
	defer func() {
		if err := place.remove(); err != nil {
			opts.Logger.Error("cannot clean up", "error", err)
		}
	}()
	if !opts.SkipControl {
		control := opts
		control.Syncd, control.BeforeCut = "", nil
		r := &run{opts: &control, tools: tools, workDir: place, name: "control", log: opts.Logger.With("run", "control")}
		if result.Control, err = r.perform(ctx); err != nil {
			return nil, fmt.Errorf("control run: %w", err)
		}
		result.ConnectionRate = r.connectionRate
	}
	if opts.Syncd == "" && opts.BeforeCut == nil {
		return result, nil
	}
	r := &run{opts: &opts, tools: tools, workDir: place, name: "real", log: opts.Logger.With("run", "real")}
	if result.Real, err = r.perform(ctx); err != nil {
		return nil, fmt.Errorf("real run: %w", err)
	}
	return result, nil
}

// memoryUsed returns the part of the machine's memory that is not available, in MiB.
func memoryUsed() (int, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("read memory in use: %w", err)
	}
	var total, free, available int
	_, err = fmt.Sscanf(string(text), "MemTotal: %d kB\nMemFree: %d kB\nMemAvailable: %d kB", &total, &free, &available)
	if err != nil {
		return 0, fmt.Errorf("parse memory in use: %w", err)
	}
	return (total - available) / 1024, nil
}

func kernelRelease() (string, error) {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return "", fmt.Errorf("read kernel release: %w", err)
	}
	var major, minor int
	if _, err := fmt.Sscanf(unix.ByteSliceToString(name.Release[:]), "%d.%d", &major, &minor); err != nil {
		return "", fmt.Errorf("parse kernel release: %w", err)
	}
	return fmt.Sprintf("%d.%d", major, minor), nil
}
