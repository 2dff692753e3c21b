package main

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mapsync/internal/injector"
	"mapsync/internal/tool"
	"mapsync/syncd/capture"
	"mapsync/syncd/config"
)

// BufferRun is the fate of events that a number of threads send through one buffer.
type BufferRun struct {
	Buffer  string `json:"buffer"`  // ring or perf
	Pages   int    `json:"pages"`   // of all CPUs together
	Threads int    `json:"threads"` // that write the map at the same time
	Offered int    `json:"offered"` // events per second in total; 0: as many as the threads can send

	Events    uint64  `json:"events"`            // sent
	Lost      uint64  `json:"lost"`              // of these, because the buffer was full
	Rate      float64 `json:"events_per_second"` // sent
	ReaderCPU float64 `json:"reader_cpu_percent"`
}

// BufferCost is the cost of an event, and its latency to the peer's kernel map.
type BufferCost struct {
	Buffer      string  `json:"buffer"`
	Nanoseconds float64 `json:"ns_per_event"` // processor time of the thread that writes, without the write itself
	Latency     Latency `json:"latency"`
}

// Overflow is the time in which a peer's map becomes equal again after a buffer lost events.
type Overflow struct {
	Buffer        string  `json:"buffer"`
	Events        uint64  `json:"events"`
	Lost          uint64  `json:"lost"`
	Divergent     int     `json:"divergent"`       // entries that differed when the last event was sent
	DivergentLate int     `json:"divergent_after"` // entries that differed after overflowLimit
	Seconds       float64 `json:"seconds"`         // from the last event until no entry differed
}

// Buffers are the measurements of both buffers.
type Buffers struct {
	Runs      []BufferRun  `json:"runs"`
	Costs     []BufferCost `json:"costs"`
	Overflows []Overflow   `json:"overflows"`
}

const (
	// pacedRate is the event rate of a load balancer with 25,000 connections per second: four events each.
	pacedRate = 100_000
	// injectedEntries are the entries that the threads write, and injectedPart the writes of one run of the program.
	injectedEntries, injectedPart = 8192, 64
	// overflowLimit is the time after which no entry may differ.
	overflowLimit = 2 * time.Second
)

// bufferThreads are the numbers of threads of the published measurement, and bufferPages its sizes, as powers of two.
var (
	bufferThreads = []int{1, 10, 30, 50}
	bufferPages   = []int{4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
)

var bothBuffers = []capture.Buffer{capture.BufferRing, capture.BufferPerf}

// bufferSetting changes the settings to a buffer with this number of pages in total. A perf buffer has a part for each
// CPU, and the setting is the pages of one part.
func bufferSetting(buffer capture.Buffer, pages int) (func(*config.Config), error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, err
	}
	size := pages * os.Getpagesize()
	if buffer == capture.BufferPerf {
		size = max(1, pages/cpus)
	}
	return func(c *config.Config) { c.Buffer, c.BufferSize = string(buffer), size }, nil
}

// defaultPower is the power of two of the default size of a ring buffer, in pages of 4 KiB.
var defaultPower = bits.TrailingZeros(capture.DefaultRingBytes >> 12)

// measureBuffers measures each buffer at each size, for the duration o.buffers a run, and longer until the events have filled
// the buffer o.fills times. With o.quick it measures few sizes, up to the default, and the cost of an event at a low rate.
func measureBuffers(ctx context.Context, o options) (*Buffers, error) {
	b := new(Buffers)
	pages, threads := bufferPages, bufferThreads
	if o.quick {
		pages, threads = []int{4, 8, defaultPower}, []int{1, 50}
	}
	for _, power := range pages {
		for _, buffer := range bothBuffers {
			tool.Progress("buffers: %s, 2^%d pages", buffer, power)
			runs, err := runBuffer(ctx, buffer, 1<<power, threads, o)
			if err != nil {
				return nil, fmt.Errorf("measure %s of 2^%d pages: %w", buffer, power, err)
			}
			b.Runs = append(b.Runs, runs...)
		}
	}
	var err error
	rate := pacedRate
	if o.quick {
		rate /= 100 // on any machine: none may lose an event here
	}
	if b.Costs, err = measureBufferCosts(ctx, rate, 10*o.buffers); err != nil {
		return nil, err
	}
	for _, buffer := range bothBuffers {
		tool.Progress("buffers: overflow of %s", buffer)
		overflow, err := measureOverflow(ctx, buffer)
		if err != nil {
			return nil, fmt.Errorf("overflow %s: %w", buffer, err)
		}
		b.Overflows = append(b.Overflows, overflow)
	}
	return b, nil
}

// runBuffer measures one buffer: paced and as fast as possible, with each number of threads.
func runBuffer(ctx context.Context, buffer capture.Buffer, pages int, threads []int, o options) (runs []BufferRun, err error) {
	f, err := openInjectorLoad(ctx, buffer, pages)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	for _, n := range threads {
		for _, offered := range []int{pacedRate, 0} {
			r, err := f.measure(ctx, n, offered, o.buffers, leastEvents(pages, o.fills))
			if err != nil {
				return nil, err
			}
			r.Buffer, r.Pages = string(buffer), pages
			runs = append(runs, r)
		}
	}
	return runs, nil
}

// eventBytes are the bytes that an event occupies in a ring buffer: the event's header, the entry, and the header of the ring's
// record. A perf buffer takes slightly more.
const eventBytes = 24 + keySize + valueSize + 8

// leastEvents returns the number of events that fill a buffer the given number of times. The first fill needs no reader, so that a
// run of fewer events says nothing about losses.
func leastEvents(pages, fills int) uint64 {
	bytes := uint64(fills) * uint64(pages) * uint64(os.Getpagesize())
	return (bytes + eventBytes - 1) / eventBytes
}

// injectorLoad is a daemon with one map, and an injector that writes the map from several threads.
type injectorLoad struct {
	m        *ebpf.Map
	syncd    *syncd
	injector *injector.Injector
}

func openInjectorLoad(ctx context.Context, buffer capture.Buffer, pages int) (_ *injectorLoad, err error) {
	f := new(injectorLoad)
	defer func() {
		if err != nil {
			err = errors.Join(err, f.close())
		}
	}()
	setting, err := bufferSetting(buffer, pages)
	if err != nil {
		return nil, err
	}
	if f.m, err = newTypedMap("injected", injectedEntries); err != nil {
		return nil, err
	}
	if f.syncd, err = startSyncd(1, f.m, setting); err != nil {
		return nil, err
	}
	f.injector, err = injector.Open(f.m, f.syncd.Shared, injector.Options{Capacity: injectedEntries, Perf: buffer == capture.BufferPerf})
	if err != nil {
		return nil, err
	}
	load(f.injector, injectedEntries, 0)
	return f, f.syncd.awaitReady(ctx, 0)
}

func (f *injectorLoad) close() error {
	var errs []error
	if f.injector != nil {
		errs = append(errs, f.injector.Close())
	}
	errs = append(errs, f.syncd.close())
	if f.m != nil {
		errs = append(errs, f.m.Close())
	}
	return errors.Join(errs...)
}

// measure sends at least a number of events from n threads, for at least the duration limit, and waits until the daemon has read
// those that were not lost.
func (f *injectorLoad) measure(ctx context.Context, n, offered int, limit time.Duration, least uint64) (r BufferRun, err error) {
	before, err := f.syncd.Client.Status(ctx)
	if err != nil {
		return r, err
	}
	used, err := f.syncd.cpu()
	if err != nil {
		return r, err
	}
	began := time.Now()
	events, _, err := write(f.injector, n, offered, limit, least)
	if err != nil {
		return r, err
	}
	took := time.Since(began)
	for late := time.Now().Add(time.Minute); ; sleep(time.Millisecond) {
		s, err := f.syncd.Client.Status(ctx)
		if err != nil {
			return r, err
		}
		read, lost := s.Capture.Events-before.Capture.Events, s.Capture.LostBuffer-before.Capture.LostBuffer
		if read+lost == events {
			r.Lost = lost
			break
		}
		if time.Now().After(late) {
			return r, fmt.Errorf("wait for %d events: %d were read, %d lost", events, read, lost)
		}
	}
	now, err := f.syncd.cpu()
	r.Threads, r.Offered, r.Events = n, offered, events
	r.Rate = float64(events) / took.Seconds()
	r.ReaderCPU = 100 * float64(now-used) / float64(took)
	return r, err
}

// write makes at least a number of writes from n threads, for at least the duration limit, offered a second in total, or as many
// as possible. It returns their number and the processor time of the threads.
func write(i *injector.Injector, n, offered int, limit time.Duration, least uint64) (events uint64, cpu time.Duration, err error) {
	var mu sync.Mutex
	var group sync.WaitGroup
	share := (least + uint64(n) - 1) / uint64(n)
	for number := range n {
		group.Go(func() {
			made, used, e := writeFrom(i, number, float64(offered)/float64(n), limit, share)
			mu.Lock()
			defer mu.Unlock()
			events, cpu, err = events+made, cpu+used, errors.Join(err, e)
		})
	}
	group.Wait()
	return events, cpu, err
}

// writeFrom makes the writes of one thread.
func writeFrom(i *injector.Injector, number int, rate float64, limit time.Duration, least uint64) (made uint64, cpu time.Duration, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := cpuTime(unix.RUSAGE_THREAD)
	at := number * injectedPart * 7 % injectedEntries
	for began := time.Now(); ; at = (at + injectedPart) % injectedEntries {
		elapsed := time.Since(began)
		if elapsed >= limit && made >= least {
			break
		}
		if due := rate * elapsed.Seconds(); rate > 0 && float64(made) > due {
			sleep(time.Duration(float64(time.Second) * (float64(made) - due) / rate))
			continue
		}
		failed, err := i.RunPart(at, injectedPart)
		if err := errors.Join(err, refused(failed, injectedPart)); err != nil {
			return made, 0, err
		}
		made += injectedPart
	}
	return made, cpuTime(unix.RUSAGE_THREAD) - used, nil
}

// measureBufferCosts measures the cost of an event of each buffer at this rate, and its latency.
func measureBufferCosts(ctx context.Context, rate int, limit time.Duration) (costs []BufferCost, err error) {
	for _, buffer := range bothBuffers {
		tool.Progress("buffers: cost and latency of an event of %s", buffer)
		c := BufferCost{Buffer: string(buffer)}
		c.Nanoseconds, err = retryIfFull(func() (float64, error) { return bufferCost(ctx, buffer, rate) })
		if err != nil {
			return nil, fmt.Errorf("measure an event of %s: %w", buffer, err)
		}
		c.Latency, err = retryIfFull(func() (Latency, error) { return bufferLatency(ctx, buffer, rate, limit) })
		if err != nil {
			return nil, fmt.Errorf("measure the latency of %s: %w", buffer, err)
		}
		costs = append(costs, c)
	}
	return costs, nil
}

// errFull means that a measurement lost events because the buffer was full.
var errFull = errors.New("the buffer was full")

// fullTries is the number of measurements of which one must lose no event.
const fullTries = 3

// retryIfFull repeats a measurement that failed with errFull: a reader that waits for a processor loses events correctly.
func retryIfFull[T any](measure func() (T, error)) (result T, err error) {
	for range fullTries {
		if result, err = measure(); !errors.Is(err, errFull) {
			return result, err
		}
		tool.Progress("  %v", err)
	}
	return result, fmt.Errorf("each of %d measurements lost events: %w", fullTries, err)
}

// checkNotFull fails if events were lost, with errFull if the buffer was full.
func checkNotFull(ctx context.Context, s *syncd) error {
	status, err := s.Client.Status(ctx)
	if err != nil {
		return err
	}
	if lost := status.Capture.LostBuffer; lost > 0 {
		return fmt.Errorf("%w: %d events lost", errFull, lost)
	}
	return s.checkNoLosses(ctx)
}

// costPages is the size of a buffer that loses no event of one generation of entries.
const costPages = 1 << 12

// bufferCost returns the processor time of an event: that of writes with events, less that of writes without.
func bufferCost(ctx context.Context, buffer capture.Buffer, rate int) (ns float64, err error) {
	f, err := openInjectorLoad(ctx, buffer, costPages)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.close()) }()
	silent, err := injector.Open(f.m, f.syncd.Shared,
		injector.Options{Capacity: injectedEntries, Perf: buffer == capture.BufferPerf, SkipEvent: true})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, silent.Close()) }()
	load(silent, injectedEntries, 0)
	trial := func(i *injector.Injector) func() (Sample, error) {
		return func() (Sample, error) {
			events, cpu, err := write(i, 1, rate, costTime, 0)
			return Sample{Nanoseconds: float64(cpu) / float64(max(1, events))}, err
		}
	}
	medians, err := interleave(costRounds, []func() (Sample, error){trial(f.injector), trial(silent)})
	if err != nil {
		return 0, err
	}
	return medians[0].Nanoseconds - medians[1].Nanoseconds, checkNotFull(ctx, f.syncd)
}

// The cost is the median of this number of rounds of this length.
const (
	costRounds = 7
	costTime   = 200 * time.Millisecond
)

// bufferLatency returns the latency of changes that hooks report through the buffer, at its default size.
func bufferLatency(ctx context.Context, buffer capture.Buffer, rate int, limit time.Duration) (_ Latency, err error) {
	setting, err := bufferSetting(buffer, capture.DefaultRingBytes/os.Getpagesize())
	if err != nil {
		return Latency{}, err
	}
	p, err := startNodes(ctx, injectedEntries, injectedEntries, setting)
	if err != nil {
		return Latency{}, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	kind := latencyKind{"changes that hooks report", 20, eventPollEvery, openEventsBy(injector.Options{Perf: buffer == capture.BufferPerf}, rate)}
	l, err := p.latency(ctx, kind, limit)
	return l, errors.Join(err, checkNotFull(ctx, p.a))
}
