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

	// As syncd/replicate's requested.go.
	orphaned bool        // what is requested
	serial   int         // of that
	answered int         // of the last answer
	cover    simCoverage // in force
	walk     *Cursor     // over what was passed under less
	until    uint64      // where that ends
	begin    bool        // it is to begin
}

// simRequest is what a receiver asks for: one of the four.
type simRequest struct {
	index       int
	subscribe   bool
	tellAll     bool
	resume      bool
	position    uint64
	unsubscribe bool
	retell      *BucketSet
	orphaned    bool // as part of a subscription, or alone
	serial      int  // of that
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
	serial   int    // of the request that is satisfied
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
	simRequested // records that were requested, out of turn
	simOwnersSent
)

type simDelta struct {
	key     int
	value   entryValue
	version Version
	owner   Owner
	dead    bool
	expired bool
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
		if f.walk != nil {
			f.walk.Close()
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
		st.feed = &simFeed{index: r.index, tellAll: r.tellAll, resume: r.resume, sent: r.position, orphaned: r.orphaned, serial: r.serial}
	case st.feed == nil || st.feed.index != r.index:
	case r.unsubscribe:
		st.closeFeed()
	case r.retell != nil:
		st.feed.retell = r.retell
	default:
		st.feed.orphaned, st.feed.serial = r.orphaned, r.serial
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
	f, t := st.feed, st.from.tab
	position, reset := f.sent, false
	if !f.resume || position > t.seq || position < t.floor {
		position, reset = 0, true
	}
	f.origin, f.sent = position, position
	f.cursor = t.NewCursor(position)
	return st.send(simMessage{kind: simAccepted, position: position, reset: reset})
}

func (st *simStream) step(limit int) bool {
	d, f := st.from, st.feed
	var batch, again, requested []simDelta
	lost, over, walked := false, false, false
	d.tab.View(func(tx *Tx) {
		lost = !st.encode(tx, limit, &batch)
		if !lost && f.walk != nil && !f.begin {
			walked = st.requested(tx, limit, &requested)
		}
		if !lost && f.open && f.ended && f.tale != nil {
			over = st.again(tx, limit, &again)
		}
	})
	if lost {
		st.send(simMessage{kind: simLost})
		st.closeFeed()
		return true
	}
	f.walkRequested(d.tab, walked)
	sent := st.dispatch(batch)
	if len(requested) > 0 {
		sent = st.send(simMessage{kind: simRequested, previous: f.sent, position: f.sent, deltas: requested})
	}
	if f.serial != f.answered && f.walk == nil {
		f.answered = f.serial
		sent = st.send(simMessage{kind: simOwnersSent, serial: f.serial})
	}
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
	st.follow()
	f.ended = false
	var r Record
	for n := 0; n < 4*limit && len(*batch) < limit; n++ {
		if !tx.Next(f.cursor, &r) {
			f.ended = true
			return true
		}
		o := tx.Owner(r.Owner)
		own := o == st.to.self
		if !own && (f.tellAll || f.cover.sends(o, d.n.sim.node(o.Node), st.to)) && r.Version != 0 {
			*batch = append(*batch, st.delta(&r, o))
		}
	}
	f.ended = f.cursor.Position() == tx.Head()
	return true
}

// follow puts the newest request and view in force. The table is locked.
func (st *simStream) follow() {
	f, c := st.feed, simCoverage{st.from.view, st.feed.orphaned}
	if c == f.cover {
		return
	}
	grown := c.exceeds(&f.cover)
	if f.cover = c; grown && f.cursor.Position() > 0 {
		f.begin, f.until = true, f.cursor.Position()
	}
}

// requested fills a batch with records that the stream has passed under less.
func (st *simStream) requested(tx *Tx, limit int, batch *[]simDelta) (over bool) {
	f, s := st.feed, st.from.n.sim
	var r Record
	for n := 0; n < 4*limit && len(*batch) < limit; n++ {
		if !tx.Next(f.walk, &r) || r.Position > f.until {
			return true
		}
		o := tx.Owner(r.Owner)
		if node := s.node(o.Node); node != st.to.n.id && node != st.from.n.id && f.cover.sends(o, node, st.to) && r.Version != 0 {
			*batch = append(*batch, st.delta(&r, o))
		}
	}
	return false
}

// walkRequested closes a walk that is over, and begins one that is due.
func (f *simFeed) walkRequested(t *Table, over bool) {
	if over || f.begin {
		if f.walk != nil {
			f.walk.Close()
			f.walk = nil
		}
		if f.begin {
			f.begin, f.walk = false, t.NewCursor(0)
		}
	}
}

func (st *simStream) delta(r *Record, o Owner) simDelta {
	x := simDelta{key: st.from.n.sim.key(r.Key), version: r.Version, owner: o, dead: r.Delete, expired: r.Expired}
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
	end, position := !f.open || (f.ended && f.walk == nil), f.sent
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
