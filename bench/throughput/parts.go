package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// part is a measurement that can run separately.
type part struct {
	name    string
	measure func(r *Report, ctx context.Context, o options) error
	extra   bool // only on request
}

var parts = []part{
	{"end-to-end", (*Report).endToEnd, false},
	{"steps", (*Report).steps, false},
	{"latency", (*Report).latency, false},
	{"calls", (*Report).calls, false},
	{"join", (*Report).join, false},
	{"idle", (*Report).idle, false},
	{"jitter", (*Report).jitter, false},
	{"followed", (*Report).followed, false},
	{"buffers", (*Report).buffers, true},
	{"notification", (*Report).notification, true},
}

func partNames() (names []string) {
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

// chosen returns the parts that the options select.
func (o *options) chosen() ([]part, error) {
	var list []part
	if o.only == "" {
		for _, p := range parts {
			if !p.extra {
				list = append(list, p)
			}
		}
		return list, nil
	}
	for _, name := range strings.Split(o.only, ",") {
		i := slices.IndexFunc(parts, func(p part) bool { return p.name == name })
		if i < 0 {
			return nil, fmt.Errorf("measure %q: there are %s", name, strings.Join(partNames(), ", "))
		}
		list = append(list, parts[i])
	}
	return list, nil
}

// PartRun is the cost of the measurement of a part.
type PartRun struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	// OtherLoad is the share of the processors' time that other processes used meanwhile, in
	// percent.
	OtherLoad float64 `json:"other_load_percent"`
}

func (r *Report) measure(ctx context.Context, o options) error {
	list, err := o.chosen()
	if err != nil {
		return err
	}
	for _, p := range list {
		before, err := beginLoad()
		if err != nil {
			return err
		}
		if err := p.measure(r, ctx, o); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		load, err := before.percent()
		if err != nil {
			return err
		}
		r.Parts = append(r.Parts, PartRun{p.name, time.Since(before.began).Seconds(), load})
	}
	return nil
}

func (r *Report) latency(ctx context.Context, o options) (err error) {
	r.Latencies, err = measureLatencies(ctx, []latencyGroup{eventGroup()}, o.entries, o.latency)
	return err
}

// calls adds the writes by bpf(2) and the changes in place that hooks find to the latencies.
func (r *Report) calls(ctx context.Context, o options) error {
	calls, err := measureLatencies(ctx, hookGroups(), o.entries, o.latency)
	r.Latencies = append(r.Latencies, calls...)
	return err
}

func (r *Report) join(ctx context.Context, o options) (err error) {
	r.Join, err = measureJoins(ctx, o.entries, o.rounds)
	return err
}

func (r *Report) idle(ctx context.Context, o options) (err error) {
	r.Idle, err = measureIdle(ctx, o.entries, o.idle)
	return err
}

// maxJitterRounds limits the rounds of pings, which take half a minute each.
const maxJitterRounds = 3

func (r *Report) jitter(ctx context.Context, o options) (err error) {
	r.Jitter, err = measureJitter(ctx, o.entries, min(o.rounds, maxJitterRounds), o.jitter)
	return err
}

func (r *Report) followed(ctx context.Context, o options) (err error) {
	r.Followed, err = measureFollowed(ctx, o.entries, o.jitter)
	return err
}

func (r *Report) buffers(ctx context.Context, o options) (err error) {
	r.Buffers, err = measureBuffers(ctx, o)
	return err
}

func (r *Report) notification(ctx context.Context, o options) (err error) {
	r.Notification, err = measureNotification(ctx, min(o.entries, 100_000), o.latency)
	return err
}
