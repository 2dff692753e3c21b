package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"mapsync/bench/process"
	"mapsync/docs/examples/bundling/trace"
)

// methods are the tracer's methods in the order of the first round.
var methods = []string{trace.Stream, trace.Aggregate, trace.Bundle}

// kind is a load on one node, with client and service.
type kind struct {
	name string
	request
}

// kinds returns the loads: short and persistent connections at each rate, and each number of clients at one rate. No load is in the list
// twice.
func kinds(o *options) (list []kind) {
	base := request{To: fmt.Sprintf("127.0.0.1:%d", servicePort), From: "127.1.0.1", Seconds: o.window.Seconds(), Sources: o.sources[0]}
	for _, persistent := range []bool{false, true} {
		for _, rate := range o.rates {
			r, name := base, "short"
			r.Persistent, r.Rate = persistent, float64(rate)
			if persistent {
				name = "persistent"
			}
			list = append(list, kind{name, r})
		}
	}
	for _, n := range o.sources {
		r := base
		r.Sources, r.Rate = n, float64(o.sourcesRate)
		if k := (kind{"short", r}); !slices.Contains(list, k) {
			list = append(list, k)
		}
	}
	return list
}

// order returns the methods in the order of a round, from 0. Each round starts with another method, so that a drift of the
// machine affects all of them.
func order(round int) []string {
	first := round % len(methods)
	return slices.Concat(methods[first:], methods[:first])
}

// measurement is the cost of a method under a load. The times are for the whole window.
type measurement struct {
	kind
	method       string
	seconds      float64
	roundTrips   uint64
	tracer       process.Usage
	syncd        process.Usage // with the method bundle
	tracerReport trace.Report
}

// percent returns a time as a share of one CPU.
func (m *measurement) percent(d time.Duration) float64 { return 100 * d.Seconds() / m.seconds }

// total is the processor time that the method adds.
func (m *measurement) total() time.Duration { return m.tracer.Total() + m.syncd.Total() }

// perRoundTrip is the run time of the tracer's programs for a round trip, at both ends together.
func (m *measurement) perRoundTrip() time.Duration {
	return m.tracer.Programs / time.Duration(max(1, m.roundTrips))
}

// measure runs a method under a load, and fails if a sum differs from what the load has done, without the runs that the kernel has skipped.
func (c *cluster) measure(ctx context.Context, k kind, method string) (m measurement, err error) {
	n := c.nodes[0]
	if _, err := n.startTracer(method); err != nil {
		return m, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("measure %s, %.0f/s, %s: %w", k.name, k.Rate, method, err)
		}
	}()
	var o observer
	if method == trace.Bundle {
		if err := n.startSyncd(ctx); err != nil {
			return m, err
		}
		if o, err = c.observe(n); err != nil {
			return m, err
		}
	}
	m, done, err := n.underLoad(k, method)
	if err != nil {
		return m, err
	}
	// The tracer drains once more when it ends.
	if err := n.stopTracer(&m.tracerReport); err != nil {
		return m, err
	}
	if done, err = counted(&m.tracerReport, done); err != nil {
		return m, err
	}
	if method != trace.Bundle {
		return m, nil
	}
	c.done = trace.Sums{Outgoing: sum(c.done.Outgoing, done.Outgoing), Incoming: sum(c.done.Incoming, done.Incoming)}
	_, err = awaitSums(ctx, o, map[string]trace.Sums{n.name: c.done}, nil)
	return m, errors.Join(err, o.close(), n.checkSums(ctx), n.stopSyncd(), n.endTrace())
}

// counted returns what a tracer has counted of what the sockets have done: all, unless the kernel has skipped runs. It skips
// a program if it runs already, interrupted, on the same CPU.
func counted(r *trace.Report, done trace.Sums) (trace.Sums, error) {
	if r.Lost != 0 || !mayBe(r.Sums, done, r.Missed) {
		return done, fmt.Errorf("sums of the tracer: got %+v, want %+v and nothing lost", *r, done)
	}
	return r.Sums, nil
}

// mayBe reports whether a tracer that has missed runs may have counted these sums of what the sockets have done.
func mayBe(s, done trace.Sums, missed uint64) bool {
	return s == done || missed > 0 && notAbove(s.Outgoing, done.Outgoing) && notAbove(s.Incoming, done.Incoming)
}

// underLoad makes the load and measures the node's processes meanwhile. done is what the sockets have done.
func (n *node) underLoad(k kind, method string) (m measurement, done trace.Sums, err error) {
	var before, after ends
	tracer, err := process.NewMeter(n.tracer.cmd.Process.Pid)
	if err != nil {
		return m, done, err
	}
	defer func() { err = errors.Join(err, tracer.Close()) }()
	syncd := new(process.Meter)
	if n.syncd != nil {
		if syncd, err = process.NewMeter(n.syncd.cmd.Process.Pid); err != nil {
			return m, done, err
		}
		defer func() { err = errors.Join(err, syncd.Close()) }()
	}
	if err := n.load.ask("server", &before); err != nil {
		return m, done, err
	}
	m = measurement{kind: k, method: method}
	readTracer, readSyncd := tracer.Since(), syncd.Since()
	r, err := n.makeLoad(k.request)
	if err != nil {
		return m, done, err
	}
	m.tracer, m.syncd = readTracer(&err), readSyncd(&err)
	if err := errors.Join(err, n.load.ask("server", &after)); err != nil {
		return m, done, err
	}
	m.seconds, m.roundTrips = r.Seconds, r.Clients.Messages
	return m, trace.Sums{Outgoing: r.Clients, Incoming: difference(after, before)}, nil
}

// makeLoad makes a load in the node's namespace.
func (n *node) makeLoad(r request) (done result, err error) {
	line, err := json.Marshal(r)
	if err != nil {
		return done, err
	}
	if err := n.load.ask(string(line), &done); err != nil {
		return done, err
	}
	if done.Error != "" {
		return done, fmt.Errorf("make load: %s", done.Error)
	}
	return done, nil
}
