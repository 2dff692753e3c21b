package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"mapsync/internal/feed"
	"mapsync/syncd/kmap"
)

// joinTraffic is how many changes a second go on at the first node while another joins.
const joinTraffic = 5000

// joinBound is how many times as long as a bare copy a join may take.
const joinBound = 4

// Join is how long it took a node with an empty map to become ready beside one whose map
// is full.
type Join struct {
	Traffic int `json:"changes_per_second"` // that went on meanwhile
	// Seconds is from the start of the process until it said that it was ready.
	Seconds float64 `json:"seconds"`
	// BareSeconds is what bpf(2) takes to copy the same entries into another map of this
	// machine, by batches from one thread.
	BareSeconds float64 `json:"bare_seconds"`
	Ratio       float64 `json:"ratio"`
	// JoinerCPU and TellerCPU are processor seconds of the two daemons.
	JoinerCPU float64 `json:"joiner_cpu_seconds"`
	TellerCPU float64 `json:"teller_cpu_seconds"`
}

// joins has a node join one that holds n entries, again and again, and returns the join
// in the middle by its ratio. Each has its own bare copy to compare with.
func joins(ctx context.Context, n, rounds int) (_ *Join, err error) {
	p, err := startFirst(ctx, n, n)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	stop, err := p.trafficAt(ctx, joinTraffic)
	if err != nil {
		return nil, err
	}
	all := make([]Join, rounds)
	for i := range all {
		if all[i], err = p.join(ctx); err != nil {
			return nil, errors.Join(err, stop())
		}
		progress("join %d of %d: %.2f s, a bare copy %.2f s", i+1, rounds, all[i].Seconds, all[i].BareSeconds)
	}
	slices.SortFunc(all, func(a, b Join) int { return int(1e6 * (a.Ratio - b.Ratio)) })
	return &all[rounds/2], errors.Join(stop(), p.a.flawless(ctx))
}

// trafficAt has the first node's load balancer make so many changes a second until stop.
func (p *nodes) trafficAt(ctx context.Context, rate int) (stop func() error, err error) {
	f, err := feed.Open(p.mapA, p.a.Shared, feed.Options{Capacity: mostAtOnce})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		d := driver{traffic: &events{n: p.n, rate: rate, stride: strideOf(p.n), feed: f}, began: time.Now()}
		err := d.run(ctx, time.Hour)
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		done <- err
	}()
	return func() error {
		cancel()
		return errors.Join(<-done, f.Close())
	}, nil
}

// join has the second node join with an empty map, and leave.
func (p *nodes) join(ctx context.Context) (j Join, err error) {
	j.Traffic = joinTraffic
	if j.BareSeconds, err = p.bareCopy(); err != nil {
		return j, err
	}
	m, err := newTypedMap("second", p.n)
	if err != nil {
		return j, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	before, err := p.a.cpu()
	if err != nil {
		return j, err
	}
	b, err := startSyncd(2, m, nil)
	if err != nil {
		return j, err
	}
	defer func() { err = errors.Join(err, b.close(), p.alone(ctx)) }()
	if err := b.awaitReady(ctx, 0); err != nil {
		return j, err
	}
	j.Seconds = time.Since(b.began).Seconds()
	j.Ratio = j.Seconds / j.BareSeconds
	if err := holdsAll(ctx, m, p.n); err != nil {
		return j, fmt.Errorf("a node that says that it is ready: %w", err)
	}
	joiner, err := b.cpu()
	if err != nil {
		return j, err
	}
	teller, err := p.a.cpu()
	j.JoinerCPU, j.TellerCPU = joiner.Seconds(), (teller - before).Seconds()
	return j, err
}

// alone waits until the first node has seen the other leave.
func (p *nodes) alone(ctx context.Context) error {
	const patience = 30 * time.Second
	for began := time.Now(); time.Since(began) < patience; time.Sleep(10 * time.Millisecond) {
		if s, err := p.a.Client.Status(ctx); err != nil {
			return err
		} else if len(s.Peers) == 0 {
			return nil
		}
	}
	return fmt.Errorf("wait for the second node to leave: not within %s", patience)
}

// bareCopy copies the first map into another by bpf(2) batches, and returns the seconds
// that it took.
func (p *nodes) bareCopy() (seconds float64, err error) {
	m, err := newTypedMap("copy", p.n)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	var cursor ebpf.MapBatchCursor
	keys, values := make([]key, batchEntries), make([]value, batchEntries)
	began := time.Now()
	for end := false; !end; {
		n, err := p.mapA.BatchLookup(&cursor, keys, values, nil)
		if end = errors.Is(err, ebpf.ErrKeyNotExist); err != nil && !end {
			return 0, fmt.Errorf("read a batch: %w", err)
		}
		if n == 0 {
			continue
		}
		if _, err := m.BatchUpdate(keys[:n], values[:n], nil); err != nil {
			return 0, fmt.Errorf("write a batch: %w", err)
		}
	}
	seconds = time.Since(began).Seconds()
	return seconds, holdsAll(context.Background(), m, p.n)
}

// holdsAll fails unless the map holds each of n entries as it was or as traffic has changed it since.
func holdsAll(ctx context.Context, m *ebpf.Map, n int) error {
	access, err := kmap.Open(m, kmap.Options{})
	if err != nil {
		return err
	}
	return errors.Join(verifyBut(ctx, access, n, 0, func(got, want *value) { setNumber(want, numberIn(got)) }), access.Close())
}
