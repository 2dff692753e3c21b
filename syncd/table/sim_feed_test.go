package table

import (
	"slices"
	"time"
)

// simStream is a stream between two lives of daemons: syncd/replicate's session.go and
// feed.go at its one end, link.go and intake.go at the other (sim_intake_test.go).
type simStream struct {
	from, to *simDaemon
	up       []simRequest
	down     []simMessage
	broken   bool // nothing more gets into it
	left     bool // the receiver has gone away
	feed     *simFeed
	last     int // subscription
}

// simFeed is the map on its way to one peer.
type simFeed struct {
	index   int
	tellAll bool
	resume  bool
	told    bool // that there is no map
	cursor  *Cursor
	origin  uint64
	goal    uint64
	sent    uint64
	open    bool
	ended   bool // the walk is at its end
	caught  bool // the peer was told that there is nothing more
	moved   int64
	retell  *BucketSet
	tale    *Cursor
}

// simRequest is what a receiver asks for: one of the three.
type simRequest struct {
	index       int
	subscribe   bool
	tellAll     bool
	resume      bool
	position    uint64
	unsubscribe bool
	retell      *BucketSet
}

// simMessage is what a sender says.
type simMessage struct {
	kind     simKind
	index    int
	previous uint64
	position uint64
	reset    bool
	end      bool   // nothing was left to send
	passed   uint64 // of an open walk that told all: the position at its end
	deltas   []simDelta
}

type simKind uint8

const (
	simPending simKind = iota
	simAccepted
	simBatch
	simRetoldBatch
	simRetold
	simLost
)

type simDelta struct {
	key     int
	value   entryValue
	version Version
	owner   Owner
	dead    bool
}

const (
	simWindow  = 6 // messages under way
	simAdvance = int64(100 * time.Millisecond)
)

// end is the end of a stream for its sender. What was sent may still arrive.
func (st *simStream) end() {
	st.closeFeed()
	st.broken = true
	d := st.from
	d.sessions = slices.DeleteFunc(d.sessions, func(o *simStream) bool { return o == st })
}

func (st *simStream) closeFeed() {
	if f := st.feed; f != nil {
		if f.cursor != nil {
			f.cursor.Close()
		}
		if f.tale != nil {
			f.tale.Close()
		}
		st.feed = nil
	}
}

// checkPeer ends a session whose peer is gone or has started anew.
func (st *simStream) checkPeer(old, v *simView) {
	to := st.to.n.id
	if inc := v.live[to]; (inc == 0 && old.live[to] != 0) || inc > st.to.self.Incarnation {
		st.end()
	}
}

// serve is a turn of the sender: it takes in what was asked, and sends at most one batch
// of at most limit records, or whatever else is due. It reports whether it sent anything.
func (st *simStream) serve(limit int) bool {
	d := st.from
	if st.broken || st.left {
		st.end()
		return true
	}
	if !d.n.sim.cuts[st.to.n.id][d.n.id] {
		for _, r := range st.up {
			st.handle(&r)
		}
		st.up = st.up[:0]
	}
	f := st.feed
	switch {
	case f == nil || len(st.down) >= simWindow:
		return false
	case !d.known:
		if !f.told {
			f.told = true
			return st.send(simMessage{kind: simPending})
		}
		return false
	case f.cursor == nil:
		return st.accept()
	}
	return st.step(limit)
}

func (st *simStream) send(m simMessage) bool {
	m.index = st.feed.index
	st.down = append(st.down, m)
	if m.kind != simBatch {
		st.from.n.sim.moves++
	}
	st.feed.moved = st.from.n.sim.now
	return true
}

func (st *simStream) handle(r *simRequest) {
	switch {
	case r.subscribe:
		if st.last == 0 {
			st.replace()
		}
		st.closeFeed()
		st.last = r.index
		st.feed = &simFeed{index: r.index, tellAll: r.tellAll, resume: r.resume, sent: r.position}
	case st.feed == nil || st.feed.index != r.index:
	case r.unsubscribe:
		st.closeFeed()
	case r.retell != nil:
		st.feed.retell = r.retell
	}
}

// replace ends the peer's other streams.
func (st *simStream) replace() {
	for i := len(st.from.sessions) - 1; i >= 0; i-- {
		if o := st.from.sessions[i]; o != st && o.to.n == st.to.n && o.last > 0 {
			o.end()
		}
	}
}

// accept opens the walk: where the peer left off if that is still a place in the order, or
// else at 0.
func (st *simStream) accept() bool {
	f, d, to, t := st.feed, st.from, st.to, st.from.tab
	position, reset := f.sent, false
	if !f.resume || position > t.seq || position < t.floor {
		position, reset = 0, true
	}
	if p := d.passed[to.n.id]; p.inc == to.self.Incarnation && !reset {
		d.planTouch(p.view, to.n.id)
	}
	f.origin, f.sent = position, position
	f.cursor = t.NewCursor(position)
	return st.send(simMessage{kind: simAccepted, position: position, reset: reset})
}

func (st *simStream) step(limit int) bool {
	d, f := st.from, st.feed
	var batch, again []simDelta
	lost, over := false, false
	d.tab.View(func(tx *Tx) {
		lost = !st.encode(tx, limit, &batch)
		if !lost && f.open && f.ended && f.tale != nil {
			over = st.again(tx, limit, &again)
		}
	})
	if lost {
		st.send(simMessage{kind: simLost})
		st.closeFeed()
		return true
	}
	sent := st.dispatch(batch)
	switch {
	case f.retell == nil:
		return sent
	case f.tale == nil:
		if f.open {
			f.tale = d.tab.NewCursor(0)
		}
		return sent || f.open
	}
	if len(again) > 0 {
		sent = st.send(simMessage{kind: simRetoldBatch, previous: f.sent, position: f.sent, deltas: again})
	}
	if over {
		f.tale.Close()
		f.tale, f.retell = nil, nil
		sent = st.send(simMessage{kind: simRetold})
	}
	return sent
}

// encode fills a batch with the next records that the peer is to have. It returns false
// when a deletion was forgotten before the walk met it.
func (st *simStream) encode(tx *Tx, limit int, batch *[]simDelta) bool {
	d, f := st.from, st.feed
	if !f.open {
		if tx.Unversioned() > 0 {
			return true
		}
		f.open = true
		if f.origin == 0 {
			f.goal = tx.Head()
		}
	}
	if floor := tx.Floor(); floor > f.cursor.Position() && floor > f.goal {
		return false
	}
	d.passed[st.to.n.id] = simPassed{st.to.self.Incarnation, d.view}
	f.ended = false
	var r Record
	for n := 0; n < 4*limit && len(*batch) < limit; n++ {
		if !tx.Next(f.cursor, &r) {
			f.ended = true
			return true
		}
		o := tx.Owner(r.Owner)
		own := o == st.to.self
		if !own && (f.tellAll || d.view.serves(d.n.sim.node(o.Node), o.Incarnation, st.to)) && r.Version != 0 {
			*batch = append(*batch, st.delta(&r, o))
		}
	}
	f.ended = f.cursor.Position() == tx.Head()
	return true
}

func (st *simStream) delta(r *Record, o Owner) simDelta {
	x := simDelta{key: st.from.n.sim.key(r.Key), version: r.Version, owner: o, dead: r.Delete}
	copy(x.value[:], r.Value)
	if st.from.n.opt.Carried != nil {
		x.value[localByte] = 0
	}
	return x
}

// again fills a batch with the next records in the buckets that are told again.
func (st *simStream) again(tx *Tx, limit int, batch *[]simDelta) (over bool) {
	f := st.feed
	var r Record
	for n := 0; n < 4*limit && len(*batch) < limit; n++ {
		if !tx.Next(f.tale, &r) {
			return true
		}
		if r.Version != 0 && f.retell.Has(tx.Bucket(r.Key)) {
			*batch = append(*batch, st.delta(&r, tx.Owner(r.Owner)))
		}
	}
	return false
}

// dispatch sends what encode made of the walk. A walk that may not begin yet is all, too.
func (st *simStream) dispatch(batch []simDelta) bool {
	f := st.feed
	end, position := !f.open || f.ended, f.sent
	if f.open {
		position = f.cursor.Position()
	}
	if len(batch) == 0 && (!end || f.caught) && (position == f.sent || st.from.n.sim.now-f.moved < simAdvance) {
		return false
	}
	m := simMessage{kind: simBatch, previous: f.sent, position: position, end: end, deltas: batch}
	if f.open && end && f.tellAll {
		m.passed = position
	}
	f.sent, f.caught = position, f.caught || end
	f.tellAll = f.tellAll && !f.caught
	return st.send(m)
}
