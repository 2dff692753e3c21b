package table

import (
	"fmt"
	"time"
)

// heal removes all faults from the cluster.
func (s *sim) heal() {
	for i := range s.cuts {
		clear(s.cuts[i])
	}
	for _, n := range s.nodes {
		n.frozen, n.faulty, n.hidden, n.burst = false, nil, false, 1<<10
	}
	if s.model != nil {
		s.model.heal()
	}
}

// converge runs everything until nothing changes. It returns the first error of the final state.
func (s *sim) converge() error {
	idleRounds := 0
	for round := range simRounds {
		s.now += int64(300 * time.Millisecond)
		if idleRounds > 0 || round > simRounds/2 {
			s.now += simUnknownGrace // exceeds all waiting times
		}
		before := s.moves
		for _, n := range s.nodes {
			if n.d != nil {
				n.d.runUntilIdle()
			}
		}
		for range 4 {
			s.pumpAll()
		}
		if s.err != nil {
			return s.err
		}
		if s.moves != before {
			idleRounds = 0
		} else if idleRounds++; idleRounds == 2 {
			return s.checkConverged()
		}
	}
	return fmt.Errorf("cluster does not converge: %w", s.checkConverged())
}

const simRounds = 60

// runUntilIdle does all pending work of one node.
func (d *simDaemon) runUntilIdle() {
	d.updateView()
	d.loadAll()
	if !d.wasOffered {
		return
	}
	d.findUnknown()
	for d.eventsPending() {
		for cpu := range d.queue {
			d.deliver(cpu)
		}
	}
	if d.m != nil {
		d.drain()
	}
	d.adopt()
	d.saveMapID()
}

// eventsPending reports whether events are on their way to the table.
func (d *simDaemon) eventsPending() bool {
	for _, q := range d.queue {
		if len(q) > 0 {
			return true
		}
	}
	return false
}

// loadAll attaches the map and reads it.
func (d *simDaemon) loadAll() {
	for d.follow(); d.state == simLoading; {
		d.load(1 << 20)
	}
}

// updateViews updates the membership views of all daemons and does the work that follows.
func (s *sim) updateViews() {
	for _, n := range s.nodes {
		if n.d != nil {
			n.d.updateView()
		}
	}
}

// drain writes, scans and rereads.
func (d *simDaemon) drain() {
	s := d.n.sim
	if s.scans {
		d.scan()
	}
	d.settle()
	d.upkeep()
	for range 8 {
		for more := true; more; more = d.phase != simFill {
			s.now += 10
			d.work(1 << 20)
		}
		if d.idle() {
			return
		}
	}
}

// updateView updates the membership view of a daemon.
func (d *simDaemon) updateView() {
	live, same := make([]uint64, len(d.n.sim.nodes)), true
	for i, n := range d.n.sim.nodes {
		if n.d != nil && (d.n.sim.open(i, d.n.id) || i == d.n.id) {
			live[i] = n.d.self.Incarnation
		}
		same = same && live[i] == d.view.live[i]
	}
	if !same || d.membersSetAt == 0 {
		d.setPeers(live)
	}
}

// pumpAll gives every stream a turn.
func (s *sim) pumpAll() {
	for _, n := range s.nodes {
		if n.d == nil {
			continue
		}
		for _, l := range n.d.inbound {
			if l != nil {
				l.pump(16)
			}
		}
	}
}

// pump carries all pending records over one inbound stream, in batches of at most limit records.
func (l *simInboundStream) pump(limit int) {
	l.request()
	for st := l.st; st != nil && st == l.st; {
		sent := st.serve(limit)
		if !l.receiveNext() && !sent {
			return
		}
		l.request()
	}
}
