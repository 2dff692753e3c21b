package tabletest

import (
	"slices"
	"time"

	"mapsync/syncd/table"
)

// stream is a stream between the incarnations of two daemons. It corresponds to outbound_stream.go
// and outbound_map.go of syncd/replicate at one end. It corresponds to inbound_stream.go and
// inbound_map.go at the other end (inbound.go of this package).
//
// A stream carries one map. Messages arrive in order or not at all. Each end acts only in its own steps,
// so both may be far apart.
type stream struct {
	from, to     *Daemon      // the sender and the receiver
	requests     []request    // from the receiver, in flight, oldest first
	messages     []message    // from the sender, in flight, oldest first
	broken       bool         // the stream accepts no further messages
	receiverLeft bool         // the receiver has closed its end
	outbound     *outboundMap // nil: no subscription
	last         int          // index of the last subscription
}

// outboundMap sends the map to one peer.
//
// sent is at most the position of cursor, because the cursor also passes records that are not for the
// peer.
type outboundMap struct {
	index        int              // number of the subscription
	sendAll      bool             // the records of all owners are sent until the end of the stream is reached
	resume       bool             // the peer has a position
	epoch        int              // of that position: see Daemon.epoch
	pendingSent  bool             // a message has reported that the map is absent
	cursor       *table.Cursor    // nil until the subscription is accepted
	origin       uint64           // the position at which the stream began
	goal         uint64           // the head when a full sync began; 0: a resume
	sent         uint64           // the position that was sent last, or that the peer asks for
	open         bool             // the table is complete, so records are sent
	wasComplete  bool             // the table was complete before a new map
	ended        bool             // the full sync or resume has reached its end
	caughtUp     bool             // the peer was informed that nothing is left to send
	sentAt       int64            // the time of the last message
	resend       *table.BucketSet // the buckets to resend; nil: none
	resendKey    uint64           // the DigestID to which they belong
	resendCursor *table.Cursor    // nil unless a resend is in progress

	handover table.Handover // what the peer was informed of

	// The following fields correspond to outbound_owners.go of syncd/replicate.
	orphaned        bool          // orphaned records are requested
	serial          int           // serial of the last request
	again           bool          // the last request asks for all records again
	answered        int           // serial of the last answered request
	coverage        coverage      // the coverage in force
	requestedCursor *table.Cursor // reads records that the stream passed under a smaller coverage
	requestedUntil  uint64        // the position at which requestedCursor ends
	requestedDue    bool          // a new requestedCursor is due
}

const (
	window          = 6 // limit of messages in flight
	advanceInterval = int64(100 * time.Millisecond)
)

// end ends a stream at the sender. Messages in flight may still arrive. It may be called more than once.
func (st *stream) end() {
	st.closeOutbound()
	st.broken = true
	d := st.from
	d.outbound = slices.DeleteFunc(d.outbound, func(o *stream) bool { return o == st })
}

// closeOutbound ends the subscription and releases its cursors. No table may be locked.
func (st *stream) closeOutbound() {
	if f := st.outbound; f != nil {
		if f.cursor != nil {
			f.cursor.Close()
		}
		if f.resendCursor != nil {
			f.resendCursor.Close()
		}
		if f.requestedCursor != nil {
			f.requestedCursor.Close()
		}
		st.outbound = nil
	}
}

// checkPeer ends the stream if its peer has left or has restarted.
func (st *stream) checkPeer(old, v *view) {
	to := st.to.n.ID
	if inc := v.live[to]; (inc == 0 && old.live[to] != 0) || inc > st.to.self.Incarnation {
		st.end()
	}
}

// serve gives the sender a turn. It handles the requests, and sends at most one batch of at most limit
// records, or another message that is due. It reports whether it sent anything. A full window stops the
// sender, as flow control does with a peer that does not read.
func (st *stream) serve(limit int) bool {
	d := st.from
	d.noteForgottenEarly()
	if st.broken || st.receiverLeft {
		st.end()
		return true
	}
	if !d.n.world.Cuts[st.to.n.ID][d.n.ID] {
		for _, r := range st.requests {
			st.handle(&r)
		}
		st.requests = st.requests[:0]
	}
	f := st.outbound
	switch {
	case f == nil || len(st.messages) >= window:
		return false
	case !d.wasOffered:
		if !f.pendingSent {
			f.pendingSent = true
			return st.send(message{kind: messagePending})
		}
		return false
	case f.cursor == nil:
		return st.accept()
	}
	return st.step(limit)
}

// send puts a message on the stream and returns true. A batch alone does not count as progress, because
// one without records may repeat for ever.
func (st *stream) send(m message) bool {
	m.index = st.outbound.index
	st.messages = append(st.messages, m)
	if m.kind != messageBatch {
		st.from.n.world.moves++
	}
	st.outbound.sentAt = st.from.n.world.Now
	return true
}

// handle handles one request. It ignores requests about a subscription that has ended.
func (st *stream) handle(r *request) {
	switch {
	case r.subscribe:
		if st.last == 0 {
			st.replace()
		}
		st.closeOutbound()
		st.last = r.index
		st.outbound = &outboundMap{index: r.index, sendAll: r.sendAll, resume: r.resume, epoch: r.epoch, sent: r.position, orphaned: r.orphaned, serial: r.serial, again: r.again}
	case st.outbound == nil || st.outbound.index != r.index:
	case r.unsubscribe:
		st.closeOutbound()
	case r.resend != nil:
		st.outbound.resend, st.outbound.resendKey = r.resend, r.resendKey
	default:
		st.outbound.orphaned, st.outbound.serial, st.outbound.again = r.orphaned, r.serial, r.again
	}
}

// replace ends the other streams of the peer.
func (st *stream) replace() {
	for i := len(st.from.outbound) - 1; i >= 0; i-- {
		if o := st.from.outbound[i]; o != st && o.to.n == st.to.n && o.last > 0 {
			o.end()
		}
	}
}

// accept opens the subscription. It resumes at the position of the peer if the table can still send from
// there. Otherwise it begins a full sync at position 0. The conditions are those of outboundMap.serve in
// syncd/replicate.
func (st *stream) accept() bool {
	f, d := st.outbound, st.from
	position, reset := f.sent, false
	if !f.resume || f.epoch != d.epoch || position > d.head() || position < d.floor() {
		position, reset = 0, true
	}
	f.origin, f.sent = position, position
	f.cursor = d.tab.NewCursor(position)
	f.handover = d.ownHandover()
	return st.send(message{kind: messageAccepted, position: position, epoch: d.epoch, reset: reset, handover: f.handover})
}

// step sends what is due, in the order of syncd/replicate: a batch of the stream, requested records, the
// answer to a request, resent records. It reports whether it sent anything.
func (st *stream) step(limit int) bool {
	d, f := st.from, st.outbound
	var batch, resent, requested []delta
	// One view of the table makes all parts describe the same state.
	lost, resendDone, requestedDone := false, false, false
	f.checkResendKey(d.tab)
	d.tab.View(func(tx *table.Tx) {
		lost = !st.encode(tx, limit, &batch)
		if !lost && f.requestedCursor != nil && !f.requestedDue {
			requestedDone = st.requestedBatch(tx, limit, &requested)
		}
		if !lost && f.open && f.ended && f.resendCursor != nil {
			resendDone = st.resendBatch(tx, limit, &resent)
		}
	})
	if lost {
		st.send(message{kind: messageLost})
		st.closeOutbound()
		return true
	}
	f.advanceRequested(d.tab, requestedDone)
	sent := st.dispatch(batch)
	sent = st.sendHandover() || sent
	if len(requested) > 0 {
		sent = st.send(message{kind: messageRequested, previous: f.sent, position: f.sent, deltas: requested})
	}
	if f.serial != f.answered && f.requestedCursor == nil {
		f.answered = f.serial
		sent = st.send(message{kind: messageOwnersSent, serial: f.serial})
	}
	switch {
	case f.resend == nil:
		return sent
	case f.resendCursor == nil:
		if f.open {
			f.resendCursor = d.tab.NewCursor(0)
		}
		return sent || f.open
	}
	if len(resent) > 0 {
		sent = st.send(message{kind: messageResentBatch, previous: f.sent, position: f.sent, deltas: resent})
	}
	if resendDone {
		f.resendCursor.Close()
		f.resendCursor, f.resend = nil, nil
		sent = st.send(message{kind: messageResendDone})
	}
	return sent
}

// encode fills a batch with the next records for the peer. It returns false if the table has forgotten
// a tombstone that the cursor had not reached.
func (st *stream) encode(tx *table.Tx, limit int, batch *[]delta) bool {
	d, f := st.from, st.outbound
	if !f.open {
		if tx.Unversioned() > 0 {
			f.wasComplete = d.begun
			return true
		}
		d.begun = true
		f.open, f.caughtUp = true, false // the digest is due, also without records
		if f.origin == 0 {
			f.goal = tx.Head()
		}
	}
	if floor := tx.Floor(); floor > f.cursor.Position() && floor > f.goal {
		return false
	}
	st.updateCoverage()
	f.ended = false
	var r table.Record
	for n := 0; n < 4*limit && len(*batch) < limit; n++ {
		if !tx.Next(f.cursor, &r) {
			f.ended = true
			return true
		}
		o := tx.Owner(r.Owner)
		own := o == st.to.self
		if !own && (f.sendAll || f.coverage.sends(o, d.n.world.node(o.Node), st.to)) && sendable(&r) {
			st.add(batch, &r, o)
		}
	}
	f.ended = f.cursor.Position() == tx.Head()
	return true
}

// updateCoverage applies the newest request and view. The caller holds the lock of the table. A larger
// coverage makes the records due that the stream has passed.
func (st *stream) updateCoverage() {
	f, c := st.outbound, coverage{st.from.view, st.outbound.orphaned}
	if c == f.coverage && !f.again {
		return
	}
	grown := f.again || c.exceeds(&f.coverage)
	f.again = false
	if f.coverage = c; grown && f.cursor.Position() > 0 {
		f.requestedDue, f.requestedUntil = true, f.cursor.Position()
	}
}

// requestedBatch fills a batch with records that the stream has passed under a smaller coverage. It
// reports whether it has reached requestedUntil.
func (st *stream) requestedBatch(tx *table.Tx, limit int, batch *[]delta) (over bool) {
	f, w := st.outbound, st.from.n.world
	var r table.Record
	for n := 0; n < 4*limit && len(*batch) < limit; n++ {
		if !tx.Next(f.requestedCursor, &r) || r.Position > f.requestedUntil {
			return true
		}
		o := tx.Owner(r.Owner)
		if node := w.node(o.Node); node != st.to.n.ID && node != st.from.n.ID && f.coverage.sends(o, node, st.to) && sendable(&r) {
			st.add(batch, &r, o)
		}
	}
	return false
}

// advanceRequested closes a finished requestedCursor, and opens one that is due. The table must not be
// locked.
func (f *outboundMap) advanceRequested(t *table.Table, over bool) {
	if over || f.requestedDue {
		if f.requestedCursor != nil {
			f.requestedCursor.Close()
			f.requestedCursor = nil
		}
		if f.requestedDue {
			f.requestedDue, f.requestedCursor = false, t.NewCursor(0)
		}
	}
}

// sendable reports whether a record is sent at all. Unversioned records and inferred tombstones are not, nor are entries of
// which peers have only named the owner.
func sendable(r *table.Record) bool { return r.Version != 0 && !r.Inferred && !r.Named }

// add appends a record to a batch, or only its key if the node cannot send the record.
func (st *stream) add(batch *[]delta, r *table.Record, o table.Owner) {
	x := st.delta(r, o)
	st.checkNotNamed(&x)
	unsent, known := st.from.n.unsent(x.key, x.dead)
	if !known {
		st.from.n.world.filtered = true
		st.from.unsentDeletes |= 1 << (x.key % 64)
		return
	}
	if x.undecided = r.Undecided && !unsent; x.undecided {
		x.unsent, x.value = true, Value{}
	}
	if unsent {
		x.unsent, x.vague, x.value = true, st.from.n.filter(x.key) == filterKey, Value{}
	}
	*batch = append(*batch, x)
}

// delta returns a record as it is sent. The local byte is not.
func (st *stream) delta(r *table.Record, o table.Owner) delta {
	x := delta{key: st.from.keyNumber(r.Key), value: st.from.value(r.Value), version: r.Version, owner: o, dead: r.Delete, expired: r.Expired}
	if st.from.n.opt.Carried != nil {
		x.value[localByte], x.value[timerByte] = 0, 0
	}
	return x
}

// checkResendKey begins a resend again, with all records, if the digest key has changed since the request. The digests of
// the sender show the peer a change before the request.
func (f *outboundMap) checkResendKey(t *table.Table) {
	if f.resend == nil || f.resendKey == t.DigestID() {
		return
	}
	f.resend, f.resendKey = table.AllBuckets(), t.DigestID()
	if f.resendCursor != nil {
		f.resendCursor.Close()
		f.resendCursor = nil
	}
}

// resendBatch fills a batch with the next records in the buckets that are resent. It reports whether the
// cursor has reached the end.
func (st *stream) resendBatch(tx *table.Tx, limit int, batch *[]delta) (over bool) {
	f := st.outbound
	var r table.Record
	for n := 0; n < 4*limit && len(*batch) < limit; n++ {
		if !tx.Next(f.resendCursor, &r) {
			return true
		}
		if sendable(&r) && f.resend.Has(tx.Bucket(r.Key)) {
			st.add(batch, &r, tx.Owner(r.Owner))
		}
	}
	return false
}

// dispatch sends the batch that encode filled. A stream whose sending has not begun also counts as at
// its end, unless the table was complete before. A position without records is sent after advanceInterval only. It reports whether it sent
// anything.
func (st *stream) dispatch(batch []delta) bool {
	f := st.outbound
	end, position := (!f.open && !f.wasComplete) || (f.ended && f.requestedCursor == nil), f.sent
	if f.open {
		position = f.cursor.Position()
	}
	if len(batch) == 0 && (!end || f.caughtUp) && (position == f.sent || st.from.n.world.Now-f.sentAt < advanceInterval) {
		return false
	}
	m := message{kind: messageBatch, previous: f.sent, position: position, end: end, open: f.open, deltas: batch}
	if f.open && end && f.sendAll {
		m.passed = position
	}
	f.sent, f.caughtUp = position, f.caughtUp || end
	f.sendAll = f.sendAll && !f.caughtUp
	return st.send(m)
}
