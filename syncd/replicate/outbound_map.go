package replicate

import (
	"fmt"
	"sync/atomic"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// maxBatchScan bounds the records that are visited for one batch.
const maxBatchScan = 4096

// outboundMap is the outbound stream of one map to one peer. The sending goroutine of the
// outboundStream owns it, except for the fields that do not change and the atomic fields.
//
// Its life has three parts. Until start serves the map, the peer gets Pending or Refused. Then the
// cursor follows the order of the table, from the position of a resume or from 0. It ends when the
// peer unsubscribes, when this node removes or replaces the map, when the stream has lost its
// position, or with the gRPC stream.
type outboundMap struct {
	// The fields up to observe do not change. s outlives the outboundMap.
	s *outboundStream
	// index is the number of the subscription on the stream.
	index uint32
	// name is the name of the map on both nodes. This node need not have such a map.
	name string
	// peerSchema is the schema of the peer's map. It is not checked before checkSchema.
	peerSchema *mapsyncv1.Schema
	// resume is the position from which the peer resumes; nil: from the beginning. The peer
	// chooses it, so serve checks it.
	resume *mapsyncv1.Resume
	// observe reports that the peer observes: it receives the records of all owners and holds none.
	observe bool
	// sendAll reports that the records of all owners are sent. The first batch that is marked as
	// caught up ends it. The peer has unadopted entries, and must not adopt any that another node
	// owns.
	sendAll bool

	// sent counts the batches, across streams. serve sets it.
	sent *traffic

	// unsubscribed reports that the peer has ended the subscription. It never becomes false again.
	unsubscribed atomic.Bool
	// serving reports that m is set and the map is served. Other goroutines may read m while it is
	// set. serve sets it after m and cursor. close clears it before it closes the cursor.
	serving atomic.Bool
	// sentPosition is the position of the last batch sent. It does not decrease while the map is
	// served. An acknowledgement above it is a violation of the protocol.
	sentPosition atomic.Uint64
	// ackedPosition is the position that the peer has acknowledged. It never decreases and is never
	// above sentPosition. Only the receiving goroutine stores it, under s.mu.
	ackedPosition atomic.Uint64
	// unheld is Ack.unheld of the last acknowledgement.
	unheld atomic.Bool
	// upToDate reports that nothing was left to send at the last step. Only tests read it.
	upToDate atomic.Bool
	// peerReport is the last report of the peer; nil: none. The receiving goroutine replaces it as
	// a whole.
	peerReport atomic.Pointer[receivedReport]

	// comparison is the state of digests and resends. close ends its resend.
	comparison outboundComparison
	// owners is the state of owner requests. Its coverage decides which of the records at cursor are sent. close ends its
	// backfill.
	owners outboundOwners

	// answer is the last answer to a subscription that is not served. The same answer is not sent
	// twice.
	answer mapAnswer
	// sharedAnswer is a copy of answer for other goroutines. The status reads it.
	sharedAnswer atomicAnswer
	// refusedMap is the map for which the subscription was refused; nil: none. Another map of the
	// same name is tried again.
	refusedMap *localMap

	// m is the map that is served; nil until serve. It does not change afterwards. If
	// Replicator.maps has another map of that name, the next step ends the map stream.
	m *localMap
	// cancelWake cancels the wake-ups of the table.
	cancelWake func()
	// cursor is the place of the stream in the table; nil unless the map is served. close closes
	// it. Its position is at or above sentPosition: it also passes records that are not sent.
	cursor *table.Cursor
	// enc encodes the batches of the stream. All batches out of turn have encoders of their own.
	enc *wire.Encoder
	// times converts the time stamps of the current step.
	times schema.Times
	// startPosition is the position at which the stream began. 0: a full sync.
	startPosition uint64
	// wasComplete reports that the table was complete, and has sent records, before a new map brought unversioned records.
	// Peers would take the mark as the absence of these records.
	wasComplete bool
	// tableComplete reports that the table has had no unversioned records, so that streaming has begun.
	// It never becomes false again. Until then, the peer gets a batch without deltas that is marked
	// as caught up, unless wasComplete is set.
	tableComplete bool
	// positionLost reports that the stream may have missed a forgotten delete. The stream then
	// ends. Only a full sync restores the peer's copy then.
	positionLost bool
	// fullSyncHead is the head of the table when a full sync began; 0: the stream resumed. A delete
	// at or below it happened before the full sync began, and the end of the full sync deletes the
	// record at the peer.
	fullSyncHead uint64
	// atEnd reports that the stream has reached the end of the table's order. It is set under the
	// table's lock, so it is valid for the batch of the same step.
	atEnd bool
	// lastSent is when the last batch was sent. Positions without deltas are delayed by it.
	lastSent time.Time
	// caughtUpSent reports that the last batch was marked as caught up. While it is not set, the
	// peer waits for such a batch.
	caughtUpSent bool

	// handover is what the peer has received as the records that this node has handed over. handoverDue reports that it
	// has changed, under the table's lock of the current step.
	handover    table.Handover
	handoverDue bool

	// prepareFunc is the method prepare. It does not change. It is stored so that a batch does not allocate it.
	prepareFunc func(*table.Tx)
	// rec is the record that encode visits. It is stored for the same reason. Only encode uses it, and its key and value
	// are valid only while the table is locked.
	rec table.Record
}

// mapAnswer is the last answer to a peer about a map that is not served.
type mapAnswer uint8

const (
	answerNone mapAnswer = iota // no answer yet
	answerPending
	answerRefused
)

// state returns the state of a map that is not served.
func (t mapAnswer) state() State {
	switch t {
	case answerPending:
		return StatePending
	case answerRefused:
		return StateRefused
	}
	return StateWaiting
}

// atomicAnswer is a mapAnswer that is safe for concurrent use.
type atomicAnswer struct {
	// v is always the number of a mapAnswer. Only Store changes it.
	v atomic.Uint32
}

// Load and Store are atomic.
func (a *atomicAnswer) Load() mapAnswer   { return mapAnswer(a.v.Load()) }
func (a *atomicAnswer) Store(t mapAnswer) { a.v.Store(uint32(t)) }

// newOutboundMap returns the map stream of a subscription. It is not served before start. m was
// checked by checkSubscription.
func newOutboundMap(s *outboundStream, m *mapsyncv1.MapSubscription, request *ownerRequest) *outboundMap {
	out := &outboundMap{
		s: s, index: m.GetMap(), name: m.GetName(), peerSchema: m.GetSchema(), resume: m.GetResume(),
		sent: new(traffic), sendAll: m.GetSendAll(), observe: m.GetObserve(),
	}
	out.owners.noRequests, out.owners.epoch = m.GetOwners() == nil, 1 // 0 marks an unused slot
	out.owners.request.Store(request)
	out.prepareFunc = out.prepare
	return out
}

// close releases the resources of serve. It may be called more than once. The sending goroutine
// calls it, and the table must not be locked: closing a cursor takes the lock.
func (out *outboundMap) close() {
	out.comparison.close()
	out.owners.close()
	if out.cursor != nil {
		out.serving.Store(false)
		out.cancelWake()
		out.cursor.Close()
		out.cursor = nil
	}
}

// send sends a message other than a batch. It may block while the peer does not read. The error
// ends the stream.
func (out *outboundMap) send(m *mapsyncv1.SubscribeResponse) error {
	if err := out.s.send.Send(m); err != nil {
		return fmt.Errorf("send answer about map %q: %w", out.name, err)
	}
	out.s.lastSent = time.Now()
	return nil
}

// step sends at most one batch, backfill batch and comparison message of the map. It reports
// whether there is more to send at once.
//
// The order within a step is part of the protocol: the batch of the stream, then requested records,
// then OwnersSent, then a digest, then resent records. The receiver has merged everything before a
// digest when it compares. The error is that of Send and ends the stream.
func (out *outboundMap) step(m *localMap, now time.Time) (more bool, err error) {
	switch {
	case out.unsubscribed.Load():
		out.s.removeMap(out)
		return false, nil
	case out.m == nil:
		err := out.start(m, now)
		return out.m != nil, err
	case out.m != m:
		return false, out.end(mapsyncv1.EndReason_END_REASON_REMOVED)
	}
	out.times = out.s.r.opt.Times()
	out.comparison.now = now
	// Everything that the step sends is encoded while the table is locked once.
	out.m.table.View(out.prepareFunc)
	// The receiver subscribes again. Its position is below the floor, so it gets a full sync.
	if out.positionLost {
		out.enc.Release()
		return false, out.end(mapsyncv1.EndReason_END_REASON_POSITION_LOST)
	}
	if err := out.sendHandover(); err != nil {
		return false, err
	}
	if err := out.sendBatch(now); err != nil {
		return false, err
	}
	requested, err := out.sendBackfill()
	if err != nil {
		return false, err
	}
	more, err = out.sendComparison()
	return more || requested || (out.tableComplete && !out.atEnd), err
}

// encode fills a batch with the next records for the peer. It visits at most maxBatchScan records,
// so that a stream which passes many records of other owners does not block the table. The caller
// holds the table's lock.
func (out *outboundMap) encode(tx *table.Tx) {
	if !out.tableComplete && !out.beginWhenComplete(tx) {
		return
	}
	position := out.cursor.Position()
	if out.losesPosition(tx, position) {
		out.positionLost = true
		return
	}
	out.applyRequest()
	// The rule combines the coverage and sendAll. A slot decided under another rule is decided again.
	rule := out.owners.epoch << 1
	if out.sendAll {
		rule |= 1
	}
	out.enc.Begin(tx, tx.Head()-position, out.times)
	for n := 0; n < maxBatchScan && out.enc.Fits(); n++ {
		if !tx.Next(out.cursor, &out.rec) {
			out.atEnd = true
			return
		}
		slot := out.enc.Slot(out.rec.Owner)
		if slot.Epoch != rule {
			owner := tx.Owner(out.rec.Owner)
			slot.Epoch = rule
			slot.Send = out.observe || out.owners.coverage.sends(owner, out.s.target) || (out.sendAll && owner != out.s.target)
		}
		if slot.Send {
			out.enc.Add(tx, slot, &out.rec)
		}
	}
	// The batch may have become full with the last record.
	out.atEnd = out.cursor.Position() == tx.Head()
}

// sendBatch sends the batch that encode has filled. A batch without deltas only advances the
// position. It is delayed, unless the peer waits for the mark that this is the end. The mark is
// also sent while the table has never been complete: otherwise two nodes that start together would wait for
// each other.
//
// The position advances with the batch, not with its delivery: a batch that is lost with the stream
// is resent after the resume. The error ends the stream.
func (out *outboundMap) sendBatch(now time.Time) error {
	out.countUnencodable()
	previous, deltas := out.sentPosition.Load(), out.enc.Deltas()
	// The batch is the end of the stream if nothing is left to send, not even a backfill.
	position, end := previous, !out.tableComplete && !out.wasComplete || (out.atEnd && !out.owners.pending())
	if out.tableComplete {
		position = out.cursor.Position()
	}
	out.upToDate.Store(end)
	if deltas == 0 {
		out.enc.Release()
		if (!end || out.caughtUpSent) && (position == previous || now.Sub(out.lastSent) < out.s.r.opt.positionInterval) {
			return nil
		}
	}
	out.sentPosition.Store(position)
	// The first caught-up batch ends sendAll.
	out.caughtUpSent, out.sendAll = end, out.sendAll && !end
	out.lastSent, out.s.lastSent = now, now
	batch := out.enc.Finish(previous, position, end)
	out.s.count.add(deltas, batch.Len())
	out.sent.add(deltas, batch.Len())
	out.s.r.count.sent.add(deltas, batch.Len())
	if err := out.s.send.SendMsg(batch); err != nil {
		return fmt.Errorf("send batch of map %q: %w", out.name, err)
	}
	return nil
}

// countUnencodable counts and logs the records that could not be encoded. The keys stay in
// localMap.unsent, so that digests leave them out and the status lists them.
func (out *outboundMap) countUnencodable() {
	n := out.enc.Unencodable()
	if n == 0 {
		return
	}
	out.s.r.count.unencodable.Add(uint64(n))
	out.m.logUnsent(time.Now(), out.s.r.opt.Logger)
}

// hasUnsentPosition reports whether the stream has passed records that are not for the peer, and
// has not sent that position yet. Such a position must be sent, too: the peer resumes from it, and
// its acknowledgement lets the table forget tombstones.
func (out *outboundMap) hasUnsentPosition() bool {
	return out.cursor != nil && out.tableComplete && out.cursor.Position() != out.sentPosition.Load()
}
