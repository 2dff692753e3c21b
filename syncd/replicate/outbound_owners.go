package replicate

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// outboundOwners is the part of an outbound map stream that answers owner requests. The stream
// itself sends the records of the coverage in force. If the coverage grows, a backfill sends the
// records that the stream has passed already, and OwnersSent confirms that all are sent.
//
// The sending goroutine owns it, except for the atomic field. encode changes it with the lock of
// the table held, so that a coverage begins between two records.
type outboundOwners struct {
	// request is the newest request of the receiver; never nil. The receiving goroutine stores it,
	// and the next step applies it.
	request atomic.Pointer[ownerRequest]
	// noRequests reports that the receiver sends no owner requests and gets no answers. It does
	// not change.
	noRequests bool

	// coverage is the coverage in force; zero before the first one. applyRequest replaces it. Its
	// view may be older than Replicator.view until the next step.
	coverage coverage
	// epoch is the number of the coverage, for wire.OwnerSlot.epoch. It starts at 1. A decision
	// about an owner under an earlier coverage does not hold.
	epoch uint64
	// deliveries are the delivery states of the receiver, at most two, the current one last. Not
	// empty while the map is served. Two are kept until the next OwnersSent, because the receiver
	// may not have got the last one.
	deliveries []deliveryState
	// backfillDue reports that a backfill up to backfillEnd has to begin. If it is set, backfill is
	// nil. sendBackfill opens the cursor, which needs an unlocked table.
	backfillDue bool
	// backfillEnd is the position of the stream when the backfill became due. The stream itself
	// sends the records above it.
	backfillEnd uint64
	// backfill is the backfill in progress; nil: none.
	backfill *ownerBackfill
	// droppedBackfill is a backfill to close once the table is unlocked; nil: none. applyRequest
	// sets it while the table is locked.
	droppedBackfill *ownerBackfill
	// answeredSerial is the serial of the last OwnersSent. The receiver waits for the answer before
	// it counts its records as complete.
	answeredSerial uint64
	// answerDue reports that an OwnersSent is due because a backfill has ended.
	answerDue bool
	// sentSources are the sources that were last sent; nil: none. Pointers are compared, because
	// publishRoles stores a new slice with each change.
	sentSources *[]string
}

// ownerBackfill is a pass over records that the stream has passed already.
//
// The stream goes on meanwhile. A record that changes during the pass moves above backfillEnd, and
// the stream sends it.
type ownerBackfill struct {
	// cursor is the place of the pass in the table.
	cursor *table.Cursor
	// enc encodes the batches; all are marked as requested.
	enc *wire.Encoder
	// rec is reused for every record.
	rec table.Record
	// atEnd reports that the pass has reached backfillEnd.
	atEnd bool
}

// pending reports whether a backfill is due or in progress.
func (q *outboundOwners) pending() bool { return q.backfillDue || q.backfill != nil }

// close ends the backfill. The caller must not hold the table's lock. It may be called more than
// once.
func (q *outboundOwners) close() {
	q.closeDropped()
	q.droppedBackfill, q.backfill = q.backfill, nil
	q.closeDropped()
}

// closeDropped closes the backfill that was dropped under the table's lock.
func (q *outboundOwners) closeDropped() {
	if q.droppedBackfill != nil {
		q.droppedBackfill.cursor.Close()
		q.droppedBackfill.enc.Release()
		q.droppedBackfill = nil
	}
}

// applyRequest puts the newest request and view in force before encode reads a record. The caller
// holds the table's lock, so later deletes and changes of ownership come after it in the stream.
//
// A larger coverage starts a backfill from position 0. A smaller one needs none: the receiver has
// more than it requests.
func (out *outboundMap) applyRequest() {
	q := &out.owners
	// The view and the request are read together here. Both are immutable.
	c := coverage{out.s.r.view.Load(), q.request.Load()}
	// An observer receives the records of all owners in any case.
	if out.observe || c == q.coverage {
		return
	}
	if q.coverage.view != nil && c.view != q.coverage.view {
		out.comparison.digestNow.Store(true) // the receiver compares only under the same membership
	}
	// A request with the resend flag invalidates what was delivered before.
	again := c.request.resend && c.request != q.coverage.request
	grown := again || c.exceeds(q.coverage)
	q.coverage, q.epoch = c, q.epoch+1
	for i := range q.deliveries {
		if again {
			q.deliveries[i].history = []coverage{{}}
		}
		q.deliveries[i].add(c)
	}
	switch position := out.cursor.Position(); {
	case grown && position > 0:
		if q.backfill != nil { // start again with more owners
			q.droppedBackfill, q.backfill = q.backfill, nil
		}
		q.backfillDue, q.backfillEnd = true, position
	case !q.pending():
		// The receiver has all records that this coverage includes. The history need not include
		// earlier coverages any more, so it stays short.
		q.deliveries[len(q.deliveries)-1].history = []coverage{c}
	}
	// It is stored before a record is sent under the new coverage. A resume after a broken stream
	// therefore assumes less than the receiver has, never more.
	out.m.deliveries.store(out.s.target, q.deliveries)
}

// restoreDeliveries sets the delivery state of a receiver that resumes, or that has received
// nothing yet.
//
// A receiver that resumes names the token of the last OwnersSent that it got. If this node has no
// state for it, the receiver counts as having no records of other owners, and gets them again.
// serve calls it before the first step.
func (out *outboundMap) restoreDeliveries(reset bool) {
	q := &out.owners
	if reset {
		q.deliveries = []deliveryState{{token: out.m.deliveries.newToken()}}
		return
	}
	was := out.m.deliveries.load(out.s.target, q.request.Load().token)
	if was.token == 0 {
		was.token = out.m.deliveries.newToken()
	}
	// A history with one coverage means that the receiver has everything that this coverage
	// includes, so it is in force until a new request arrives.
	q.deliveries = []deliveryState{was}
	if n := len(was.history); n == 1 {
		q.coverage = was.history[0]
	}
}

// encodeBackfill fills a batch with records that the stream has passed and that the receiver does
// not have. The caller holds the table's lock.
//
// It leaves out the records of this node and of earlier incarnations of the receiver, which the
// stream sends under any coverage. It also leaves out owners that every coverage since the last
// OwnersSent includes.
func (out *outboundMap) encodeBackfill(tx *table.Tx) {
	q := &out.owners
	w, was := q.backfill, &q.deliveries[len(q.deliveries)-1]
	w.enc.Begin(tx, wire.MaxBatchDeltas, out.times)
	for n := 0; n < maxBatchScan && w.enc.Fits(); n++ {
		if !tx.Next(w.cursor, &w.rec) || w.rec.Position > q.backfillEnd {
			w.atEnd = true
			return
		}
		slot := w.enc.Slot(w.rec.Owner)
		// The decision about an owner holds until the coverage changes.
		if slot.Epoch != q.epoch {
			owner := tx.Owner(w.rec.Owner)
			slot.Epoch = q.epoch
			slot.Send = owner.Node != out.s.target.Node && owner.Node != q.coverage.view.self.Node &&
				q.coverage.includes(owner.Node) && !was.deliveredBefore(owner.Node)
		}
		if slot.Send {
			w.enc.Add(tx, slot, &w.rec)
		}
	}
}

// deliveredBefore reports whether the receiver has the records of a node. The last coverage of the
// history is the one that the backfill is for. A coverage that did not include the node left out
// some of its records.
func (d *deliveryState) deliveredBefore(node string) bool {
	return !slices.ContainsFunc(d.history[:len(d.history)-1], func(c coverage) bool { return !c.includes(node) })
}

// sendBackfill sends the batch that encodeBackfill has filled, and answers requests that are
// satisfied. It reports whether there is more to send at once.
//
// The sending goroutine calls it in each step, after the batch of the stream, with the table
// unlocked. The error is that of Send and ends the stream.
func (out *outboundMap) sendBackfill() (more bool, err error) {
	q := &out.owners
	// The table is unlocked here, so cursors may be opened and closed.
	q.closeDropped()
	if q.backfillDue && out.allowScan(out.m, out.comparison.now) {
		q.backfillDue = false
		// It begins at position 0: nothing records where the records of an owner are.
		q.backfill = &ownerBackfill{
			cursor: out.m.table.NewCursor(0),
			enc:    out.m.newEncoder(out.s.r.opt.Self, wire.EncoderOptions{Index: out.index, Requested: true}),
		}
		return true, nil
	}
	if w := q.backfill; w != nil { // encodeBackfill has filled a batch
		atEnd := w.atEnd
		if err := out.sendOutOfTurn(w.enc); err != nil {
			return false, err
		}
		// The backfill is complete. The previous state is kept, because the receiver may not get
		// the OwnersSent with the new token.
		if atEnd {
			q.close()
			q.deliveries = []deliveryState{q.deliveries[len(q.deliveries)-1], {out.m.deliveries.newToken(), []coverage{q.coverage}}}
			out.m.deliveries.store(out.s.target, q.deliveries)
			q.answerDue = true
			more = !out.caughtUpSent // the caught-up batch of the stream comes after this
		}
	}
	return more || q.backfill != nil, out.answerRequest()
}

// sendOutOfTurn sends a batch that does not advance the position, or releases a batch without
// deltas. previous_position and position are both the position of the stream, so the receiver
// detects no gap.
func (out *outboundMap) sendOutOfTurn(e *wire.Encoder) error {
	deltas := e.Deltas()
	if deltas == 0 {
		e.Release()
		return nil
	}
	out.s.lastSent = time.Now()
	batch := e.Finish(out.sentPosition.Load(), out.sentPosition.Load(), false)
	out.s.count.add(deltas, batch.Len())
	out.sent.add(deltas, batch.Len())
	out.s.r.count.sent.add(deltas, batch.Len())
	if err := out.s.send.SendMsg(batch); err != nil {
		return fmt.Errorf("send batch of map %q out of turn: %w", out.name, err)
	}
	return nil
}

// answerRequest sends OwnersSent and Sources when they are due. A table that is not complete yet
// counts as sent: otherwise two nodes that start together would wait for each other. The receiver
// then does not wait for records that this node cannot send yet. A receiver that sends requests
// includes one in each subscription, so it gets at least one answer.
func (out *outboundMap) answerRequest() error {
	q := &out.owners
	if q.noRequests || out.observe {
		return nil
	}
	// The table is not complete: encode has not put the request in force.
	request := q.request.Load()
	if out.tableComplete {
		request = q.coverage.request
	}
	if q.answerDue || (request.serial != q.answeredSerial && !q.pending()) {
		q.answerDue, q.answeredSerial = false, request.serial
		err := out.send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_OwnersSent{
			OwnersSent: &mapsyncv1.OwnersSent{Map: out.index, Serial: request.serial, Token: q.deliveries[len(q.deliveries)-1].token},
		}})
		if err != nil {
			return err
		}
	}
	// A receiver without a Sources message assumes an empty list.
	sources := out.m.sources.Load()
	if sources == q.sentSources || (q.sentSources == nil && len(*sources) == 0) {
		return nil
	}
	q.sentSources = sources
	return out.send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Sources{
		Sources: &mapsyncv1.Sources{Map: out.index, Nodes: *sources},
	}})
}

// handleOwnerRequest stores a request, which replaces the one before. The next step of the map
// stream applies it. The caller holds outboundStream.mu. The errors wrap errProtocol and end the
// stream.
func (s *outboundStream) handleOwnerRequest(m *mapsyncv1.OwnerRequest) error {
	if m.GetMap() == 0 || m.GetMap() > s.lastIndex {
		return fmt.Errorf("request records for unknown subscription %d: %w", m.GetMap(), errProtocol)
	}
	out := s.findMap(m.GetMap())
	if out == nil {
		return nil // it has ended in the meantime
	}
	q, err := readOwners(m)
	switch {
	case err != nil:
		return err
	case out.observe || out.owners.noRequests:
		return fmt.Errorf("request records of map %q on a subscription without owner requests: %w", out.name, errProtocol)
	case q.serial <= out.owners.request.Load().serial:
		// Serials increase, so that an OwnersSent answers one request only.
		return fmt.Errorf("request %d for records of map %q after %d: %w", q.serial, out.name, out.owners.request.Load().serial, errProtocol)
	}
	out.owners.request.Store(q)
	poke(s.wake)
	return nil
}
