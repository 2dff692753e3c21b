package tabletest

import (
	"fmt"
	"slices"
	"time"
)

// Heal removes all faults from the cluster. Daemons that are down stay down. From here on the cluster
// must converge without further faults.
func (w *World) Heal() {
	for i := range w.Cuts {
		clear(w.Cuts[i])
	}
	for _, n := range w.Nodes {
		n.frozen, n.faulty, n.hidden, n.burst = false, nil, false, 1<<10
		n.endFilters()
	}
	w.healEnvironment()
	w.equalLayouts()
	if w.Model != nil {
		// From now on, the model requires that no record is lost.
		w.Model.heal()
	}
}

// Converge runs everything until nothing changes. It returns the first error of the final state.
//
// All daemons work, all streams carry their records, and all waiting times pass. Two rounds in a row
// without a change end it, or four while deletes wait. A cluster that still changes after maxRounds is an error, for example two
// nodes that send a record to each other again and again.
func (w *World) Converge() error {
	idleRounds, expired := 0, uint64(0)
	for round := 0; round < maxRounds; round++ {
		w.Now += int64(300 * time.Millisecond)
		if idleRounds > 0 || round > maxRounds/2 {
			if idleRounds > 0 && w.forgot() {
				w.Compare() // as syncd does within seconds
				w.PumpAll()
			}
			w.Now += unknownGrace // exceeds all waiting times
		}
		before := w.moves
		for _, n := range w.Nodes {
			if n.Daemon != nil {
				n.Daemon.RunUntilIdle()
			}
		}
		// A record may pass several nodes: a relay, a fallback sender, or a repair.
		for range 4 {
			w.PumpAll()
		}
		if w.err != nil {
			return w.err
		}
		// In a full map, each record that expires makes room for another one, which may expire after its time, too.
		if n := w.takeoversExpired(); n > expired {
			expired, round = n, min(round, maxRounds/2)
		}
		if w.moves != before {
			idleRounds = 0
		} else if idleRounds++; idleRounds == 4 || idleRounds >= 2 && !w.deletesWait() {
			return w.checkConverged()
		}
	}
	return fmt.Errorf("cluster does not converge: %w", w.checkConverged())
}

// deletesWait reports whether deletes wait for a decision. The end of a clear moves nothing, and the next one is detected after it.
func (w *World) deletesWait() bool {
	return slices.ContainsFunc(w.Nodes, func(n *Node) bool {
		return n.Daemon != nil && n.Daemon.tab != nil && n.Daemon.tab.Stats().HeldDeletes > 0
	})
}

// takeoversExpired returns how many records have expired after takeovers.
func (w *World) takeoversExpired() (n uint64) {
	for _, node := range w.Nodes {
		if d := node.Daemon; d != nil && d.tab != nil {
			n += d.tab.Stats().TakeoversExpired
		}
	}
	return n
}

// maxRounds is the number of rounds after which a cluster must have converged.
const maxRounds = 60

// RunUntilIdle does all pending work of one node. It carries no messages of streams: see PumpAll.
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

// LoadAll attaches the map and reads it. It returns when the map is read or there is none.
func (d *Daemon) LoadAll() {
	for d.follow(); d.state == stateLoading; {
		d.load(1 << 20)
	}
}

// UpdateViews updates the membership views of all daemons and does the work that follows. That includes
// the start and the end of streams.
func (w *World) UpdateViews() {
	for _, n := range w.Nodes {
		if n.Daemon != nil {
			n.Daemon.updateView()
		}
	}
}

// Drain writes, scans and rereads until the syncer is idle. It gives up after some passes: a write may
// fail each time, for example because the map is full.
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

// updateView updates the membership view of a daemon. A node is live for it if its daemon runs and
// messages get through in both directions. A frozen node is live, too.
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

// PumpAll gives every stream a turn. Streams that do not exist yet are opened.
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

// Pump carries all pending records over one inbound stream, in batches of at most limit records. It
// returns when neither end makes progress, or the stream has ended.
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
