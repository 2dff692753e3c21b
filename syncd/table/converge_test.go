package table

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// TestConvergeByScan lets hooks miss writes: a scan at the end finds them.
func TestConvergeByScan(t *testing.T) { converge(t, true) }

// TestConvergeByEvents scans nothing at the end: as long as no event is lost,
// events and the rechecks that the table asks for are enough.
func TestConvergeByEvents(t *testing.T) { converge(t, false) }

// converge runs clusters through random steps (writes that hooks see late,
// out of order between CPUs or not at all, in-flight kernel writes, half-read
// rereads, streams that reconnect, crashes, restarts with the same map and with
// a new one) and demands that all tables and kernel maps are equal once it is
// quiet.
func converge(t *testing.T, losses bool) {
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "b", "c", "d"}[:rapid.IntRange(2, 4).Draw(t, "nodes")]
		s := newSim(t, names...)
		s.trace, s.scans = t.Logf, losses
		for _, name := range names {
			n := s.nodes[name]
			n.offset = rapid.Int64Range(-3e6, 3e6).Draw(t, "clock offset")
			n.start(true)
			n.claim()
		}
		d := &driver{sim: s}
		t.Repeat(d.actions())
		for _, name := range names {
			if n := s.nodes[name]; !n.up && rapid.Bool().Draw(t, "comes back") {
				n.start(true)
			}
		}
		if err := s.settle(); err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			checkInvariants(t, s.nodes[name].tab)
		}
		s.checkAlike(t)
	})
}

type driver struct {
	sim *sim
}

func (d *driver) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"write":    d.write,
		"write2":   d.write,
		"write3":   d.write,
		"events":   d.onUp(func(t *rapid.T, n *simNode) { n.deliver(rapid.IntRange(0, simCPUs-1).Draw(t, "cpu")) }),
		"events2":  d.onUp(func(t *rapid.T, n *simNode) { n.deliver(rapid.IntRange(0, simCPUs-1).Draw(t, "cpu")) }),
		"take":     d.onUp(func(t *rapid.T, n *simNode) { n.take(rapid.IntRange(1, 4).Draw(t, "limit")) }),
		"put":      d.onUp(func(_ *rapid.T, n *simNode) { n.write(1) }),
		"report":   d.onUp(func(_ *rapid.T, n *simNode) { n.report(nil) }),
		"failed":   d.onUp(d.fail),
		"rechecks": d.onUp(func(t *rapid.T, n *simNode) { n.takeRechecks(rapid.IntRange(1, 4).Draw(t, "limit")) }),
		"read":     d.onUp(func(_ *rapid.T, n *simNode) { n.read() }),
		"scan":     d.onUp(func(t *rapid.T, n *simNode) { n.scanSome(rapid.IntRange(1, 4).Draw(t, "limit")) }),
		"scanned":  d.onUp(func(_ *rapid.T, n *simNode) { n.scanOn() }),
		"answer":   d.onUp(func(_ *rapid.T, n *simNode) { n.answer() }),
		"pump":     d.pump,
		"pump2":    d.pump,
		"resume":   d.resume,
		"crash":    d.crash,
		"restart":  d.restart,
		"refill":   d.onUp(d.refill),
		"audit":    d.onUp(d.audit),
	}
}

func (d *driver) pick(t *rapid.T) *simNode {
	d.sim.now += rapid.Int64Range(1, 2e6).Draw(t, "time")
	return d.sim.nodes[rapid.SampledFrom(d.sim.names).Draw(t, "node")]
}

func (d *driver) onUp(fn func(*rapid.T, *simNode)) func(*rapid.T) {
	return func(t *rapid.T) {
		if n := d.pick(t); n.up {
			fn(t, n)
		}
	}
}

func (d *driver) write(t *rapid.T) {
	n := d.pick(t)
	key := fmt.Sprint("k", rapid.IntRange(0, 5).Draw(t, "key"))
	value := fmt.Sprint("v", rapid.IntRange(0, 9).Draw(t, "value"))
	ctx := Context(rapid.IntRange(0, int(ContextSyscall)).Draw(t, "context"))
	cpu := uint16(rapid.IntRange(0, simCPUs-1).Draw(t, "cpu"))
	jitter := rapid.Int64Range(-4e5, 4e5).Draw(t, "jitter")
	c := n.touch(key, value, rapid.IntRange(0, 3).Draw(t, "delete") == 0, cpu, ctx, jitter)
	if c != nil && (!d.sim.scans || rapid.IntRange(0, 9).Draw(t, "lost") != 0) {
		n.events[cpu] = append(n.events[cpu], c)
	}
}

// fail lets the kernel refuse what the writer has taken, and try again later.
func (d *driver) fail(t *rapid.T, n *simNode) {
	n.report(nil)
	n.take(2)
	n.report(fmt.Errorf("map full"))
	if rapid.Bool().Draw(t, "requeue") {
		n.tab.Update(func(tx *Tx) { tx.RequeueFailed(1) })
	}
}

func (d *driver) pump(t *rapid.T) {
	from, to := d.pick(t), d.pick(t)
	d.sim.pump(from.name, to.name, rapid.IntRange(1, 5).Draw(t, "limit"))
	if to.up {
		to.claim()
	}
}

func (d *driver) resume(t *rapid.T) {
	from, to := d.pick(t), d.pick(t)
	if from != to && from.up && to.up {
		d.sim.stream(from, to).resume()
	}
}

func (d *driver) crash(t *rapid.T) {
	if n := d.pick(t); n.up && rapid.IntRange(0, 3).Draw(t, "really") == 0 {
		n.stop()
	}
}

func (d *driver) restart(t *rapid.T) {
	n := d.pick(t)
	if n.up {
		return
	}
	same := rapid.Bool().Draw(t, "same map")
	if !same {
		clear(n.kernel)
	}
	n.start(same)
}

// refill replaces the kernel map of a running node.
func (d *driver) refill(t *rapid.T, n *simNode) {
	if rapid.IntRange(0, 3).Draw(t, "really") != 0 {
		return
	}
	clear(n.kernel)
	// The old map's events, writes and reads end with it.
	n.events = make([][]*Change, simCPUs)
	n.batch, n.keys, n.reads = nil, nil, nil
	n.scanning = false
	n.writer.Close()
	n.tab.Update(func(tx *Tx) { tx.Refill() })
	n.writer = n.tab.NewCursor(0)
}
