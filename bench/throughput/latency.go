package main

import (
	"context"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/HdrHistogram/hdrhistogram-go"

	lbbpf "mapsync/bench/lb/bpf"
	"mapsync/internal/dataplane"
	"mapsync/internal/feed"
	"mapsync/syncd/table"
)

// What the load balancer of the first node does while latency is measured.
const (
	eventRate = 100_000 // changes a second that the hooks' code reports
	flowRate  = 10_000  // new entries a second, each of which changes in place once
	// mostHandshake is how long after its creation an entry changes in place, at most: as
	// long as a handshake around the world takes.
	mostHandshake = 200 * time.Millisecond

	// One change in eventSample, and one in flowSample in place, is looked for at the peer,
	// at these intervals. That is the resolution: a change is found up to an interval and
	// a round of lookups (about 1 µs each) after it arrived, never before. The
	// lookups take a few percent of a core from the two daemons.
	eventSample, eventLook = 50, 250 * time.Microsecond
	flowSample, flowLook   = 25, time.Millisecond
)

// Latency is how long changes took from the write of the first node's map until the
// kernel map of its peer held them, in milliseconds.
type Latency struct {
	Name    string  `json:"name"`
	Rate    float64 `json:"per_second"` // as it was
	Samples int64   `json:"samples"`
	P50     float64 `json:"p50_ms"`
	P99     float64 `json:"p99_ms"`
	P999    float64 `json:"p999_ms"`
	Max     float64 `json:"max_ms"`
	Bound   float64 `json:"p99_bound_ms"`
	// SenderCPU and ReceiverCPU are what the two daemons had of one core, in percent.
	SenderCPU   float64 `json:"sender_cpu_percent"`
	ReceiverCPU float64 `json:"receiver_cpu_percent"`
}

// latencyKind is a kind of changes.
type latencyKind struct {
	name  string
	bound float64       // of p99, ms
	look  time.Duration // how often it is looked for
	open  func(*nodes, *looker) (traffic, error)
}

var latencyKinds = []latencyKind{
	{"changes that hooks report", 20, eventLook, openEvents},
	{"changes in place of new entries", 1000, flowLook, openFlows},
}

// newHistogram counts nanoseconds up to a minute, to three digits.
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

// latencies measures both kinds of changes on two whole daemons that hold n entries, each
// for a time.
func latencies(ctx context.Context, n int, limit time.Duration) (_ []Latency, err error) {
	room := n + int(flowRate*(2*limit).Seconds())
	p, err := startNodes(ctx, n, room)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	var all []Latency
	for _, kind := range latencyKinds {
		progress("latency: %s", kind.name)
		l, err := p.latency(ctx, kind, limit)
		if err != nil {
			return nil, fmt.Errorf("measure latency of %s: %w", kind.name, err)
		}
		progress("  p50 %.2f ms, p99 %.2f ms, p99.9 %.2f ms, max %.2f ms", l.P50, l.P99, l.P999, l.Max)
		all = append(all, l)
	}
	return all, errors.Join(p.a.flawless(ctx), p.b.flawless(ctx))
}

// traffic is what writes the first node's map.
type traffic interface {
	// step makes the changes that are due after a time, done of which were made before. It
	// returns how many these were.
	step(done int, elapsed time.Duration) (made int, err error)
	close() error
}

// latency runs a load for a while and returns how long its changes took.
func (p *nodes) latency(ctx context.Context, kind latencyKind, limit time.Duration) (_ Latency, err error) {
	arrivals := newLooker(p.mapB, kind.look)
	l, err := kind.open(p, arrivals)
	if err != nil {
		return Latency{}, err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	arrivals.start()
	defer func() { err = errors.Join(err, arrivals.close()) }()
	d := driver{traffic: l, began: time.Now()}
	if err := errors.Join(d.run(ctx, limit/10), arrivals.settle()); err != nil { // warm up
		return Latency{}, err
	}
	arrivals.reset()
	before, began := d.done, time.Now()
	var rate float64
	cpuA, cpuB, err := p.cost(func() error {
		err := d.run(ctx, limit)
		rate = float64(d.done-before) / time.Since(began).Seconds()
		return err
	})
	if err := errors.Join(err, arrivals.settle()); err != nil {
		return Latency{}, err
	}
	result := latencyOf(kind.name, arrivals.result())
	result.Bound, result.Rate, result.SenderCPU, result.ReceiverCPU = kind.bound, rate, cpuA, cpuB
	return result, nil
}

// driver makes the changes at their time.
type driver struct {
	traffic traffic
	began   time.Time
	done    int
}

// drivePause is the time from one step to the next.
const drivePause = time.Millisecond

// run goes on for a while. A step that comes late makes what was due meanwhile.
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

// events are changes of entries that are there, reported as hooks report them.
type events struct {
	n      int
	rate   int // a second
	stride int
	feed   *feed.Feed
	look   *looker
	key    key
	value  value
}

// mostAtOnce bounds what is written in one step, should this process have had to wait.
const mostAtOnce = 8192

func openEvents(p *nodes, l *looker) (traffic, error) {
	f, err := feed.Open(p.mapA, p.a.Shared, feed.Options{Capacity: mostAtOnce})
	return &events{n: p.n, rate: eventRate, stride: strideOf(p.n), feed: f, look: l}, err
}

func (e *events) step(done int, elapsed time.Duration) (made int, err error) {
	due := int(float64(e.rate)*elapsed.Seconds()) - done
	e.feed.Reset()
	e.look.begin()
	for made = 0; made < min(due, mostAtOnce); made++ {
		i, number := (done+made)*e.stride%e.n, uint32(done+made+1)
		fillKey(e.key[:], i)
		fillValue(e.value[:], i, 0)
		setNumber(&e.value, number)
		e.feed.Add(table.OpUpdate, table.ContextPacket, e.key[:], e.value[:])
		if e.look != nil && number%eventSample == 0 {
			e.look.add(&e.key, func(v *value) bool { return int32(numberIn(v)-number) >= 0 })
		}
	}
	e.look.written()
	failed, err := e.feed.Run()
	e.look.commit()
	return made, errors.Join(err, refused(failed, made))
}

func (e *events) close() error { return e.feed.Close() }

// setNumber puts the number of a change into a value, where it is a difference by itself.
func setNumber(v *value, n uint32) {
	(*lbbpf.LBCtValue)(unsafe.Pointer(v)).Tcp[0].FinSeq = n
}

func numberIn(v *value) uint32 {
	return (*lbbpf.LBCtValue)(unsafe.Pointer(v)).Tcp[0].FinSeq
}

// stateAt is where in a value the state of the connection is, and what stands beside it.
const stateAt = int(unsafe.Offsetof(lbbpf.LBCtValue{}.State))

// flows are new entries, half-open at first, that become established in place.
type flows struct {
	next    int // number of the next entry
	feed    *feed.Feed
	program *dataplane.Program
	look    *looker
	due     [][]int // entries to be changed, by the millisecond
	at      int     // of the millisecond that was looked at last
	key     key
	value   value
}

func openFlows(p *nodes, l *looker) (_ traffic, err error) {
	f := &flows{next: p.n, look: l, due: make([][]int, 2*mostHandshake.Milliseconds())}
	if f.feed, err = feed.Open(p.mapA, p.a.Shared, feed.Options{Capacity: mostAtOnce}); err != nil {
		return nil, err
	}
	f.program, err = dataplane.Open(p.mapA, dataplane.Options{Capacity: mostAtOnce, RunWrites: 16, PlaceAt: stateAt})
	if err != nil {
		return nil, errors.Join(err, f.feed.Close())
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
	f.feed.Reset()
	for made = 0; made < min(due, mostAtOnce); made++ {
		f.fill(f.next, stateSynSent)
		f.feed.Add(table.OpUpdate, table.ContextPacket, f.key[:], f.value[:])
		after := 1 + int(mix(uint64(f.next))%uint64(mostHandshake.Milliseconds()))
		slot := (now + after) % len(f.due)
		f.due[slot] = append(f.due[slot], f.next)
		f.next++
	}
	failed, err := f.feed.Run()
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
	f.look.begin()
	n := 0
	for f.at = max(f.at, now-len(f.due)+1); f.at <= now; f.at++ {
		list := &f.due[f.at%len(f.due)]
		for _, i := range *list {
			if n == mostAtOnce {
				return fmt.Errorf("change entries in place: more than %d are due", mostAtOnce)
			}
			n++
			f.fill(i, stateEstablished)
			f.program.Add(dataplane.InPlace, 0, f.key[:], f.value[:])
			if i%flowSample == 0 {
				f.look.add(&f.key, func(v *value) bool { return v[stateAt] == stateEstablished })
			}
		}
		*list = (*list)[:0]
	}
	f.look.written()
	failed, err := f.program.Run()
	f.look.commit()
	return errors.Join(err, refused(failed, n))
}

func (f *flows) close() error { return errors.Join(f.feed.Close(), f.program.Close()) }
