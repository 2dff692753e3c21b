package main

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"

	lbbpf "mapsync/bench/lb/bpf"
	"mapsync/internal/dataplane"
	"mapsync/internal/injector"
	"mapsync/syncd/table"
)

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

// touches changes existing entries in place, as a data plane does.
type touches struct {
	n        int
	stride   int
	program  *dataplane.Program
	arrivals *arrivalPoller
	key      key
	value    value
}

// numberAt is the offset of the number in a value, rounded down to a multiple of 8 bytes.
const numberAt = int(unsafe.Offsetof(lbbpf.LBCtValue{}.Tcp)+unsafe.Offsetof(lbbpf.LBCtTcp{}.FinSeq)) &^ 7

func openTouches(p *nodes, l *arrivalPoller) (traffic, error) {
	program, err := dataplane.Open(p.mapA, dataplane.Options{Capacity: maxStepChanges, RunWrites: 16, InPlaceOffset: numberAt})
	return &touches{n: p.n, stride: strideOf(p.n), program: program, arrivals: l}, err
}

func (c *touches) step(done int, elapsed time.Duration) (made int, err error) {
	due := int(touchRate*elapsed.Seconds()) - done
	c.program.Reset()
	c.arrivals.begin()
	for made = 0; made < min(due, maxStepChanges); made++ {
		i, number := (done+made)*c.stride%c.n, uint32(done+made+1)
		fillKey(c.key[:], i)
		fillValue(c.value[:], i, 0)
		setNumber(&c.value, number)
		c.program.Add(dataplane.InPlace, 0, c.key[:], c.value[:])
		if number%touchSample == 0 {
			c.arrivals.add(&c.key, func(v *value) bool { return int32(numberIn(v)-number) >= 0 })
		}
	}
	c.arrivals.markSent()
	failed, err := c.program.Run()
	c.arrivals.commit()
	return made, errors.Join(err, refused(failed, made))
}

func (c *touches) close() error { return c.program.Close() }

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
