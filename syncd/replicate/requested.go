package replicate

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// requested is the part of an outbound map stream that sends what the receiver requests.
// It belongs to the sending goroutine but for the atomic field.
type requested struct {
	request atomic.Pointer[ownerRequest]
	plain   bool // the receiver makes no requests and is not answered

	cover    coverage    // in force
	rule     uint64      // number of the coverage, for ownerSlot
	states   []delivered // the last one counts
	from     bool        // walk is to begin, up to until
	until    uint64
	walk     *ownerWalk
	dropped  *ownerWalk // is to be closed once the table is unlocked
	answered uint64     // serial of the last OwnersSent
	done     bool       // OwnersSent is due
	sources  *[]string  // sent last
}

// ownerWalk is a walk over records that the stream has passed.
type ownerWalk struct {
	cursor *table.Cursor
	enc    *encoder
	rec    table.Record
	over   bool
}

// pending reports whether records are to be sent that the stream has passed.
func (q *requested) pending() bool { return q.from || q.walk != nil }

// close gives up the walk. The table must not be locked.
func (q *requested) close() {
	q.closeDropped()
	q.dropped, q.walk = q.walk, nil
	q.closeDropped()
}

// closeDropped gives up the walk that was dropped under the table's lock.
func (q *requested) closeDropped() {
	if q.dropped != nil {
		q.dropped.cursor.Close()
		q.dropped.enc.drop()
		q.dropped = nil
	}
}

// follow puts the newest request and view in force, before any record is looked at. The
// table is locked, so that what is deleted or taken over later comes after.
func (f *feed) follow() {
	q := &f.requested
	c := coverage{f.s.r.view.Load(), q.request.Load()}
	if f.observe || c == q.cover {
		return
	}
	if q.cover.view != nil && c.view != q.cover.view {
		f.telling.hurry.Store(true) // the receiver compares only under the same membership
	}
	again := c.request.again && c.request != q.cover.request
	grown := again || c.exceeds(q.cover)
	q.cover, q.rule = c, q.rule+1
	for i := range q.states {
		if again {
			q.states[i].trail = []coverage{{}}
		}
		q.states[i].add(c)
	}
	switch position := f.cursor.Position(); {
	case grown && position > 0:
		if q.walk != nil { // begin again, with more owners
			q.dropped, q.walk = q.walk, nil
		}
		q.from, q.until = true, position
	case !q.pending():
		// Nothing is missing of what this coverage has.
		q.states[len(q.states)-1].trail = []coverage{c}
	}
	f.m.memory.note(f.s.target, q.states)
}

// remember takes up what the receiver has that resumes, or has nothing yet.
func (f *feed) remember(reset bool) {
	q := &f.requested
	if reset {
		q.states = []delivered{{token: f.m.memory.token()}}
		return
	}
	was := f.m.memory.find(f.s.target, q.request.Load().token)
	if was.token == 0 {
		was.token = f.m.memory.token()
	}
	q.states = []delivered{was}
	if n := len(was.trail); n == 1 {
		q.cover = was.trail[0]
	}
}

// passed fills a batch with records that the stream has passed and the receiver lacks.
func (f *feed) passed(tx *table.Tx) {
	q := &f.requested
	w, was := q.walk, &q.states[len(q.states)-1]
	w.enc.times = f.enc.times
	w.enc.check(tx)
	w.enc.begin(maxBatchDeltas)
	for n := 0; n < maxBatchWalk && w.enc.fits(); n++ {
		if !tx.Next(w.cursor, &w.rec) || w.rec.Position > q.until {
			w.over = true
			return
		}
		slot := w.enc.slot(w.rec.Owner)
		if slot.rule != q.rule {
			owner := tx.Owner(w.rec.Owner)
			slot.rule = q.rule
			slot.serve = owner.Node != f.s.target.Node && owner.Node != q.cover.view.self.Node &&
				q.cover.has(owner.Node) && !was.lacksNothing(owner.Node)
		}
		if slot.serve {
			w.enc.add(tx, slot, &w.rec)
		}
	}
}

// lacksNothing reports whether the receiver has a node's records. The last coverage is the
// one that the walk is for.
func (d *delivered) lacksNothing(node string) bool {
	return !slices.ContainsFunc(d.trail[:len(d.trail)-1], func(c coverage) bool { return !c.has(node) })
}

// sendPassed sends what passed made, and answers requests that are satisfied. It reports
// whether there is more to do at once.
func (f *feed) sendPassed() (more bool, err error) {
	q := &f.requested
	q.closeDropped()
	if q.from {
		q.from = false
		q.walk = &ownerWalk{cursor: f.m.table.NewCursor(0), enc: newEncoder(f.index, f.s.r.opt.Self, f.m)}
		q.walk.enc.requested, q.walk.enc.expiries = true, f.expiries
		return true, nil
	}
	if w := q.walk; w != nil { // passed has filled a batch
		over := w.over
		if err := f.sendOutOfTurn(w.enc); err != nil {
			return false, err
		}
		if over {
			q.close()
			q.states = []delivered{q.states[len(q.states)-1], {f.m.memory.token(), []coverage{q.cover}}}
			f.m.memory.note(f.s.target, q.states)
			q.done = true
			more = !f.ended // the end of the stream comes after this
		}
	}
	return more || q.walk != nil, f.answerRequest()
}

// sendOutOfTurn sends a batch that does not move the position.
func (f *feed) sendOutOfTurn(e *encoder) error {
	deltas := e.deltas
	if deltas == 0 {
		e.drop()
		return nil
	}
	f.s.lastSent = time.Now()
	out := e.finish(f.sent.Load(), f.sent.Load(), false)
	f.s.count.add(deltas, out.data.Len())
	f.s.r.count.sent.add(deltas, out.data.Len())
	if err := f.s.send.SendMsg(out); err != nil {
		return fmt.Errorf("send batch of map %q out of turn: %w", f.name, err)
	}
	return nil
}

// answerRequest sends OwnersSent and Sources when they are due. A table that is not complete yet has
// nothing to send: two nodes that start together would otherwise wait for each other.
func (f *feed) answerRequest() error {
	q := &f.requested
	if q.plain || f.observe {
		return nil
	}
	request := q.request.Load()
	if f.open {
		request = q.cover.request
	}
	if q.done || (request.serial != q.answered && !q.pending()) {
		q.done, q.answered = false, request.serial
		err := f.tell(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_OwnersSent{
			OwnersSent: &mapsyncv1.OwnersSent{Map: f.index, Serial: request.serial, Token: q.states[len(q.states)-1].token},
		}})
		if err != nil {
			return err
		}
	}
	sources := f.m.sources.Load()
	if sources == q.sources || (q.sources == nil && len(*sources) == 0) {
		return nil
	}
	q.sources = sources
	return f.tell(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Sources{
		Sources: &mapsyncv1.Sources{Map: f.index, Nodes: *sources},
	}})
}

// requestOwners takes in a request. The lock is held.
func (s *session) requestOwners(m *mapsyncv1.OwnerRequest) error {
	if m.GetMap() == 0 || m.GetMap() > s.lastIndex {
		return fmt.Errorf("request records for unknown subscription %d: %w", m.GetMap(), errProtocol)
	}
	f := s.find(m.GetMap())
	if f == nil {
		return nil // it ended meanwhile
	}
	q, err := readOwners(m)
	switch {
	case err != nil:
		return err
	case f.observe || f.requested.plain:
		return fmt.Errorf("request records of map %q without having begun with that: %w", f.name, errProtocol)
	case q.serial <= f.requested.request.Load().serial:
		return fmt.Errorf("request %d for records of map %q after %d: %w", q.serial, f.name, f.requested.request.Load().serial, errProtocol)
	}
	f.requested.request.Store(q)
	poke(s.wake)
	return nil
}
