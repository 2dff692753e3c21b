package tabletest

import (
	"fmt"
	"time"
)

// Heal removes all faults from the cluster.
func (w *World) Heal() {
	for i := range w.Cuts {
		clear(w.Cuts[i])
	}
	for _, n := range w.Nodes {
		n.frozen, n.faulty, n.hidden, n.burst = false, nil, false, 1<<10
	}
	if w.Model != nil {
		w.Model.heal()
	}
}

// Converge runs everything until nothing changes. It returns the first error of the final state.
func (w *World) Converge() error {
	idleRounds := 0
	for round := range maxRounds {
		w.Now += int64(300 * time.Millisecond)
		if idleRounds > 0 || round > maxRounds/2 {
			w.Now += unknownGrace // exceeds all waiting times
		}
		before := w.moves
		for _, n := range w.Nodes {
			if n.Daemon != nil {
				n.Daemon.RunUntilIdle()
			}
		}
		for range 4 {
			w.PumpAll()
		}
		if w.err != nil {
			return w.err
		}
		if w.moves != before {
			idleRounds = 0
		} else if idleRounds++; idleRounds == 2 {
			return w.checkConverged()
		}
	}
	return fmt.Errorf("cluster does not converge: %w", w.checkConverged())
}

const maxRounds = 60

// RunUntilIdle does all pending work of one node.
func (d *Daemon) RunUntilIdle() {
	d.updateView()
	d.LoadAll()
	if !d.wasOffered {
		return
	}
	d.findUnknown()
	for d.eventsPending() {
		for cpu := range d.queue {
			d.Deliver(cpu)
		}
	}
	if d.m != nil {
		d.Drain()
	}
	d.Adopt()
	d.SaveMapID()
}

// eventsPending reports whether events are on their way to the table.
func (d *Daemon) eventsPending() bool {
	for _, q := range d.queue {
		if len(q) > 0 {
			return true
		}
	}
	return false
}

// LoadAll attaches the map and reads it.
func (d *Daemon) LoadAll() {
	for d.follow(); d.state == stateLoading; {
		d.load(1 << 20)
	}
}

// UpdateViews updates the membership views of all daemons and does the work that follows.
func (w *World) UpdateViews() {
	for _, n := range w.Nodes {
		if n.Daemon != nil {
			n.Daemon.updateView()
		}
	}
}

// Drain writes, scans and rereads.
func (d *Daemon) Drain() {
	w := d.n.world
	if w.scans {
		d.scan()
	}
	d.settle()
	d.upkeep()
	for range 8 {
		for more := true; more; more = d.phase != phaseFill {
			w.Now += 10
			d.work(1 << 20)
		}
		if d.idle() {
			return
		}
	}
}

// updateView updates the membership view of a daemon.
func (d *Daemon) updateView() {
	live, same := make([]uint64, len(d.n.world.Nodes)), true
	for i, n := range d.n.world.Nodes {
		if n.Daemon != nil && (d.n.world.open(i, d.n.ID) || i == d.n.ID) {
			live[i] = n.Daemon.self.Incarnation
		}
		same = same && live[i] == d.view.live[i]
	}
	if !same || d.membersSetAt == 0 {
		d.setPeers(live)
	}
}

// PumpAll gives every stream a turn.
func (w *World) PumpAll() {
	for _, n := range w.Nodes {
		if n.Daemon == nil {
			continue
		}
		for _, l := range n.Daemon.Inbound {
			if l != nil {
				l.Pump(16)
			}
		}
	}
}

// Pump carries all pending records over one inbound stream, in batches of at most limit records.
func (l *InboundStream) Pump(limit int) {
	l.request()
	for st := l.st; st != nil && st == l.st; {
		sent := st.serve(limit)
		if !l.receiveNext() && !sent {
			return
		}
		l.request()
	}
}
