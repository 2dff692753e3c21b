package table

import (
	"fmt"
	"time"
)

// heal takes all that is wrong with the cluster back.
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

// settle lets everything run until nothing moves any more, and returns what is
// wrong then.
func (s *sim) settle() error {
	quiet := 0
	for round := range simRounds {
		s.now += int64(300 * time.Millisecond)
		if quiet > 0 || round > simRounds/2 {
			s.now += simUnknownGrace // whatever waits for its time
		}
		before := s.moves
		for _, n := range s.nodes {
			if n.d != nil {
				n.d.live()
			}
		}
		for range 4 {
			s.carry()
		}
		if s.err != nil {
			return s.err
		}
		if s.moves != before {
			quiet = 0
		} else if quiet++; quiet == 2 {
			return s.converged()
		}
	}
	return fmt.Errorf("still moving: %w", s.converged())
}

const simRounds = 60

// live does on one node all there is to do.
func (d *simDaemon) live() {
	d.seeAll()
	d.loadAll()
	if !d.known {
		return
	}
	d.findUnknown()
	for d.awaited() {
		for cpu := range d.queue {
			d.deliver(cpu)
		}
	}
	if d.m != nil {
		d.drain()
	}
	d.claim()
	d.note()
}

// awaited reports whether events are on their way to the table.
func (d *simDaemon) awaited() bool {
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

// see has all daemons see who is live, and do what follows from that.
func (s *sim) see() {
	for _, n := range s.nodes {
		if n.d != nil {
			n.d.seeAll()
		}
	}
}

// drain writes, scans and reads again.
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

// seeAll tells a daemon who is live.
func (d *simDaemon) seeAll() {
	live, same := make([]uint64, len(d.n.sim.nodes)), true
	for i, n := range d.n.sim.nodes {
		if n.d != nil && (d.n.sim.open(i, d.n.id) || i == d.n.id) {
			live[i] = n.d.self.Incarnation
		}
		same = same && live[i] == d.view.live[i]
	}
	if !same || d.toldAt == 0 {
		d.setPeers(live)
	}
}

// carry gives every stream a turn.
func (s *sim) carry() {
	for _, n := range s.nodes {
		if n.d == nil {
			continue
		}
		for _, l := range n.d.links {
			if l != nil {
				l.pump(16)
			}
		}
	}
}

// pump carries what there is over one link, in batches of a limit.
func (l *simLink) pump(limit int) {
	l.request()
	for st := l.st; st != nil && st == l.st; {
		sent := st.serve(limit)
		if !l.take() && !sent {
			return
		}
		l.request()
	}
}
