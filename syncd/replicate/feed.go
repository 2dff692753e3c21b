package replicate

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// feed is one map on its way to one peer. It belongs to the session's sending
// goroutine but for the atomic fields.
type feed struct {
	s      *session
	index  uint32
	name   string
	theirs *mapsyncv1.Schema
	resume *mapsyncv1.Resume
	// observe has all records told, to one who holds none.
	observe bool
	// expiries: the peer understands expired records.
	expiries bool
	// tellAll has the records of all owners sent, until the receiver has been sent the
	// last one.
	tellAll bool

	unwanted atomic.Bool   // the peer has unsubscribed
	serving  atomic.Bool   // m is valid, also for other goroutines
	sent     atomic.Uint64 // position
	acked    atomic.Uint64 // position
	upToDate atomic.Bool   // nothing was left to send
	report   atomic.Pointer[receivedReport]

	telling   telling
	requested requested

	told     tale
	answered answered  // told, for other goroutines
	toldFor  *localMap // the map that was refused

	m         *localMap
	cancel    func() // of the table's wake-ups
	cursor    *table.Cursor
	enc       *encoder
	origin    uint64 // where the walk began
	open      bool   // the table is complete, so that the walk may begin
	lost      bool   // the position is below the floor
	goal      uint64 // head of the table when a walk from 0 began
	exhausted bool   // the walk reached the end
	lastSent  time.Time
	// ended says that the last batch was marked caught_up: as long as it was not, the peer waits
	// for one.
	ended bool

	// fill and rec are kept so that a batch allocates neither.
	fill func(*table.Tx)
	rec  table.Record
}

// tale is what a peer was told last about a map that is not served.
type tale uint8

const (
	toldNothing tale = iota
	toldPending
	toldRefused
)

// state returns where a map stands that is not served.
func (t tale) state() State {
	switch t {
	case toldPending:
		return StatePending
	case toldRefused:
		return StateRefused
	}
	return StateWaiting
}

// answered is a tale that other goroutines may read.
type answered struct{ v atomic.Uint32 }

func (a *answered) Load() tale   { return tale(a.v.Load()) }
func (a *answered) Store(t tale) { a.v.Store(uint32(t)) }

func newFeed(s *session, m *mapsyncv1.MapSubscription, request *ownerRequest) *feed {
	f := &feed{
		s: s, index: m.GetMap(), name: m.GetName(), theirs: m.GetSchema(), resume: m.GetResume(),
		tellAll: m.GetTellAll(), observe: m.GetObserve(), expiries: m.GetExpiries(),
	}
	f.requested.plain, f.requested.rule = m.GetOwners() == nil, 1 // 0 is a slot without any
	f.requested.request.Store(request)
	f.fill = f.look
	return f
}

// close gives up what serving took. It may be called more than once.
func (f *feed) close() {
	f.telling.close()
	f.requested.close()
	if f.cursor != nil {
		f.serving.Store(false)
		f.cancel()
		f.cursor.Close()
		f.cursor = nil
	}
}

// start begins to serve the feed if it can be served, and tells the peer what
// became of it unless it was told before.
func (f *feed) start(m *localMap) error {
	if m == nil {
		if f.told == toldPending {
			return nil
		}
		f.told, f.toldFor = toldPending, nil
		f.answered.Store(f.told)
		return f.tell(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Pending{
			Pending: &mapsyncv1.MapPending{Map: f.index},
		}})
	}
	if f.told == toldRefused && f.toldFor == m {
		return nil
	}
	if !m.access.reads(f.s.target.Node) {
		return f.refuse(m, fmt.Errorf("%w: read-from of %s does not have %q", errDenied, f.s.r.opt.Self.Node, f.s.target.Node))
	}
	if err := f.fits(m); err != nil {
		return f.refuse(m, err)
	}
	return f.serve(m)
}

// fits returns an error if the peer's map cannot hold what this one's schema
// describes. The peer asks itself the same; but here too it is to be seen why a map
// is not replicated.
func (f *feed) fits(m *localMap) error {
	if f.observe {
		return nil
	}
	theirs, err := fromProto(f.name, f.theirs)
	if err != nil {
		return err
	}
	_, err = schema.NewDecoder(m.layout.Schema, theirs, m.layout.Links)
	return err
}

func (f *feed) refuse(m *localMap, err error) error {
	f.told, f.toldFor = toldRefused, m
	f.answered.Store(f.told)
	f.s.r.count.mapsRefused.Add(1)
	f.s.r.opt.Logger.Warn("map refused to peer", slog.String("peer", f.s.target.Node),
		slog.String("map", f.name), slog.Any("error", err))
	return f.tell(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Refused{
		Refused: &mapsyncv1.MapRefused{
			Map: f.index, Reason: mapsyncv1.RefusalReason_REFUSAL_REASON_LAYOUT, Layout: m.layout.proto(),
			Text: fmt.Sprintf("map %q of %s does not fit that of %s: %v", f.name, f.s.r.opt.Self.Node, f.s.target.Node, err),
		},
	}})
}

// serve opens the walk: where the peer left off if that is still a place in this
// table's order, or else at 0.
func (f *feed) serve(m *localMap) error {
	position, reset := f.resume.GetPosition(), false
	var head, floor uint64
	m.table.View(func(tx *table.Tx) { head, floor = tx.Head(), tx.Floor() })
	if f.resume.GetIncarnation() != f.s.r.opt.Self.Incarnation || f.resume.GetGeneration() != m.generation ||
		position > head || position < floor {
		position, reset = 0, true
		f.s.r.count.walks.Add(1)
	} else {
		f.s.r.count.resumes.Add(1)
	}
	f.m, f.origin = m, position
	f.remember(reset)
	f.enc = newEncoder(f.index, f.s.r.opt.Self, m)
	f.enc.expiries, f.enc.observe = f.expiries, f.observe
	f.cursor = m.table.NewCursor(position)
	f.cancel = m.table.Subscribe(f.s.wake)
	f.sent.Store(position)
	f.serving.Store(true)
	return f.tell(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Accepted{
		Accepted: &mapsyncv1.MapAccepted{
			Map: f.index, Generation: m.generation, Position: position, Reset_: reset, Schema: m.wire,
		},
	}})
}

// end tells the peer that the subscription is over.
func (f *feed) end(reason mapsyncv1.EndReason) error {
	f.s.remove(f)
	return f.tell(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Ended{
		Ended: &mapsyncv1.MapEnded{Map: f.index, Reason: reason},
	}})
}

func (f *feed) tell(m *mapsyncv1.SubscribeResponse) error {
	if err := f.s.send.Send(m); err != nil {
		return fmt.Errorf("send answer about map %q: %w", f.name, err)
	}
	f.s.lastSent = time.Now()
	return nil
}

// step sends at most one batch, or whatever else is due about the map. It
// reports whether there is more to do at once.
func (f *feed) step(m *localMap, now time.Time) (more bool, err error) {
	switch {
	case f.unwanted.Load():
		f.s.remove(f)
		return false, nil
	case f.m == nil:
		err := f.start(m)
		return f.m != nil, err
	case f.m != m:
		return false, f.end(mapsyncv1.EndReason_END_REASON_REMOVED)
	}
	f.enc.times = f.s.r.opt.Times()
	f.telling.now = now
	f.m.table.View(f.fill)
	if f.lost {
		f.enc.drop()
		return false, f.end(mapsyncv1.EndReason_END_REASON_POSITION_LOST)
	}
	if err := f.dispatch(now); err != nil {
		return false, err
	}
	requested, err := f.sendPassed()
	if err != nil {
		return false, err
	}
	more, err = f.compare()
	return more || requested || (f.open && !f.exhausted), err
}

// encode fills a batch with the next records that the peer is to have.
func (f *feed) encode(tx *table.Tx) {
	if !f.open && !f.begin(tx) {
		return
	}
	position := f.cursor.Position()
	// A deletion that was forgotten before the walk met it is lost to the peer,
	// unless the walk began at 0 after it was made.
	if floor := tx.Floor(); floor > position && floor > f.goal {
		f.lost = true
		return
	}
	f.follow()
	rule := f.requested.rule << 1
	if f.tellAll {
		rule |= 1
	}
	f.enc.check(tx)
	f.enc.begin(tx.Head() - position)
	for n := 0; n < maxBatchWalk && f.enc.fits(); n++ {
		if !tx.Next(f.cursor, &f.rec) {
			f.exhausted = true
			return
		}
		slot := f.enc.slot(f.rec.Owner)
		if slot.rule != rule {
			owner := tx.Owner(f.rec.Owner)
			slot.rule = rule
			slot.serve = f.observe || f.requested.cover.sends(owner, f.s.target) || (f.tellAll && owner != f.s.target)
		}
		if slot.serve {
			f.enc.add(tx, slot, &f.rec)
		}
	}
	f.exhausted = f.cursor.Position() == tx.Head()
}

// begin opens the walk once the table is complete. Before, nobody knows which
// of the records are this node's.
func (f *feed) begin(tx *table.Tx) bool {
	if tx.Unversioned() > 0 {
		return false
	}
	f.open = true
	if f.origin == 0 {
		f.goal = tx.Head()
	}
	return true
}

// dispatch sends what encode made of the walk. A batch without deltas only moves
// the position: there is no hurry unless the peer waits to hear that this is
// all. A walk that may not begin yet is all, too: two nodes that start together
// would otherwise wait for each other.
func (f *feed) dispatch(now time.Time) error {
	f.noteFailed()
	previous, deltas := f.sent.Load(), f.enc.deltas
	position, end := previous, !f.open || (f.exhausted && !f.requested.pending())
	if f.open {
		position = f.cursor.Position()
	}
	f.upToDate.Store(end)
	if deltas == 0 {
		f.enc.drop()
		if (!end || f.ended) && (position == previous || now.Sub(f.lastSent) < f.s.r.opt.advance) {
			return nil
		}
	}
	f.sent.Store(position)
	f.ended, f.tellAll = end, f.tellAll && !end
	f.lastSent, f.s.lastSent = now, now
	out := f.enc.finish(previous, position, end)
	f.s.count.add(deltas, out.data.Len())
	f.s.r.count.sent.add(deltas, out.data.Len())
	if err := f.s.send.SendMsg(out); err != nil {
		return fmt.Errorf("send batch of map %q: %w", f.name, err)
	}
	return nil
}

// noteFailed counts the records that could not be encoded.
func (f *feed) noteFailed() {
	if f.enc.failed == 0 {
		return
	}
	f.s.r.count.unencodable.Add(uint64(f.enc.failed))
	f.m.logUnsent(time.Now(), f.s.r.opt.Logger)
}

// behind reports whether the peer is yet to hear of positions that hold nothing
// for it.
func (f *feed) behind() bool {
	return f.cursor != nil && f.open && f.cursor.Position() != f.sent.Load()
}
