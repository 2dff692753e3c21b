package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"mapsync/internal/tool"
	"mapsync/syncd/capture"
	"mapsync/syncd/config"
)

// The load of the first node's load balancer while latency is measured.
const (
	eventRate = 100_000 // changes per second that the hooks' code reports
	flowRate  = 10_000  // new entries per second, each of which changes in place once
	callRate  = 10_000  // entries per second that the control plane writes by bpf(2)
	touchRate = 10_000  // existing entries per second that change in place
	// maxHandshake is the longest time from the creation of an entry to its change in place. It is
	// as long as a handshake around the world.
	maxHandshake = 200 * time.Millisecond

	// The poller looks up one change in eventSample, flowSample, callSample or touchSample at the
	// peer, at these intervals. The interval is the resolution. A change is detected up to an
	// interval and a round of lookups (about 1 µs each) after its arrival, never before. The
	// lookups take a few percent of a core from the two daemons.
	eventSample, eventPollEvery = 50, 250 * time.Microsecond
	flowSample, flowPollEvery   = 25, time.Millisecond
	callSample                  = 5
	touchSample                 = 25
)

// Latency is the time from the write to the first node's map until the kernel map of its peer held
// the change, in milliseconds.
type Latency struct {
	Name    string  `json:"name"`
	Rate    float64 `json:"per_second"` // measured rate
	Samples int64   `json:"samples"`
	P50     float64 `json:"p50_ms"`
	P99     float64 `json:"p99_ms"`
	P999    float64 `json:"p999_ms"`
	Max     float64 `json:"max_ms"`
	Bound   float64 `json:"p99_bound_ms"`
	// SenderCPU and ReceiverCPU are the processor use of the two daemons, in percent of one core.
	SenderCPU   float64 `json:"sender_cpu_percent"`
	ReceiverCPU float64 `json:"receiver_cpu_percent"`
}

// latencyKind is a kind of change.
type latencyKind struct {
	name      string
	bound     float64       // of p99, ms
	pollEvery time.Duration // interval of the lookups
	open      func(*nodes, *arrivalPoller) (traffic, error)
}

// latencyGroup is kinds of changes that are measured on the same two daemons.
type latencyGroup struct {
	change func(*config.Config) // of the settings
	kinds  []latencyKind
}

// eventGroup has the changes that need no hooks on map functions.
func eventGroup() latencyGroup {
	return latencyGroup{attachBy(capture.AttachNone), []latencyKind{
		{"changes that hooks report", 20, eventPollEvery, openEvents},
		{"changes in place of new entries", 1000, flowPollEvery, openFlows},
	}}
}

// hookGroups has the writes by bpf(2) with each of callMethods and, with fexit, the changes in place that the hook on
// lookups finds.
func hookGroups() (groups []latencyGroup) {
	for _, attach := range callMethods() {
		kind := latencyKind{"writes by bpf(2), attach " + string(attach), 20, eventPollEvery, openCalls}
		groups = append(groups, latencyGroup{attachBy(attach), []latencyKind{kind}})
		if attach == capture.AttachFexit {
			kind := latencyKind{"changes in place, in-place: hook", 300, flowPollEvery, openTouches}
			groups = append(groups, latencyGroup{hookInPlace, []latencyKind{kind}})
		}
	}
	return groups
}

// callMethods returns the attach methods that detect the writes of a control plane. System calls are hooked only if
// nothing else is possible.
func callMethods() (methods []capture.Attach) {
	for _, offer := range capture.Probe(capture.AttachFexit, capture.AttachKprobe) {
		if offer.Err == nil {
			methods = append(methods, offer.Attach)
		}
	}
	if len(methods) == 0 {
		methods = append(methods, capture.AttachSyscall)
	}
	return methods
}

// newHistogram returns a histogram of nanoseconds, up to one minute, with three significant digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, int64(time.Minute), 3)
}

func milliseconds(ns int64) float64 { return float64(ns) / 1e6 }

func latencyOf(name string, h *hdrhistogram.Histogram) Latency {
	return Latency{
		Name: name, Samples: h.TotalCount(),
		P50: milliseconds(h.ValueAtQuantile(50)), P99: milliseconds(h.ValueAtQuantile(99)),
		P999: milliseconds(h.ValueAtQuantile(99.9)), Max: milliseconds(h.Max()),
	}
}

// measureLatencies measures each kind of changes for the duration limit, on two whole daemons that hold n entries.
func measureLatencies(ctx context.Context, groups []latencyGroup, n int, limit time.Duration) (all []Latency, err error) {
	for _, g := range groups {
		some, err := g.measure(ctx, n, limit)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

func (g *latencyGroup) measure(ctx context.Context, n int, limit time.Duration) (all []Latency, err error) {
	room := n + int(flowRate*(2*limit).Seconds())
	p, err := startNodes(ctx, n, room, g.change)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	for _, kind := range g.kinds {
		tool.Progress("latency: %s", kind.name)
		l, err := p.latency(ctx, kind, limit)
		if err != nil {
			return nil, fmt.Errorf("measure latency of %s: %w", kind.name, err)
		}
		tool.Progress("  p50 %.2f ms, p99 %.2f ms, p99.9 %.2f ms, max %.2f ms", l.P50, l.P99, l.P999, l.Max)
		all = append(all, l)
	}
	return all, errors.Join(p.a.checkNoLosses(ctx), p.b.checkNoLosses(ctx))
}

// traffic writes the first node's map.
type traffic interface {
	// step makes the changes that are due at the elapsed time. done is the number of changes made
	// before. It returns the number of changes that it made.
	step(done int, elapsed time.Duration) (made int, err error)
	close() error
}

// latency runs a load for the duration limit and returns the latency of its changes.
func (p *nodes) latency(ctx context.Context, kind latencyKind, limit time.Duration) (_ Latency, err error) {
	arrivals := newArrivalPoller(p.mapB, kind.pollEvery)
	l, err := kind.open(p, arrivals)
	if err != nil {
		return Latency{}, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	arrivals.start()
	defer func() { err = errors.Join(err, arrivals.close()) }()
	d := driver{traffic: l, began: time.Now()}
	err = d.run(ctx, limit/10) // the warm-up
	waited := time.Now()
	if err := errors.Join(err, arrivals.awaitAll()); err != nil {
		return Latency{}, err
	}
	d.began = d.began.Add(time.Since(waited)) // changes were not due meanwhile
	arrivals.reset()
	before, began := d.done, time.Now()
	var rate float64
	cpuA, cpuB, err := p.cpuShares(func() error {
		err := d.run(ctx, limit)
		rate = float64(d.done-before) / time.Since(began).Seconds()
		return err
	})
	if err := errors.Join(err, arrivals.awaitAll()); err != nil {
		return Latency{}, err
	}
	result := latencyOf(kind.name, arrivals.result())
	result.Bound, result.Rate, result.SenderCPU, result.ReceiverCPU = kind.bound, rate, cpuA, cpuB
	return result, nil
}

// driver makes the changes on schedule.
type driver struct {
	traffic traffic
	began   time.Time
	done    int
}

// drivePause is the interval between two steps.
const drivePause = time.Millisecond

// leastChanges is the lowest number of changes of a run. The poller looks up some of them.
const leastChanges = 4 * eventSample

// run runs for the duration limit, and longer until leastChanges are made. A late step also makes the changes that became due
// meanwhile.
func (d *driver) run(ctx context.Context, limit time.Duration) error {
	least := d.done + leastChanges
	for end := time.Now().Add(limit); ctx.Err() == nil && (time.Now().Before(end) || d.done < least); {
		made, err := d.traffic.step(d.done, time.Since(d.began))
		if err != nil {
			return err
		}
		d.done += made
		sleep(drivePause)
	}
	return ctx.Err()
}
