package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"mapsync/internal/tool"
	"mapsync/syncd/config"
)

// jitterBound is the limit of p99.9 of the pings above that of an idle machine, in ms.
const jitterBound = 1

// jitterJoins is the highest number of joins in a phase. Each join has its own map.
const jitterJoins = 2

// Jitter is the duration of pings through the load balancer during a phase.
type Jitter struct {
	Latency
	// Over is the difference of p99.9 to that of the idle machine, in ms.
	Over float64 `json:"p999_over_idle_ms"`
	// Control marks a control phase: an unrelated process uses the same share of the processors as
	// syncd in another phase. syncd does not cause the delay in this phase.
	Control bool `json:"control,omitempty"`
}

// jitterRun is the state that the phases share.
type jitterRun struct {
	n      int
	limit  time.Duration // duration of a phase
	net    *network
	pinger *pinger
}

// phase is an activity that runs while pings are counted.
type phase struct {
	name    string
	control bool
	run     func(*jitterRun, context.Context) error
}

var phases = []phase{
	{"idle", false, (*jitterRun).idling},
	{"scans without end, default budget", false, func(j *jitterRun, ctx context.Context) error {
		return j.scanning(ctx, config.Default().ScanBudget)
	}},
	{"scans without end, budget 100 %", false, func(j *jitterRun, ctx context.Context) error { return j.scanning(ctx, 100) }},
	{"control: a thread that spins", true, func(j *jitterRun, ctx context.Context) error { return j.spinning(ctx, 1, anyCPU) }},
	{"a peer joins", false, func(j *jitterRun, ctx context.Context) error { return j.joining(ctx, otherCPUs) }},
	{"control: two threads that spin", true, func(j *jitterRun, ctx context.Context) error { return j.spinning(ctx, 2, anyCPU) }},
	{"a peer joins on the CPU of the pings", false, func(j *jitterRun, ctx context.Context) error { return j.joining(ctx, pingCPU) }},
	{"control: a thread that spins there", true, func(j *jitterRun, ctx context.Context) error { return j.spinning(ctx, 1, pingCPU) }},
}

// measureJitter pings through the load balancer, whose map holds n entries, in several phases: on
// an idle machine, during continuous scans of the map, and while a peer joins and receives all
// entries. Each round runs all phases in turn. The result of each phase is that of the median
// round.
func measureJitter(ctx context.Context, n, rounds int, limit time.Duration) (_ []Jitter, err error) {
	j := &jitterRun{n: n, limit: limit}
	tool.Progress("jitter: building a network around a load balancer with %d entries", n)
	if j.net, err = newNetwork(n); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, j.net.close()) }()
	if err := batchUpdate(j.net.balancer.Map(), makeEntries(n)); err != nil {
		return nil, err
	}
	if j.pinger, err = startPinger(j.net); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, j.pinger.close()) }()
	if !j.pinger.realtime {
		tool.Progress("  no right to real-time priority: client and backend wait for a processor like all else")
	}
	counted := make([][]Latency, len(phases))
	for round := range rounds {
		tool.Progress("jitter: round %d of %d", round+1, rounds)
		for i, p := range phases {
			l, err := j.phase(ctx, p)
			if err != nil {
				return nil, fmt.Errorf("ping, %s: %w", p.name, err)
			}
			counted[i] = append(counted[i], l)
		}
	}
	all := make([]Jitter, len(phases))
	for i, p := range phases {
		slices.SortFunc(counted[i], func(a, b Latency) int { return cmp.Compare(a.P999, b.P999) })
		all[i] = Jitter{Latency: counted[i][rounds/2], Control: p.control}
		all[i].Over = all[i].P999 - all[0].P999
	}
	return all, j.checkForwarded()
}

// phase runs one phase and returns the pings that were counted.
func (j *jitterRun) phase(ctx context.Context, p phase) (Latency, error) {
	if err := p.run(j, ctx); err != nil {
		return Latency{}, err
	}
	l, err := j.pinger.take(p.name)
	tool.Progress("  p99.9 %.3f ms: %s", l.P999, p.name)
	return l, err
}

func (j *jitterRun) idling(ctx context.Context) error {
	return j.pinger.during(func() error { return tool.Pause(ctx, j.limit) })
}

// scanning pings while a daemon scans the map continuously.
func (j *jitterRun) scanning(ctx context.Context, budget float64) (err error) {
	p, err := j.daemon(ctx, func(c *config.Config) { c.ScanInterval, c.ScanBudget = time.Millisecond, budget })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.a.close()) }()
	if err := tool.Pause(ctx, time.Second); err != nil {
		return err
	}
	return j.idling(ctx)
}

// daemon starts a daemon with the load balancer's map.
func (j *jitterRun) daemon(ctx context.Context, change func(*config.Config)) (*nodes, error) {
	p := &nodes{n: j.n, mapA: j.net.balancer.Map()}
	var err error
	if p.a, err = startSyncd(1, p.mapA, change); err != nil {
		return nil, err
	}
	if err := p.a.awaitReady(ctx, 0); err != nil {
		return nil, errors.Join(err, p.a.close())
	}
	return p, nil
}

func (j *jitterRun) spinning(ctx context.Context, threads int, start starter) error {
	return spinning(threads, start, func() error { return j.idling(ctx) })
}

// joining pings while peers with an empty map join one after another. start chooses the processors
// of the peers. A peer that represents another machine does not run on the one that serves the pings.
// Its map is created before, because its load balancer would create it.
func (j *jitterRun) joining(ctx context.Context, start starter) (err error) {
	var maps [jitterJoins]*ebpf.Map
	for i := range maps {
		if maps[i], err = newTypedMap("second", j.n); err != nil {
			return err
		}
		defer maps[i].Close()
	}
	p, err := j.daemon(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.a.close()) }()
	var counted time.Duration
	for i := 0; i < len(maps) && counted < j.limit; i++ {
		began := time.Now()
		var b *syncd
		err := j.pinger.during(func() (err error) {
			if b, err = startSyncdOn(start, 2, maps[i], nil); err != nil {
				return err
			}
			return b.awaitReady(ctx, 0)
		})
		counted += time.Since(began)
		if err := errors.Join(err, b.close(), p.awaitAlone(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// checkForwarded fails unless the pings went through the load balancer's program.
func (j *jitterRun) checkForwarded() error {
	s, err := j.net.balancer.Stats()
	if err != nil {
		return err
	}
	if pings := j.pinger.roundTrips; pings == 0 || s.Forwarded < 2*pings || s.NoEntry > 0 {
		return fmt.Errorf("check pings: got %d round trips, %d packets forwarded by the load balancer and %d without entry, want two packets per round trip and none without entry",
			pings, s.Forwarded, s.NoEntry)
	}
	return nil
}
