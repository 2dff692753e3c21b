package main

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/cilium/ebpf"

	lbbpf "mapsync/bench/lb/bpf"
	"mapsync/internal/dataplane"
	"mapsync/internal/injector"
	"mapsync/internal/tool"
	"mapsync/syncd/capture"
	"mapsync/syncd/table"
)

// The load of the first node's load balancer while latency is measured.
const (
	eventRate = 100_000 // changes per second that the hooks' code reports
	flowRate  = 10_000  // new entries per second, each of which changes in place once
	callRate  = 10_000  // entries per second that the control plane writes by bpf(2)
	// maxHandshake is the longest time from the creation of an entry to its change in place. It is
	// as long as a handshake around the world.
	maxHandshake = 200 * time.Millisecond

	// The poller looks up one change in eventSample at the peer, and one change in place in
	// flowSample, at these intervals. The interval is the resolution. A change is detected up to an
	// interval and a round of lookups (about 1 µs each) after its arrival, never before. The
	// lookups take a few percent of a core from the two daemons.
	eventSample, eventPollEvery = 50, 250 * time.Microsecond
	flowSample, flowPollEvery   = 25, time.Millisecond
	callSample                  = 5
)

// Latency is the time from the write to the first node's map until the kernel map of its peer held
// the change, in milliseconds.
type Latency struct {
	Name    string  `json:"name"`
	Rate    float64 `json:"per_second"` // measured rate
	Samples int64   `json:"samples"`
	P50     float64 `json:"p50_ms"`
	P99     float64 `json:"p99_ms"`
	P999    float64 `json:"p999_ms"`
	Max     float64 `json:"max_ms"`
	Bound   float64 `json:"p99_bound_ms"`
	// SenderCPU and ReceiverCPU are the processor use of the two daemons, in percent of one core.
	SenderCPU   float64 `json:"sender_cpu_percent"`
	ReceiverCPU float64 `json:"receiver_cpu_percent"`
}

// latencyKind is a kind of change.
type latencyKind struct {
	name      string
	bound     float64       // of p99, ms
	pollEvery time.Duration // interval of the lookups
	open      func(*nodes, *arrivalPoller) (traffic, error)
}

// latencyKinds returns the kinds of changes that are measured with an attach method.
func latencyKinds(attach capture.Attach) []latencyKind {
	if attach == capture.AttachNone {
		return []latencyKind{
			{"changes that hooks report", 20, eventPollEvery, openEvents},
			{"changes in place of new entries", 1000, flowPollEvery, openFlows},
		}
	}
	return []latencyKind{{"writes by bpf(2), attach " + string(attach), 20, eventPollEvery, openCalls}}
}

// callMethods returns the attach methods that detect the writes of a control plane. System calls are hooked only if
// nothing else is possible.
func callMethods() (methods []capture.Attach) {
	for _, offer := range capture.Probe(capture.AttachFexit, capture.AttachKprobe) {
		if offer.Err == nil {
			methods = append(methods, offer.Attach)
		}
	}
	if len(methods) == 0 {
		methods = append(methods, capture.AttachSyscall)
	}
	return methods
}

// newHistogram returns a histogram of nanoseconds, up to one minute, with three significant digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, int64(time.Minute), 3)
}

func milliseconds(ns int64) float64 { return float64(ns) / 1e6 }

func latencyOf(name string, h *hdrhistogram.Histogram) Latency {
	return Latency{
		Name: name, Samples: h.TotalCount(),
		P50: milliseconds(h.ValueAtQuantile(50)), P99: milliseconds(h.ValueAtQuantile(99)),
		P999: milliseconds(h.ValueAtQuantile(99.9)), Max: milliseconds(h.Max()),
	}
}

// measureCalls measures the writes by bpf(2) with each of callMethods.
func measureCalls(ctx context.Context, n int, limit time.Duration) (all []Latency, err error) {
	for _, attach := range callMethods() {
		some, err := measureLatencies(ctx, attach, n, limit)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// measureLatencies measures the kinds of changes of an attach method on two whole daemons that hold n entries, each
// kind for the duration limit.
func measureLatencies(ctx context.Context, attach capture.Attach, n int, limit time.Duration) (all []Latency, err error) {
	room := n + int(flowRate*(2*limit).Seconds())
	p, err := startNodes(ctx, n, room, attachBy(attach))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	for _, kind := range latencyKinds(attach) {
		tool.Progress("latency: %s", kind.name)
		l, err := p.latency(ctx, kind, limit)
		if err != nil {
			return nil, fmt.Errorf("measure latency of %s: %w", kind.name, err)
		}
		tool.Progress("  p50 %.2f ms, p99 %.2f ms, p99.9 %.2f ms, max %.2f ms", l.P50, l.P99, l.P999, l.Max)
		all = append(all, l)
	}
	return all, errors.Join(p.a.checkNoLosses(ctx), p.b.checkNoLosses(ctx))
}

// traffic writes the first node's map.
type traffic interface {
	// step makes the changes that are due at the elapsed time. done is the number of changes made
	// before. It returns the number of changes that it made.
	step(done int, elapsed time.Duration) (made int, err error)
	close() error
}

// latency runs a load for the duration limit and returns the latency of its changes.
func (p *nodes) latency(ctx context.Context, kind latencyKind, limit time.Duration) (_ Latency, err error) {
	arrivals := newArrivalPoller(p.mapB, kind.pollEvery)
	l, err := kind.open(p, arrivals)
	if err != nil {
		return Latency{}, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	arrivals.start()
	defer func() { err = errors.Join(err, arrivals.close()) }()
	d := driver{traffic: l, began: time.Now()}
	err = d.run(ctx, limit/10) // the warm-up
	waited := time.Now()
	if err := errors.Join(err, arrivals.awaitAll()); err != nil {
		return Latency{}, err
	}
	d.began = d.began.Add(time.Since(waited)) // changes were not due meanwhile
	arrivals.reset()
	before, began := d.done, time.Now()
	var rate float64
	cpuA, cpuB, err := p.cpuShares(func() error {
		err := d.run(ctx, limit)
		rate = float64(d.done-before) / time.Since(began).Seconds()
		return err
	})
	if err := errors.Join(err, arrivals.awaitAll()); err != nil {
		return Latency{}, err
	}
	result := latencyOf(kind.name, arrivals.result())
	result.Bound, result.Rate, result.SenderCPU, result.ReceiverCPU = kind.bound, rate, cpuA, cpuB
	return result, nil
}

// driver makes the changes on schedule.
type driver struct {
	traffic traffic
	began   time.Time
	done    int
}

// drivePause is the interval between two steps.
const drivePause = time.Millisecond

// run runs for the duration limit. A late step also makes the changes that became due meanwhile.
func (d *driver) run(ctx context.Context, limit time.Duration) error {
	for end := time.Now().Add(limit); ctx.Err() == nil && time.Now().Before(end); {
		made, err := d.traffic.step(d.done, time.Since(d.began))
		if err != nil {
			return err
		}
		d.done += made
		sleep(drivePause)
	}
	return ctx.Err()
}

// events changes existing entries. The changes are reported as hooks report them.
type events struct {
	n        int
	rate     int // per second
	stride   int
	injector *injector.Injector
	arrivals *arrivalPoller
	key      key
	value    value
}

// maxStepChanges limits the writes of one step, if this process had to wait.
const maxStepChanges = 8192

func openEvents(p *nodes, l *arrivalPoller) (traffic, error) {
	return openEventsBy(injector.Options{}, eventRate)(p, l)
}

// openEventsBy returns a function that starts changes at a rate, by an injector with these options.
func openEventsBy(o injector.Options, rate int) func(*nodes, *arrivalPoller) (traffic, error) {
	return func(p *nodes, l *arrivalPoller) (traffic, error) {
		o.Capacity = maxStepChanges
		f, err := injector.Open(p.mapA, p.a.Shared, o)
		return &events{n: p.n, rate: rate, stride: strideOf(p.n), injector: f, arrivals: l}, err
	}
}

func (e *events) step(done int, elapsed time.Duration) (made int, err error) {
	due := int(float64(e.rate)*elapsed.Seconds()) - done
	e.injector.Reset()
	e.arrivals.begin()
	for made = 0; made < min(due, maxStepChanges); made++ {
		i, number := (done+made)*e.stride%e.n, uint32(done+made+1)
		fillKey(e.key[:], i)
		fillValue(e.value[:], i, 0)
		setNumber(&e.value, number)
		e.injector.Add(table.OpUpdate, table.ContextPacket, e.key[:], e.value[:])
		if e.arrivals != nil && number%eventSample == 0 {
			e.arrivals.add(&e.key, func(v *value) bool { return int32(numberIn(v)-number) >= 0 })
		}
	}
	e.arrivals.markSent()
	failed, err := e.injector.Run()
	e.arrivals.commit()
	return made, errors.Join(err, refused(failed, made))
}

func (e *events) close() error { return e.injector.Close() }

// calls changes existing entries by bpf(2), as a control plane does. For the
// daemons, the benchmark is another process.
type calls struct {
	m        *ebpf.Map
	n        int
	stride   int
	arrivals *arrivalPoller
	key      key
	value    value
}

func openCalls(p *nodes, l *arrivalPoller) (traffic, error) {
	return &calls{m: p.mapA, n: p.n, stride: strideOf(p.n), arrivals: l}, nil
}

func (c *calls) step(done int, elapsed time.Duration) (made int, err error) {
	due := int(callRate*elapsed.Seconds()) - done
	for made = 0; made < min(due, maxStepChanges); made++ {
		i, number := (done+made)*c.stride%c.n, uint32(done+made+1)
		fillKey(c.key[:], i)
		fillValue(c.value[:], i, 0)
		setNumber(&c.value, number)
		if number%callSample == 0 {
			c.arrivals.begin()
			c.arrivals.add(&c.key, func(v *value) bool { return int32(numberIn(v)-number) >= 0 })
			c.arrivals.markSent()
		}
		if err := c.m.Put(c.key[:], c.value[:]); err != nil {
			return made, fmt.Errorf("write an entry by bpf(2): %w", err)
		}
		if number%callSample == 0 {
			c.arrivals.commit()
		}
	}
	return made, nil
}

func (c *calls) close() error { return nil }

// setNumber stores the number of a change in a value. Each number makes the value different.
func setNumber(v *value, n uint32) {
	(*lbbpf.LBCtValue)(unsafe.Pointer(v)).Tcp[0].FinSeq = n
}

func numberIn(v *value) uint32 {
	return (*lbbpf.LBCtValue)(unsafe.Pointer(v)).Tcp[0].FinSeq
}

// stateAt is the offset of the connection state in a value, in bytes.
const stateAt = int(unsafe.Offsetof(lbbpf.LBCtValue{}.State))

// flows creates new entries, half-open at first, that become established in place.
type flows struct {
	next     int // number of the next entry
	injector *injector.Injector
	program  *dataplane.Program
	arrivals *arrivalPoller
	due      [][]int // entries that are due for a change, by millisecond
	at       int     // last millisecond that was processed
	key      key
	value    value
}

func openFlows(p *nodes, l *arrivalPoller) (_ traffic, err error) {
	f := &flows{next: p.n, arrivals: l, due: make([][]int, 2*maxHandshake.Milliseconds())}
	if f.injector, err = injector.Open(p.mapA, p.a.Shared, injector.Options{Capacity: maxStepChanges}); err != nil {
		return nil, err
	}
	f.program, err = dataplane.Open(p.mapA, dataplane.Options{Capacity: maxStepChanges, RunWrites: 16, InPlaceOffset: stateAt})
	if err != nil {
		return nil, errors.Join(err, f.injector.Close())
	}
	return f, nil
}

func (f *flows) fill(i int, state uint8) {
	fillKey(f.key[:], i)
	fillValue(f.value[:], i, 0)
	(*lbbpf.LBCtValue)(unsafe.Pointer(&f.value)).State = state
}

// The states of a connection: enum ct_state of bench/lb/bpf/lb.h.
const (
	stateSynSent     = 1
	stateEstablished = 3
)

func (f *flows) step(done int, elapsed time.Duration) (made int, err error) {
	due := int(flowRate*elapsed.Seconds()) - done
	now := int(elapsed.Milliseconds())
	f.injector.Reset()
	for made = 0; made < min(due, maxStepChanges); made++ {
		f.fill(f.next, stateSynSent)
		f.injector.Add(table.OpUpdate, table.ContextPacket, f.key[:], f.value[:])
		after := 1 + int(mix(uint64(f.next))%uint64(maxHandshake.Milliseconds()))
		slot := (now + after) % len(f.due)
		f.due[slot] = append(f.due[slot], f.next)
		f.next++
	}
	failed, err := f.injector.Run()
	if err := errors.Join(err, refused(failed, made)); err != nil {
		return made, err
	}
	return made, f.change(now)
}

func refused(failed, of int) error {
	if failed == 0 {
		return nil
	}
	return fmt.Errorf("write the first map: it refused %d of %d changes", failed, of)
}

// change makes the changes in place that are due.
func (f *flows) change(now int) error {
	f.program.Reset()
	f.arrivals.begin()
	n := 0
	for f.at = max(f.at, now-len(f.due)+1); f.at <= now; f.at++ {
		list := &f.due[f.at%len(f.due)]
		for _, i := range *list {
			if n == maxStepChanges {
				return fmt.Errorf("change entries in place: more than %d are due", maxStepChanges)
			}
			n++
			f.fill(i, stateEstablished)
			f.program.Add(dataplane.InPlace, 0, f.key[:], f.value[:])
			if i%flowSample == 0 {
				f.arrivals.add(&f.key, func(v *value) bool { return v[stateAt] == stateEstablished })
			}
		}
		*list = (*list)[:0]
	}
	f.arrivals.markSent()
	failed, err := f.program.Run()
	f.arrivals.commit()
	return errors.Join(err, refused(failed, n))
}

func (f *flows) close() error { return errors.Join(f.injector.Close(), f.program.Close()) }
