package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"mapsync/internal/tool"
	"mapsync/syncd/config"
)

const (
	// followBound is the limit of p99.9 of the pings above that of an idle machine while a map is
	// scanned, and startBound while syncd starts on the processor that serves the pings, in ms.
	followBound, startBound = 0.5, 1
	// callBound is the limit of the longest call, in ms.
	callBound = 1
	// followedFew is the number of entries of a sparse map.
	followedFew = 100
	// pingedEntries is the size of the map of the load balancer that forwards the pings.
	pingedEntries = 1000
)

// Followed is the duration of pings through a load balancer while syncd follows another map.
type Followed struct {
	Latency
	// Over is the difference of p99.9 to that of the idle machine, in ms.
	Over float64 `json:"p999_over_idle_ms"`
	// Bound is the limit of Over, in ms.
	Bound float64 `json:"bound_ms"`
	// LongestCall is the longest time for which one call of syncd that read or wrote a map had the processor, in ms.
	// In the control phase it is that of getppid(2): interrupts and the hypervisor cause nearly all of it.
	LongestCall float64 `json:"longest_call_ms"`
	// Control marks the control phase: a thread that calls getppid(2) without end takes the place of syncd.
	Control bool `json:"control,omitempty"`
}

// followed is the state of the measurement.
type followed struct {
	limit  time.Duration // duration of the scans of each map
	pinger *pinger
	all    []Followed
}

// measureFollowed pings through a load balancer while syncd follows another map: one for n entries and
// one ten times as large, each empty, with a few entries, and full.
func measureFollowed(ctx context.Context, n int, limit time.Duration) (_ []Followed, err error) {
	net, err := newNetwork(pingedEntries)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, net.close()) }()
	f := &followed{limit: limit}
	if f.pinger, err = startPinger(net); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.pinger.close()) }()
	if err := f.pinger.during(func() error { return tool.Pause(ctx, limit) }); err != nil {
		return nil, err
	}
	if err := f.take("idle", 0); err != nil {
		return nil, err
	}
	if err := f.control(ctx); err != nil {
		return nil, err
	}
	for _, size := range []int{n, 10 * n} {
		for _, held := range []int{0, followedFew, size} {
			if err := f.follow(ctx, size, held); err != nil {
				return nil, fmt.Errorf("follow a map for %d entries that holds %d: %w", size, held, err)
			}
		}
	}
	return f.all, nil
}

// take adds the pings that were counted to the result.
func (f *followed) take(name string, bound float64) error {
	l, err := f.pinger.take(name)
	if err != nil {
		return err
	}
	r := Followed{Latency: l, Bound: bound}
	if len(f.all) > 0 {
		r.Over = l.P999 - f.all[0].P999
	}
	f.all = append(f.all, r)
	tool.Progress("  p99.9 %.3f ms: %s", l.P999, name)
	return nil
}

// control counts pings while a thread on the processor that serves the pings makes calls that take no time.
func (f *followed) control(ctx context.Context) (err error) {
	c, err := startPingChild("a thread that calls the kernel", "call", pingCPU)
	defer func() { err = errors.Join(err, c.Close()) }()
	if err != nil {
		return err
	}
	if err := f.pinger.during(func() error { return tool.Pause(ctx, f.limit) }); err != nil {
		return err
	}
	var longest time.Duration
	if err := c.Ask("longest", &longest); err != nil {
		return err
	}
	if err := f.take("control: getppid without end", 0); err != nil {
		return err
	}
	l := &f.all[len(f.all)-1]
	l.Control, l.LongestCall = true, float64(longest)/float64(time.Millisecond)
	tool.Progress("  longest call %s", longest)
	return nil
}

// follow counts pings while syncd starts with a map on the processor that serves the pings, and then
// while it scans the map without end.
func (f *followed) follow(ctx context.Context, size, held int) (err error) {
	m, err := newMap("followed", size)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := fill(m, held); err != nil {
		return err
	}
	name := fmt.Sprintf("a map for %d entries with %d", size, held)
	var s *syncd
	err = f.pinger.during(func() (err error) {
		s, err = startSyncdOn(pingCPU, 1, m, func(c *config.Config) { c.ScanInterval = time.Millisecond })
		if err != nil {
			return err
		}
		return s.awaitReady(ctx, 0)
	})
	if err != nil {
		return errors.Join(err, s.close())
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := f.take("start with "+name, startBound); err != nil {
		return err
	}
	if err := f.pinger.during(func() error { return tool.Pause(ctx, f.limit) }); err != nil {
		return err
	}
	if err := f.take("scans of "+name, followBound); err != nil {
		return err
	}
	longest, err := s.longestCall()
	tool.Progress("  longest call %s", longest)
	for i := range f.all[len(f.all)-2:] {
		f.all[len(f.all)-2+i].LongestCall = float64(longest) / float64(time.Millisecond)
	}
	return err
}

// fill writes the first n entries into a map.
func fill(m *ebpf.Map, n int) error {
	e := &entries{keys: make([]key, batchEntries), values: make([]value, batchEntries)}
	for at := 0; at < n; at += batchEntries {
		part := &entries{keys: e.keys[:min(batchEntries, n-at)], values: e.values[:min(batchEntries, n-at)]}
		for i := range part.keys {
			fillKey(part.keys[i][:], at+i)
			fillValue(part.values[i][:], at+i, 0)
		}
		if err := batchUpdate(m, part); err != nil {
			return err
		}
	}
	return nil
}
