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

// maxIdle bounds the entries that one walk of the collector remembers; what
// is over waits for the next walk.
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
	Forwarded uint64 // packets rewritten and sent on
	New       uint64 // flows created
	Closed    uint64 // flows that the data plane deleted
	NoEntry   uint64 // segments to the service of no known flow
	Full      uint64 // SYNs dropped because the map was full
	NoBackend uint64 // SYNs dropped for want of a backend
	Idle      uint64 // entries that the collector deleted
}

// Collect walks the map every CollectEvery and deletes idle entries, by bpf(2)
// and one by one, until ctx ends; it then returns nil. It is the only reader
// and writer in user space. A walk that fails ends it with an error.
func (b *Balancer) Collect(ctx context.Context) error {
	tick := time.NewTicker(b.cfg.CollectEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		deleted, err := b.sweep()
		if err != nil {
			return fmt.Errorf("collect idle entries: %w", err)
		}
		b.log.Debug("idle entries collected", "deleted", deleted)
	}
}

// sweep is one walk. Deleting waits until the walk is over, as a deleted key
// would send it back to the start.
func (b *Balancer) sweep() (int, error) {
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
		var other V // one that is gone is idle since ever
		err := m.Lookup(reverseKey(&key, &entry.Nat), &other)
		if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil, fmt.Errorf("look up other direction: %w", err)
		}
		if entry = entryOf(&other); entry.isIdle(now) {
			idle = append(idle, key)
		}
	}
	// A walk that deletions disturbed is not a failure: the next one goes on.
	if err := entries.Err(); err != nil && !errors.Is(err, ebpf.ErrIterationAborted) {
		return nil, fmt.Errorf("walk entries: %w", err)
	}
	return idle, nil
}

func (e *Entry) isIdle(now uint64) bool {
	return now > e.LastUsed && now-e.LastUsed > e.IdleTimeout*uint64(time.Second)
}

// reverseKey is reverse_key of lb.bpf.c.
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

// bootTime returns what bpf_ktime_get_ns returns: CLOCK_MONOTONIC.
func bootTime() (uint64, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, fmt.Errorf("read clock: %w", err)
	}
	return uint64(ts.Nano()), nil
}

// Stats reads the counters, also while Collect runs.
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
