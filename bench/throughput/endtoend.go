package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mapsync/bench/process"
	"mapsync/syncd/capture"
	"mapsync/syncd/table"
)

const (
	// feedPart is how many changes are made in one run of the feed.
	feedPart = 2048
	// recordBytes is what an event takes in the ring: the ring's own header, the
	// event's, key and value.
	recordBytes = 8 + 24 + keySize + valueSize
	// ringRoom is how many events may wait in the ring: three quarters of it, as the
	// load balancer of a machine that keeps up would have it.
	ringRoom = capture.DefaultRingBytes / recordBytes * 3 / 4
)

// Pass is one generation of all entries on its way from the first map to the
// second.
type Pass struct {
	DeltasPerSecond float64 `json:"deltas_per_second"`
	Seconds         float64 `json:"seconds"`
	// CPUSeconds is the processor time of everything, and FeedCPUSeconds the part
	// of it in which the map was written and the events made: the load balancer's.
	CPUSeconds     float64 `json:"cpu_seconds"`
	FeedCPUSeconds float64 `json:"feed_cpu_seconds"`
	// Allocations are those of the whole process, a delta.
	Allocations float64 `json:"allocations_per_delta"`
	// Bursts is how many batches the second map was written in.
	Bursts uint64 `json:"bursts"`
	// Rechecks is how many keys the first node read again.
	Rechecks uint64 `json:"rechecks"`
}

// EndToEnd is what one run of a pair brought.
type EndToEnd struct {
	New     Pass `json:"new"`
	Updated Pass `json:"updated"`
	// HeapPerEntry is the Go memory of one node with all its parts, in bytes.
	HeapPerEntry float64 `json:"heap_per_entry"`
	// TablePerEntry is the part of it that the table accounts for.
	TablePerEntry float64 `json:"table_per_entry"`
}

// endToEnd carries n new entries and then an update of each from one kernel map to
// the other, and verifies each time that the other holds them all. With a profile's
// name it leaves a CPU profile of each.
func endToEnd(ctx context.Context, n int, profile string) (result EndToEnd, err error) {
	baseline := heap()
	p, err := openPair(ctx, n)
	if err != nil {
		return EndToEnd{}, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	p.profile = profile
	if result.New, err = p.pass(0, ".new"); err != nil {
		return EndToEnd{}, err
	}
	if result.Updated, err = p.pass(1, ".updates"); err != nil {
		return EndToEnd{}, err
	}
	result.HeapPerEntry = float64(int64(heap())-int64(baseline)) / 2 / float64(n)
	result.TablePerEntry = float64(p.b.table.Stats().MemoryBytes) / float64(n)
	return result, nil
}

// pass carries one generation. The time runs from the first write to the first map
// until the second holds the last entry.
func (p *pair) pass(generation int, name string) (Pass, error) {
	load(p.feed, p.n, generation)
	bursts, rechecks := p.b.syncer.Stats().Bursts, p.a.syncer.Stats().Rechecks
	stop, err := startProfile(p.profile, name)
	if err != nil {
		return Pass{}, err
	}
	cpu := cpuTime(unix.RUSAGE_SELF)
	var fed time.Duration
	cost, err := measure(p.n, func() (err error) {
		fed, err = p.carry(generation)
		return err
	})
	cpu = cpuTime(unix.RUSAGE_SELF) - cpu
	if err := errors.Join(err, stop()); err != nil {
		return Pass{}, err
	}
	if err := p.complete(generation); err != nil {
		return Pass{}, err
	}
	return Pass{
		DeltasPerSecond: 1e9 / cost.Nanoseconds, Seconds: cost.Nanoseconds * float64(p.n) / 1e9,
		CPUSeconds: cpu.Seconds(), FeedCPUSeconds: fed.Seconds(), Allocations: cost.Allocations,
		Bursts:   p.b.syncer.Stats().Bursts - bursts,
		Rechecks: p.a.syncer.Stats().Rechecks - rechecks,
	}, nil
}

// carry writes the first map and waits until the second has it all. It returns the
// processor time of the writing.
func (p *pair) carry(generation int) (fed time.Duration, err error) {
	done := make(chan time.Duration, 1)
	p.group.Go(func() error {
		took, err := p.write()
		done <- took
		return err
	})
	want := uint64(p.n) * uint64(generation+1)
	err = p.await(func() bool {
		s := p.b.table.Stats()
		return s.RemoteAccepted >= want && s.Dirty == 0
	})
	return <-done, err
}

// startProfile begins a CPU profile if there is a name for it.
func startProfile(prefix, name string) (stop func() error, err error) {
	if prefix == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(prefix + name)
	if err != nil {
		return nil, fmt.Errorf("create profile: %w", err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(fmt.Errorf("begin profile: %w", err), f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}

// write makes the changes that the feed holds, as fast as the ring takes them, and
// returns the processor time that this took.
func (p *pair) write() (cpu time.Duration, err error) {
	runtime.LockOSThread() // so that the thread's processor time is ours
	defer runtime.UnlockOSThread()
	cpu = cpuTime(unix.RUSAGE_THREAD)
	start := p.capture.Stats().Events
	for at := 0; at < p.n && p.ctx.Err() == nil; {
		if waiting := at - int(p.capture.Stats().Events-start); waiting > ringRoom-feedPart {
			time.Sleep(100 * time.Microsecond)
			continue
		}
		part := min(feedPart, p.n-at)
		failed, err := p.feed.RunPart(at, part)
		if err != nil {
			return 0, err
		}
		if failed > 0 {
			return 0, fmt.Errorf("write the first map: it refused %d of %d entries", failed, part)
		}
		at += part
	}
	return cpuTime(unix.RUSAGE_THREAD) - cpu, nil
}

// complete fails if an event was lost or if the second map is not as it should be.
func (p *pair) complete(generation int) error {
	if s := p.capture.Stats(); s.Lost() > 0 || s.SequenceGaps > 0 || s.Malformed > 0 {
		return fmt.Errorf("check for losses: %d events lost, %d missing, %d malformed", s.Lost(), s.SequenceGaps, s.Malformed)
	}
	return verify(p.ctx, p.b.access, p.n, generation)
}

// watch has the capture send the changes of a map to a table.
func watch(c *capture.Capture, m *ebpf.Map, t *table.Table) error {
	id, err := process.MapID(m)
	if err != nil {
		return err
	}
	return c.Watch(id, t)
}
