package table

import "time"

// simLinks are a daemon's streams.
type simLinks struct {
	serving  bool         // it answers
	links    []*simLink   // from others, by node; nil: never met
	sessions []*simStream // to others
}

// simLink receives one life of a peer's changes, over one stream after another.
type simLink struct {
	to    *simDaemon
	peer  int
	inc   uint64
	st    *simStream // nil: none
	retry int64      // subscribe not before

	index    int // of the subscription; 0: none
	last     int
	state    simIntake
	received bool // anything; so that the position means something
	position uint64
	asked    uint64 // the first position given out here after the map was asked for
	before   uint64 // the same of the walk
	sweep    bool
	synced   bool
	rewalk   bool   // the next subscription is to begin at 0
	from     uint64 // where the subscription began
	passed   uint64 // position up to which the peer has told all
	head     uint64 // of the table, after the last merge
	acked    uint64 // position
	job      *simJob

	wanted     bool // orphaned records are requested of the peer
	departures int  // of the view under which they were
	serial     int  // of the request
	sent       int  // serial of the last one sent
	confirmed  int  // of the last one that was satisfied
}

type simIntake uint8

const (
	simUnsubscribed simIntake = iota
	simAwaited
	simPendingMap
	simServed
)

// simJob is records that are told again.
type simJob struct {
	in     *BucketSet
	before uint64
	found  int
}

func (d *simDaemon) relink(peer int, inc uint64) {
	l := d.links[peer]
	if l != nil && l.inc == inc {
		return
	}
	if l != nil {
		l.cut()
	}
	first := d.n.id // if all serve the map
	for i, inc := range d.view.live {
		if d.view.before(i, inc, first) {
			first = i
		}
	}
	d.links[peer] = &simLink{
		to: d, peer: peer, inc: inc, serial: 1, wanted: first == d.n.id || first == peer, departures: d.view.departures,
	}
}

// synced reports whether the first walk of every live peer has been merged. A map that a
// peer does not have is not waited for.
func (d *simDaemon) synced() bool {
	if d.toldAt == 0 {
		return false
	}
	for i, inc := range d.view.live {
		l := d.links[i]
		if i != d.n.id && inc != 0 && (!l.synced || (l.wanted && l.confirmed != l.serial)) && l.state != simPendingMap {
			return false
		}
	}
	return true
}

// cut ends the link's stream at once: what is under way is lost.
func (l *simLink) cut() {
	if l.st != nil {
		l.st.left = true
		l.down()
	}
}

// down notes that the stream is over. The position stays.
func (l *simLink) down() {
	l.st = nil
	l.unsubscribed()
	l.to.n.sim.moves++
}

func (l *simLink) unsubscribed() {
	l.index, l.state, l.job, l.confirmed, l.acked = 0, simUnsubscribed, nil, 0, 0
}

// connect opens a stream if there is to be one.
func (l *simLink) connect() {
	d, s := l.to, l.to.n.sim
	p := s.nodes[l.peer]
	if l.st != nil || !d.known || d.view.live[l.peer] != l.inc || !p.runs() ||
		p.d.self.Incarnation != l.inc || !p.d.serving || !s.open(l.peer, d.n.id) {
		return
	}
	l.st, l.last = &simStream{from: p.d, to: d}, 0
	p.d.sessions = append(p.d.sessions, l.st)
	l.subscribe()
}

// subscribe asks for the map, from where the link has got to.
func (l *simLink) subscribe() {
	l.last++
	l.index, l.state, l.asked = l.last, simAwaited, l.to.tab.seq+1
	l.st.up = append(l.st.up, simRequest{
		index: l.index, subscribe: true, tellAll: l.to.tab.stats.Unversioned > 0,
		resume: l.received && !l.rewalk, position: l.position, orphaned: l.wanted, serial: l.serial,
	})
	l.sent = l.serial
	l.to.n.sim.moves++
}

// request makes the requests that are due.
func (l *simLink) request() {
	l.to.assign()
	switch {
	case l.st == nil:
		l.connect()
	case l.rewalk && l.state == simServed:
		l.st.up = append(l.st.up, simRequest{index: l.index, unsubscribe: true})
		l.unsubscribed()
		l.subscribe()
	case l.index == 0 && l.to.n.sim.now >= l.retry:
		l.subscribe()
	case l.state == simServed && l.sent != l.serial:
		l.sent = l.serial
		l.st.up = append(l.st.up, simRequest{index: l.index, orphaned: l.wanted, serial: l.serial})
		l.to.n.sim.moves++
	}
}

// ask has records in some buckets told again.
func (l *simLink) ask(in *BucketSet) {
	if l.state == simServed && l.job == nil {
		l.job = &simJob{in: in, before: l.to.tab.seq + 1}
		l.st.up = append(l.st.up, simRequest{index: l.index, retell: in})
		l.to.n.sim.moves++
	}
}

// take handles the next message that has arrived, and reports whether there was one.
func (l *simLink) take() bool {
	st, s := l.st, l.to.n.sim
	switch {
	case st == nil:
		return false
	case len(st.down) == 0:
		if st.broken {
			l.down()
		}
		return st.broken
	case s.cuts[l.peer][l.to.n.id]:
		return false
	}
	m := st.down[0]
	st.down = st.down[1:]
	if m.kind != simBatch {
		s.moves++
	}
	if m.index != l.index {
		return true
	}
	switch m.kind {
	case simPending:
		l.state = simPendingMap
	case simAccepted:
		l.accept(&m)
	case simBatch, simRetoldBatch, simRequested:
		l.merge(&m)
	case simOwnersSent:
		l.confirmed = m.serial
	case simRetold:
		l.endJob()
	case simLost:
		l.unsubscribed()
		l.retry = s.now + int64(100*time.Millisecond)
	}
	return true
}

// accept begins a walk.
func (l *simLink) accept(m *simMessage) {
	if m.reset {
		l.sweep = l.received && (l.sweep || l.position > 0)
		l.before, l.position, l.rewalk = l.asked, m.position, false
	}
	if m.position != l.position {
		l.to.n.sim.fail(errGap)
	}
	l.received, l.state, l.from = true, simServed, m.position
}

func (l *simLink) merge(m *simMessage) {
	d := l.to
	retold := m.kind == simRetoldBatch
	if m.previous != l.position {
		d.n.sim.fail(errGap)
		return
	}
	if len(m.deltas) > 0 {
		now := d.n.clock()
		opt := RemoteOptions{Touch: (l.sweep && m.kind == simBatch) || retold, Repair: retold}
		d.tab.Update(func(tx *Tx) {
			for i := range m.deltas {
				l.mergeOne(tx, &m.deltas[i], now, opt, retold)
			}
		})
	}
	if m.end && l.sweep {
		l.sweepRest()
	}
	l.position, l.head = m.position, d.tab.seq
	if m.kind == simBatch && m.end {
		l.sweep, l.synced = false, true
		if l.from <= l.passed {
			l.passed = max(l.passed, m.passed)
		}
	}
}

func (l *simLink) mergeOne(tx *Tx, x *simDelta, now int64, opt RemoteOptions, retold bool) {
	d, s := l.to, l.to.n.sim
	node := s.node(x.owner.Node)
	compared := d.view.comparable(node, l.peer, d.n.id)
	if opt.Touch {
		switch {
		case node == l.peer:
			opt.Replace = ReplaceOwn
		case compared && d.first == l.peer:
			opt.Replace = ReplaceSame
		}
	}
	opt.Sender = tx.Intern(Owner{s.nodes[l.peer].name, l.inc})
	delta := Delta{Key: s.keys[x.key][:], Version: x.version, Owner: tx.Intern(x.owner), Delete: x.dead, Expired: x.expired}
	value := x.value
	if !x.dead {
		delta.Value = value[:]
	}
	if d.n.opt.Carried != nil {
		delta.Keep = keptBytes
	}
	o := tx.Remote(&delta, now, opt)
	if retold && o == Accepted && compared {
		l.job.found++
	}
	if o == Defended {
		s.defended = true
	}
	if o == Accepted {
		s.moves++
		if s.model != nil {
			s.model.merged(d, tx, x.key)
		}
	}
	if s.told != nil {
		s.told(l.st, x, o)
	}
	if s.trace != nil {
		s.trace("%s > %s: %s %s v%d %s: %s", s.nodes[l.peer].name, d.n.name, s.name(x.key), valueText(delta.Value), x.version, x.owner.Node, o)
	}
}

// sweepRest deletes what the peer had and the walk did not meet.
func (l *simLink) sweepRest() {
	t := l.to.tab
	c := t.NewCursor(0)
	t.Update(func(tx *Tx) {
		for tx.Sweep(l.to.n.sim.nodes[l.peer].name, l.before, l.to.n.clock(), c, 3) {
		}
	})
	c.Close()
}

// endJob deletes what the peer had in the buckets and did not tell again.
func (l *simLink) endJob() {
	t, j := l.to.tab, l.job
	c := t.NewCursor(0)
	t.Update(func(tx *Tx) {
		for more := true; more; {
			var n int
			n, more = tx.SweepBuckets(l.to.n.sim.nodes[l.peer].name, j.in, j.before, l.to.n.clock(), c, 3)
			j.found += n
		}
	})
	c.Close()
	l.job = nil
	l.to.n.sim.repaired += j.found
	l.to.n.sim.notef("%s was told %d again by %s", l.to.n.name, j.found, l.to.n.sim.nodes[l.peer].name)
}
