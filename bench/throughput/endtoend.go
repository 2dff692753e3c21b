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
	// injectorBatch is the number of changes in one run of the injector.
	injectorBatch = 2048
	// recordBytes is the size of an event in the ring, in bytes: the ring's header, the event's
	// header, key and value.
	recordBytes = 8 + 24 + keySize + valueSize
	// ringRoom is the highest number of events that wait in the ring. It is three quarters of the
	// ring, as on a machine whose capture keeps up with the load balancer.
	ringRoom = capture.DefaultRingBytes / recordBytes * 3 / 4
)

// Pass is the replication of one generation of all entries from the first map to the second.
type Pass struct {
	DeltasPerSecond float64 `json:"deltas_per_second"`
	Seconds         float64 `json:"seconds"`
	// CPUSeconds is the total processor time. InjectorCPUSeconds is the part of it that writes the
	// map and makes the events: the load balancer's part.
	CPUSeconds         float64 `json:"cpu_seconds"`
	InjectorCPUSeconds float64 `json:"injector_cpu_seconds"`
	// Allocations are those of the whole process, per delta.
	Allocations float64 `json:"allocations_per_delta"`
	// Bursts is the number of batches written into the second map.
	Bursts uint64 `json:"bursts"`
	// Rereads is the number of keys that the first node reread.
	Rereads uint64 `json:"rereads"`
}

// EndToEnd is the result of one run of a pair.
type EndToEnd struct {
	New     Pass `json:"new"`
	Updated Pass `json:"updated"`
	// HeapPerEntry is the Go memory of one node with all its parts, in bytes per entry.
	HeapPerEntry float64 `json:"heap_per_entry"`
	// TablePerEntry is the part of HeapPerEntry that the table accounts for, in bytes.
	TablePerEntry float64 `json:"table_per_entry"`
}

// endToEnd replicates n new entries and then an update of each from one kernel map to the other. It
// verifies each time that the second map holds them all. If profile is not empty, it writes a CPU
// profile of each pass to a file with this prefix.
func endToEnd(ctx context.Context, n int, secure bool, profile string) (result EndToEnd, err error) {
	baseline := heap()
	p, err := openPair(ctx, n, secure)
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

// pass replicates one generation. It measures the time from the first write to the first map until
// the second map holds the last entry.
func (p *pair) pass(generation int, name string) (Pass, error) {
	load(p.injector, p.n, generation)
	bursts, rereads := p.b.syncer.Stats().Bursts, p.a.syncer.Stats().Rereads
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
	if err := p.checkComplete(generation); err != nil {
		return Pass{}, err
	}
	return Pass{
		DeltasPerSecond: 1e9 / cost.Nanoseconds, Seconds: cost.Nanoseconds * float64(p.n) / 1e9,
		CPUSeconds: cpu.Seconds(), InjectorCPUSeconds: fed.Seconds(), Allocations: cost.Allocations,
		Bursts:  p.b.syncer.Stats().Bursts - bursts,
		Rereads: p.a.syncer.Stats().Rereads - rereads,
	}, nil
}

// carry writes the first map and waits until the second map holds all entries. It returns the
// processor time of the writes.
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

// startProfile starts a CPU profile unless prefix is empty.
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

// write makes the changes that the injector holds, as fast as the ring accepts them. It returns the
// processor time of the writes.
func (p *pair) write() (cpu time.Duration, err error) {
	runtime.LockOSThread() // so that the thread's processor time covers only this function
	defer runtime.UnlockOSThread()
	cpu = cpuTime(unix.RUSAGE_THREAD)
	start := p.capture.Stats().Events
	for at := 0; at < p.n && p.ctx.Err() == nil; {
		if waiting := at - int(p.capture.Stats().Events-start); waiting > ringRoom-injectorBatch {
			time.Sleep(100 * time.Microsecond)
			continue
		}
		part := min(injectorBatch, p.n-at)
		failed, err := p.injector.RunPart(at, part)
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

// checkComplete fails if an event was lost or if the second map differs from the expected entries.
func (p *pair) checkComplete(generation int) error {
	if s := p.capture.Stats(); s.Lost() > 0 || s.SequenceGaps > 0 || s.Malformed > 0 {
		return fmt.Errorf("check for losses: %d events lost, %d missing, %d malformed", s.Lost(), s.SequenceGaps, s.Malformed)
	}
	return verify(p.ctx, p.b.access, p.n, generation)
}

// watch makes the capture send the changes of a map to a table.
func watch(c *capture.Capture, m *ebpf.Map, t *table.Table) error {
	id, err := process.MapID(m)
	if err != nil {
		return err
	}
	return c.Watch(id, t)
}
