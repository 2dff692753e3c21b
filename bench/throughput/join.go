package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cilium/ebpf"

	"mapsync/internal/injector"
	"mapsync/internal/tool"
	"mapsync/syncd/kmap"
)

// joinChangeRate is the number of changes per second at the first node while another node joins.
const joinChangeRate = 5000

// joinBound is the limit of the duration of a join, as a multiple of a bare copy.
const joinBound = 4

// Join is the time for a node with an empty map to become ready beside a node whose map is full.
type Join struct {
	Traffic int `json:"changes_per_second"` // at the first node during the join
	// Seconds is the time from the start of the process until it reported ready.
	Seconds float64 `json:"seconds"`
	// BareSeconds is the time for bpf(2) to copy the same entries into another map of this machine,
	// in batches from one thread.
	BareSeconds float64 `json:"bare_seconds"`
	Ratio       float64 `json:"ratio"`
	// JoinerCPU and SenderCPU are the processor times of the two daemons, in seconds.
	JoinerCPU float64 `json:"joiner_cpu_seconds"`
	SenderCPU float64 `json:"sender_cpu_seconds"`
}

// measureJoins makes a node join another one that holds n entries, several times. It returns the
// join with the median ratio. Each join has its own bare copy for comparison.
func measureJoins(ctx context.Context, n, rounds int) (_ *Join, err error) {
	p, err := startFirst(ctx, n, n, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	stop, err := p.trafficAt(ctx, joinChangeRate)
	if err != nil {
		return nil, err
	}
	all := make([]Join, rounds)
	for i := range all {
		if all[i], err = p.join(ctx); err != nil {
			return nil, errors.Join(err, stop())
		}
		tool.Progress("join %d of %d: %.2f s, a bare copy %.2f s", i+1, rounds, all[i].Seconds, all[i].BareSeconds)
	}
	slices.SortFunc(all, func(a, b Join) int { return int(1e6 * (a.Ratio - b.Ratio)) })
	return &all[rounds/2], errors.Join(stop(), p.a.checkNoLosses(ctx))
}

// trafficAt makes the first node's load balancer make rate changes per second until stop.
func (p *nodes) trafficAt(ctx context.Context, rate int) (stop func() error, err error) {
	f, err := injector.Open(p.mapA, p.a.Shared, injector.Options{Capacity: maxStepChanges})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		d := driver{traffic: &events{n: p.n, rate: rate, stride: strideOf(p.n), injector: f}, began: time.Now()}
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

// join makes the second node join with an empty map, and leave.
func (p *nodes) join(ctx context.Context) (j Join, err error) {
	j.Traffic = joinChangeRate
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
	defer func() { err = errors.Join(err, b.close(), p.awaitAlone(ctx)) }()
	if err := b.awaitReady(ctx, 0); err != nil {
		return j, err
	}
	j.Seconds = time.Since(b.began).Seconds()
	j.Ratio = j.Seconds / j.BareSeconds
	if err := holdsAll(ctx, m, p.n); err != nil {
		return j, fmt.Errorf("check a node that reports ready: %w", err)
	}
	joiner, err := b.cpu()
	if err != nil {
		return j, err
	}
	sender, err := p.a.cpu()
	j.JoinerCPU, j.SenderCPU = joiner.Seconds(), (sender - before).Seconds()
	return j, err
}

// awaitAlone waits until the first node has detected that the other one has left.
func (p *nodes) awaitAlone(ctx context.Context) error {
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

// bareCopy copies the first map into another by bpf(2) batches. It returns the duration in seconds.
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

// holdsAll fails unless the map holds each of n entries, unchanged or as changed by the traffic
// since.
func holdsAll(ctx context.Context, m *ebpf.Map, n int) error {
	access, err := kmap.Open(m, kmap.Options{})
	if err != nil {
		return err
	}
	return errors.Join(verifyBut(ctx, access, n, 0, func(got, want *value) { setNumber(want, numberIn(got)) }), access.Close())
}
