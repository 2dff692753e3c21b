package lb

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mapsync/bench/lb/bpf"
)

// maxIdle limits the idle entries that one scan of the collector collects. The next scan collects
// the remaining ones.
const maxIdle = 16384

// States and flags of lb.h that user space reads.
const (
	StateSynSent     = 1
	StateSynRecv     = 2
	StateEstablished = 3
	StateClosing     = 4

	natSrc = 1
	natDst = 2
)

// Stats is a snapshot of a balancer's counters since it was loaded.
type Stats struct {
	Forwarded uint64 // packets rewritten and forwarded
	New       uint64 // flows created
	Closed    uint64 // flows that the data plane deleted
	NoEntry   uint64 // segments to the service without a flow entry
	Full      uint64 // SYNs dropped because the map was full
	NoBackend uint64 // SYNs dropped because no backend was available
	Idle      uint64 // entries that the collector deleted
}

// Collect scans the map every CollectEvery and deletes idle entries one by one with bpf(2), until
// ctx ends; then it returns nil. It is the only reader and writer of the map in user space. If a
// scan fails, Collect returns the error.
func (b *Balancer) Collect(ctx context.Context) error {
	tick := time.NewTicker(b.cfg.CollectEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		deleted, err := b.collectOnce()
		if err != nil {
			return fmt.Errorf("collect idle entries: %w", err)
		}
		b.log.Debug("idle entries collected", "deleted", deleted)
	}
}

// collectOnce makes one scan. It deletes after the end of the iteration, because a deleted key
// would restart the iteration.
func (b *Balancer) collectOnce() (int, error) {
	now, err := bootTime()
	if err != nil {
		return 0, err
	}
	idle, err := b.release.findIdle(b.objs.CtMap, now)
	if err != nil {
		return 0, err
	}
	deleted := 0
	for i := range idle {
		err := b.objs.CtMap.Delete(&idle[i])
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return deleted, fmt.Errorf("delete idle entry: %w", err)
		}
		if err == nil {
			deleted++
		}
	}
	b.idle.Add(uint64(deleted))
	return deleted, nil
}

// findIdle returns the entries whose connection is idle in both directions.
func findIdle[V any](m *ebpf.Map, now uint64, entryOf func(*V) Entry) ([]bpf.LBCtKey, error) {
	var (
		idle  []bpf.LBCtKey
		key   bpf.LBCtKey
		value V
	)
	entries := m.Iterate()
	for len(idle) < maxIdle && entries.Next(&key, &value) {
		entry := entryOf(&value)
		if !entry.isIdle(now) {
			continue
		}
		var other V // a missing entry counts as idle
		err := m.Lookup(reverseKey(&key, &entry.Nat), &other)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil, fmt.Errorf("look up other direction: %w", err)
		}
		if entry = entryOf(&other); entry.isIdle(now) {
			idle = append(idle, key)
		}
	}
	// An iteration that deletes have aborted is not a failure: the next scan continues.
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return nil, fmt.Errorf("iterate over entries: %w", err)
	}
	return idle, nil
}

func (e *Entry) isIdle(now uint64) bool {
	return now > e.LastUsed && now-e.LastUsed > e.IdleTimeout*uint64(time.Second)
}

// reverseKey corresponds to reverse_key of lb.bpf.c.
func reverseKey(k *bpf.LBCtKey, nat *bpf.LBCtNat) *bpf.LBCtKey {
	out := *k
	out.Saddr, out.Daddr, out.Sport, out.Dport = k.Daddr, k.Saddr, k.Dport, k.Sport
	if nat.Flags&natDst != 0 {
		out.Saddr, out.Sport = nat.Daddr, nat.Dport
	}
	if nat.Flags&natSrc != 0 {
		out.Daddr, out.Dport = nat.Saddr, nat.Sport
	}
	return &out
}

// bootTime returns the same clock as bpf_ktime_get_ns: CLOCK_MONOTONIC, in ns.
func bootTime() (uint64, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, fmt.Errorf("read clock: %w", err)
	}
	return uint64(ts.Nano()), nil
}

// Stats reads the counters. It may be called while Collect runs.
func (b *Balancer) Stats() (Stats, error) {
	out := Stats{Idle: b.idle.Load()}
	for i, field := range []*uint64{
		&out.Forwarded, &out.New, &out.Closed, &out.NoEntry, &out.Full, &out.NoBackend,
	} {
		var perCPU []uint64
		if err := b.objs.Stats.Lookup(uint32(i), &perCPU); err != nil {
			return Stats{}, fmt.Errorf("read counters: %w", err)
		}
		for _, n := range perCPU {
			*field += n
		}
	}
	return out, nil
}
