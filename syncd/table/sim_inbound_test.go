package table

import "time"

// simStreams are the streams of a daemon.
type simStreams struct {
	serving  bool                // the daemon answers requests
	inbound  []*simInboundStream // by node; nil: the node was never live
	outbound []*simStream        // to other nodes
}

// simInboundStream receives the changes of one incarnation of a peer, over one stream after another.
type simInboundStream struct {
	to    *simDaemon
	peer  int
	inc   uint64
	st    *simStream // nil: none
	retry int64      // the time of the next subscription attempt

	index          int // of the current subscription; 0: none
	last           int
	state          simInboundState
	received       bool // a message was received, so the position is valid
	position       uint64
	subscribePos   uint64 // the first local position assigned after the subscription
	before         uint64 // subscribePos of the current full sync
	sweep          bool
	synced         bool
	complete       bool   // a full sync that had begun has ended
	repeatFullSync bool   // the next subscription begins at position 0
	from           uint64 // the position at which the subscription began
	completeTo     uint64 // position up to which the peer has sent everything
	head           uint64 // position of the table after the last merge
	acked          uint64 // position that was acknowledged last
	repair         *simRepair

	wanted     bool // orphaned records are requested from the peer
	departures int  // of the view in which they were requested
	serial     int  // of the request
	sent       int  // serial of the last request that was sent
	confirmed  int  // serial of the last request that was satisfied
}

type simInboundState uint8

const (
	simUnsubscribed simInboundState = iota
	simAwaited
	simPendingMap
	simServed
)

// simRepair is a repair: the peer resends the records in some buckets.
type simRepair struct {
	in     *BucketSet
	before uint64
	found  int
}

func (d *simDaemon) setInbound(peer int, inc uint64) {
	l := d.inbound[peer]
	if l != nil && l.inc == inc {
		return
	}
	if l != nil {
		l.cut()
	}
	first := d.n.id // if all nodes serve the map
	for i, inc := range d.view.live {
		if d.view.before(i, inc, first) {
			first = i
		}
	}
	d.inbound[peer] = &simInboundStream{
		to: d, peer: peer, inc: inc, serial: 1, wanted: first == d.n.id || first == peer, departures: d.view.departures,
	}
}

// synced reports whether the first full sync of every live peer has been merged. It does not wait for
// a map that a peer does not have.
func (d *simDaemon) synced() bool { return d.received(false) }

// allReceived reports whether synced holds and the peers that had yet to adopt their entries have begun to
// send, too.
func (d *simDaemon) allReceived() bool { return d.received(true) }

func (d *simDaemon) received(complete bool) bool {
	if d.membersSetAt == 0 {
		return false
	}
	for i, inc := range d.view.live {
		l := d.inbound[i]
		if i != d.n.id && inc != 0 && (!l.synced || (complete && !l.complete) || (l.wanted && l.confirmed != l.serial)) && l.state != simPendingMap {
			return false
		}
	}
	return true
}

// cut ends the current stream immediately: messages in flight are lost.
func (l *simInboundStream) cut() {
	if l.st != nil {
		l.st.receiverLeft = true
		l.streamEnded()
	}
}

// streamEnded records that the stream has ended. The position stays.
func (l *simInboundStream) streamEnded() {
	l.st = nil
	l.unsubscribed()
	l.to.n.sim.moves++
}

func (l *simInboundStream) unsubscribed() {
	l.index, l.state, l.repair, l.confirmed, l.acked = 0, simUnsubscribed, nil, 0, 0
}

// connect opens a stream if there should be one.
func (l *simInboundStream) connect() {
	d, s := l.to, l.to.n.sim
	p := s.nodes[l.peer]
	if l.st != nil || !d.wasOffered || d.view.live[l.peer] != l.inc || !p.runs() ||
		p.d.self.Incarnation != l.inc || !p.d.serving || !s.open(l.peer, d.n.id) {
		return
	}
	l.st, l.last = &simStream{from: p.d, to: d}, 0
	p.d.outbound = append(p.d.outbound, l.st)
	l.subscribe()
}

// subscribe requests the map, from the position that the inbound stream has reached.
func (l *simInboundStream) subscribe() {
	l.last++
	l.index, l.state, l.subscribePos = l.last, simAwaited, l.to.head()+1
	l.st.requests = append(l.st.requests, simRequest{
		index: l.index, subscribe: true, sendAll: l.to.tab.Stats().Unversioned > 0,
		resume: l.received && !l.repeatFullSync, position: l.position, orphaned: l.wanted, serial: l.serial,
	})
	l.sent = l.serial
	l.to.n.sim.moves++
}

// request sends the requests that are due.
func (l *simInboundStream) request() {
	l.to.assign()
	switch {
	case l.st == nil:
		l.connect()
	case l.repeatFullSync && l.state == simServed:
		l.st.requests = append(l.st.requests, simRequest{index: l.index, unsubscribe: true})
		l.unsubscribed()
		l.subscribe()
	case l.index == 0 && l.to.n.sim.now >= l.retry:
		l.subscribe()
	case l.state == simServed && l.sent != l.serial:
		l.sent = l.serial
		l.st.requests = append(l.st.requests, simRequest{index: l.index, orphaned: l.wanted, serial: l.serial})
		l.to.n.sim.moves++
	}
}

// requestRepair requests a resend of the records in some buckets.
func (l *simInboundStream) requestRepair(in *BucketSet) {
	if l.state == simServed && l.repair == nil {
		l.repair = &simRepair{in: in, before: l.to.head() + 1}
		l.st.requests = append(l.st.requests, simRequest{index: l.index, resend: in})
		l.to.n.sim.moves++
	}
}

// receiveNext handles the next message that has arrived, and reports whether there was one.
func (l *simInboundStream) receiveNext() bool {
	st, s := l.st, l.to.n.sim
	switch {
	case st == nil:
		return false
	case len(st.messages) == 0:
		if st.broken {
			l.streamEnded()
		}
		return st.broken
	case s.cuts[l.peer][l.to.n.id]:
		return false
	}
	m := st.messages[0]
	st.messages = st.messages[1:]
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
	case simBatch, simResentBatch, simRequested:
		l.merge(&m)
	case simOwnersSent:
		l.confirmed = m.serial
	case simResendDone:
		l.endRepair()
	case simLost:
		l.unsubscribed()
		l.retry = s.now + int64(100*time.Millisecond)
	}
	return true
}

// accept begins a full sync or a resume.
func (l *simInboundStream) accept(m *simMessage) {
	if m.reset {
		l.sweep = l.received && (l.sweep || l.position > 0)
		l.before, l.position, l.repeatFullSync = l.subscribePos, m.position, false
	}
	if m.position != l.position {
		l.to.n.sim.fail(errGap)
	}
	l.received, l.state, l.from = true, simServed, m.position
}

func (l *simInboundStream) merge(m *simMessage) {
	d := l.to
	resent := m.kind == simResentBatch
	if m.previous != l.position {
		d.n.sim.fail(errGap)
		return
	}
	if len(m.deltas) > 0 {
		now := d.n.clock()
		opt := RemoteOptions{Touch: (l.sweep && m.kind == simBatch) || resent, Repair: resent}
		d.tab.Update(func(tx *Tx) {
			for i := range m.deltas {
				l.mergeOne(tx, &m.deltas[i], now, opt, resent)
			}
		})
	}
	if m.end && l.sweep {
		l.sweepRest()
	}
	l.position, l.head = m.position, d.head()
	if m.kind == simBatch && m.end {
		l.sweep, l.synced, l.complete = false, true, l.complete || m.open
		if l.from <= l.completeTo {
			l.completeTo = max(l.completeTo, m.passed)
		}
	}
}

func (l *simInboundStream) mergeOne(tx *Tx, x *simDelta, now int64, opt RemoteOptions, resent bool) {
	d, s := l.to, l.to.n.sim
	node := s.node(x.owner.Node)
	compared := d.view.comparable(node, l.peer, d.n.id)
	if opt.Touch {
		switch {
		case node == l.peer:
			opt.Replace = ReplaceAnyVersion
		case compared && d.fallbackSender == l.peer:
			opt.Replace = ReplaceSameVersion
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
	if resent && o == Accepted && compared {
		l.repair.found++
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
	if s.onReceive != nil {
		s.onReceive(l.st, x, o)
	}
	if s.trace != nil {
		s.trace("%s > %s: %s %s v%d %s: %s", s.nodes[l.peer].name, d.n.name, s.name(x.key), valueText(delta.Value), x.version, x.owner.Node, o)
	}
}

// sweepRest deletes records of the peer that the full sync did not include.
func (l *simInboundStream) sweepRest() {
	t := l.to.tab
	c := t.NewCursor(0)
	t.Update(func(tx *Tx) {
		for tx.Sweep(l.to.n.sim.nodes[l.peer].name, l.before, l.to.n.clock(), c, 3) {
		}
	})
	c.Close()
}

// endRepair deletes records of the peer in the buckets that the peer did not resend.
func (l *simInboundStream) endRepair() {
	t, j := l.to.tab, l.repair
	c := t.NewCursor(0)
	t.Update(func(tx *Tx) {
		for more := true; more; {
			var n int
			n, more = tx.SweepBuckets(l.to.n.sim.nodes[l.peer].name, j.in, j.before, l.to.n.clock(), c, 3)
			j.found += n
		}
	})
	c.Close()
	l.repair = nil
	l.to.n.sim.repaired += j.found
	l.to.n.sim.notef("%s: repair changed %d records from %s", l.to.n.name, j.found, l.to.n.sim.nodes[l.peer].name)
}
