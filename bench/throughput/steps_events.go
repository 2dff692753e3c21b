package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"

	"mapsync/internal/injector"
	"mapsync/syncd/capture"
	"mapsync/syncd/table"
)

// hotChanges is the number of changes that are reported repeatedly if no map is written. A hook
// finds key and value in the cache, because they have just been written.
const hotChanges = 4096

// eventSteps measures the cost of an event in the kernel: the injector's loop with and without each
// part of the work, and the differences. It excludes the entry of a kprobe or a trampoline, which
// needs a kernel that has hooks.
func eventSteps(n, rounds int) (steps []Step, err error) {
	kinds := []struct {
		changes int
		watched bool
		options injector.Options
	}{
		{hotChanges, false, injector.Options{SkipWrite: true, SkipEvent: true}},
		{hotChanges, false, injector.Options{SkipWrite: true}},
		{hotChanges, true, injector.Options{SkipWrite: true}},
		{n, false, injector.Options{SkipWrite: true, SkipEvent: true}},
		{n, false, injector.Options{SkipEvent: true}},
	}
	var trials []func() (Sample, error)
	var emitters []*eventSource
	defer func() {
		for _, e := range emitters {
			err = errors.Join(err, e.close())
		}
	}()
	for _, k := range kinds {
		e, err := openEventSource(k.changes, k.watched, k.options)
		if err != nil {
			return nil, err
		}
		emitters = append(emitters, e)
		trials = append(trials, func() (Sample, error) {
			load(e.injector, e.n, 0)
			return e.repeat(max(1, 50*hotChanges/k.changes))
		})
	}
	s, err := interleave(rounds, trials)
	if err != nil {
		return nil, err
	}
	less := func(a, b Sample) Sample { return Sample{Nanoseconds: a.Nanoseconds - b.Nanoseconds} }
	return []Step{
		{"kernel: event of a watched map", less(s[2], s[0])},
		{"kernel: event of an unwatched map", less(s[1], s[0])},
		{"kernel: the write itself, by a program", less(s[4], s[3])},
	}, nil
}

// repeat makes all changes the given number of times. It returns the cost per change.
func (e *eventSource) repeat(times int) (Sample, error) {
	var sum Sample
	for range times {
		kernel, _, err := e.run()
		if err != nil {
			return Sample{}, err
		}
		sum.add(kernel)
	}
	return Sample{Nanoseconds: sum.Nanoseconds / float64(times)}, nil
}

// drainSteps measures the path from the ring into the table.
func drainSteps(n, rounds int) ([]Step, error) {
	var fresh, again []Sample
	for range rounds {
		e, err := openEventSource(n, true, injector.Options{SkipWrite: true})
		if err != nil {
			return nil, err
		}
		for generation, to := range []*[]Sample{&fresh, &again} {
			load(e.injector, e.n, generation)
			_, drain, err := e.run()
			if err != nil {
				return nil, errors.Join(err, e.close())
			}
			*to = append(*to, drain)
		}
		if err := e.close(); err != nil {
			return nil, err
		}
	}
	return []Step{
		{"capture: drain and merge, new entry", median(fresh)},
		{"capture: drain and merge, update", median(again)},
	}, nil
}

// eventSource is an injector, and a capture that drains its events into a table.
type eventSource struct {
	n        int
	watched  bool
	kernel   *ebpf.Map
	capture  *capture.Capture
	table    *table.Table
	injector *injector.Injector
	events   uint64
	stop     context.CancelFunc
	done     chan error
}

func openEventSource(n int, watched bool, o injector.Options) (_ *eventSource, err error) {
	clock := newWallClock()
	e := &eventSource{n: n, watched: watched, done: make(chan error, 1)}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	if e.kernel, err = newMap("steps", n); err != nil {
		return nil, err
	}
	if e.capture, err = openCapture(clock); err != nil {
		return nil, err
	}
	if e.table, err = newTable(table.Owner{Node: "steps", Incarnation: 1}); err != nil {
		return nil, err
	}
	o.Capacity = n
	if e.injector, err = injector.Open(e.kernel, e.capture.Maps(), o); err != nil {
		return nil, err
	}
	if watched {
		if err := watch(e.capture, e.kernel, e.table); err != nil {
			return nil, err
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	e.stop = stop
	go func() { e.done <- e.capture.Run(ctx) }()
	return e, nil
}

func (e *eventSource) close() error {
	if e == nil {
		return nil
	}
	var errs []error
	if e.stop != nil {
		e.stop()
		errs = append(errs, <-e.done)
	}
	if e.injector != nil {
		errs = append(errs, e.injector.Close())
	}
	if e.capture != nil {
		errs = append(errs, e.capture.Close())
	}
	if e.kernel != nil {
		errs = append(errs, e.kernel.Close())
	}
	return errors.Join(errs...)
}

// run makes the changes that the injector holds, in parts that fit into the ring. It returns the
// cost of making them and the cost of draining them. The table is locked while a part is made, so
// that the capture waits: the two halves never run at the same time.
func (e *eventSource) run() (kernel, drain Sample, err error) {
	for at := 0; at < e.n; at += ringRoom {
		part := min(ringRoom, e.n-at)
		var cost Sample
		e.table.View(func(*table.Tx) {
			cost, err = measure(e.n, func() error {
				_, err := e.injector.RunPart(at, part)
				return err
			})
		})
		if err != nil {
			return kernel, drain, err
		}
		kernel.add(cost)
		if !e.watched {
			continue
		}
		e.events += uint64(part)
		if cost, err = measure(e.n, e.await); err != nil {
			return kernel, drain, err
		}
		drain.add(cost)
	}
	if s := e.capture.Stats(); s.Lost() > 0 || s.SequenceGaps > 0 {
		return kernel, drain, fmt.Errorf("measure events: %d were lost", s.Lost()+s.SequenceGaps)
	}
	return kernel, drain, nil
}

// await waits until the table has all events.
func (e *eventSource) await() error {
	for began := time.Now(); ; time.Sleep(100 * time.Microsecond) {
		s := e.table.Stats()
		switch {
		case s.LocalAccepted+s.LocalStale+s.LocalUnchanged >= e.events:
			return nil
		case time.Since(began) > 20*time.Second:
			return fmt.Errorf("drain the ring: %d of %d events came", s.LocalAccepted, e.events)
		}
	}
}
