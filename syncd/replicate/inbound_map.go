package replicate

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// inboundMap is the inbound stream of one map from one incarnation of a peer. inboundStream.mu
// guards the fields, except for those of the receiving goroutine. Only the receiving goroutine
// changes position, so it reads position without the lock.
type inboundMap struct {
	// l is the stream that the map belongs to. It does not change.
	stream *inboundStream
	// m does not change. Another map of the same name gets another inboundMap.
	m *localMap

	// index is the number of the subscription on this stream; 0: none. inboundStream.byIndex[index] is this
	// inboundMap unless index is 0.
	index uint32
	// unsubscribeIndex is the number of a subscription that the next request ends; 0: none.
	unsubscribeIndex uint32
	// state is the state of the map with the peer. It is StateSyncing or StateCaughtUp if and only
	// if the peer has accepted the subscription index.
	state State
	// err is why the subscription failed or was refused, or describes refused records; nil: no error.
	err error
	// retryAt is the earliest time of the next subscription.
	retryAt time.Time
	// backoff is the last pause before a new subscription. It doubles up to maxSubscribePause; a batch that is merged
	// longer than that after the acceptance resets it to 0.
	backoff time.Duration
	// acceptedAt is when the peer last accepted a subscription.
	acceptedAt time.Time

	// generation is the generation of the peer's map that position belongs to; 0: nothing was
	// received yet.
	generation uint64
	// position is the position of the peer up to which this node has merged all changes. It never
	// decreases, except at the start of a full sync, and stays when a subscription ends.
	position uint64
	// tableHead is the head of this node's table after the last delta was merged. The changes up to
	// position are in the kernel map once the table's writer has applied tableHead.
	tableHead uint64
	// nextSweepBefore is the head of this node's table plus 1 when the map was last requested.
	nextSweepBefore uint64
	// sweepBefore is the value of nextSweepBefore for the current full sync. The sweep at its end
	// keeps records at or above it.
	sweepBefore uint64
	// acknowledged is what acknowledgedBy has returned last, nextAcknowledged before the map was last requested, and
	// fullSyncAcknowledged before the current full sync was requested: an answer lacks what the peer merges later.
	acknowledged, nextAcknowledged, fullSyncAcknowledged uint64
	// fullSyncCoverage has the keys about which the current full sync proves nothing. The table's lock guards it.
	fullSyncCoverage table.Coverage
	// unheld reports that this node has filtered records of its earlier incarnations, or deletes, since the current full
	// sync began. A full sync follows if it may bring them. See Ack.unheld.
	unheld atomic.Bool
	// unheldSince is when unheld was set for the first time since the end of a full sync without it; zero: not since.
	unheldSince time.Time
	// lacksOwn reports that this node has filtered records of its earlier incarnations since the current full sync began, or
	// that the peer has named some.
	lacksOwn atomic.Bool
	// sweep reports that the end of the current full sync deletes the peer's records that it
	// did not send.
	sweep bool
	// fullSyncOpen reports that the peer has yet to send a digest after the last full sync that has begun.
	fullSyncOpen bool
	// fullSyncDone reports that the peer has sent everything at least once. It never becomes false again.
	fullSyncDone bool
	// allReceived reports that the peer has completed a full sync that began after the peer had
	// adopted its own entries. It never becomes false again: see AllReceived.
	allReceived bool
	// repeatedFullSyncs is the number of full syncs in a row in which the table refused records, at
	// most maxRepeatedFullSyncs.
	repeatedFullSyncs int
	// repeatFullSyncAt is when the next full sync is due; zero: none is due.
	repeatFullSyncAt time.Time
	// pendingAcks are the merged positions that the kernel map does not hold yet.
	pendingAcks ackQueue
	// ackedPosition is the last position acknowledged on this stream, never above position. 0: none. ackedUnheld is the
	// value of unheld that the last acknowledgement had.
	ackedPosition uint64
	ackedUnheld   bool
	// traffic counts the batches received. It is safe for concurrent use.
	traffic traffic
	// accepted is the number of deltas that changed the table.
	accepted uint64
	// refused is the number of deltas that were set aside.
	refused uint64
	// fullSyncRecords is the number of deltas received since the last full sync began.
	fullSyncRecords int
	// exceptions are the entries of the peer that this node cannot hold. It has its own lock.
	exceptions exceptions
	// comparison is the state of comparisons. The end of a subscription ends its requests, and keeps the last agreement.
	comparison inboundComparison
	// owners are the owner requests. The end of a subscription keeps the last request and its permit.
	owners inboundOwners
	// reporting is the state of reports. It is zero at the start of each subscription.
	reporting reporting

	// The receiving goroutine owns the fields below. It holds inboundStream.mu while it changes
	// decoder and printer, so that other goroutines may read these two under the lock.

	// resend is the resend that the current batch belongs to; nil: none.
	resend *inboundResend
	// permit is owners.permit as of the start of the current batch.
	permit *permit
	// decisions has an element for each owner of the batch: whether its records are accepted, or why not.
	decisions []rejection
	// decoder decodes entries of the peer's schema into this node's layout. nil until the first
	// acceptance.
	decoder *schema.Decoder
	// peerSchema is the schema of the peer. nil until the first acceptance. namesInKey reports that its keys have
	// interfaces.
	peerSchema *schema.Schema
	namesInKey bool
	// printer formats the encoded keys of the peer.
	printer wirePrinter

	// The fields below serve merges. The receiving goroutine owns them.

	// mergeFunc is the method mergeAll. It does not change. It is stored so that a merge does not allocate it.
	mergeFunc func(*table.Tx)
	// groupFunc is the method mergeGroup, stored for the same reason.
	groupFunc func([]wire.Delta) error
	// tx is the transaction of the table; nil outside of a merge.
	tx *table.Tx
	// tableRejected is the number of records that the limit of the table has rejected, as of the last delta of the current
	// merge. A higher number after a delta shows that the limit has rejected this delta.
	tableRejected uint64
	// limitLogged reports that the log has a warning that the peer has more records than the table may hold. A comparison
	// without records above the limit clears it.
	limitLogged bool
	// ownerIDs has the id of each owner of the batch; table.NoOwner if it is not accepted.
	ownerIDs []table.OwnerID
	// comparedOwners has an element for each owner of the batch if remoteOptions.Touch is set: whether comparisons with
	// the peer cover its records. See decideReplace.
	comparedOwners []bool
	// unexplained are the repairs that did not explain the difference of the digests. inboundStream.mu guards it.
	// It outlives the subscription.
	unexplained unexplainedRepairs
	// replaceRules has an element for each owner of the batch if remoteOptions.Touch is set. Otherwise it is outdated.
	replaceRules []table.Replace
	// wireDeltas is scratch space for a group of deltas. They point into the message and are valid until the next group.
	wireDeltas [table.PrefetchBatch]wire.Delta
	// keys are the decoded keys of the current group, in the order of its deltas that were not set aside. They point into
	// inboundStream.keys and do not overlap.
	keys [table.PrefetchBatch][]byte
	// delta is the delta that is being merged. Its key and value point into keys and inboundStream.value. compile sets its Keep, which
	// is the same for all deltas; mergeOne sets all other fields.
	delta table.Delta
	// answer has the keys about which the answer that the batch belongs to proves nothing. It counts only if
	// remoteOptions.Touch is set.
	answer *table.Coverage
	// remoteOptions are the options of table.Tx.Remote for the batch.
	remoteOptions table.RemoteOptions
	// now is the time of the merge: see Options.TableTime.
	now int64
	// times converts between the peer's wall clock and the clocks of this node's kernel.
	times schema.Times
	// maxVersion is the highest version that the merge accepts: now plus Options.MaxClockAhead.
	maxVersion table.Version
	// result is the result of the current merge.
	result mergeResult
}

// newInboundMap returns the inbound stream of a map that is not subscribed to yet. It begins with a
// full sync.
func newInboundMap(s *inboundStream, m *localMap) *inboundMap {
	in := &inboundMap{stream: s, m: m, state: StateWaiting}
	in.owners = newInboundOwners(s.r.view.Load(), s.peer, time.Now())
	in.mergeFunc, in.groupFunc = in.mergeAll, in.mergeGroup
	return in
}

// reset ends the subscription and keeps the position. The caller holds inboundStream.mu.
func (in *inboundMap) reset() {
	in.index, in.unsubscribeIndex = 0, 0
	in.state = StateWaiting
	in.pendingAcks.n, in.ackedPosition, in.ackedUnheld = 0, 0, false
	in.comparison.reset()
	in.owners.reset()
	poke(in.stream.r.wake)
	in.reporting = reporting{}
}

// handleAccepted is accept for a message of the peer. A peer accepts each subscription once: the end
// of every full sync may scan the whole table. The caller holds inboundStream.mu.
func (in *inboundMap) handleAccepted(a *mapsyncv1.MapAccepted) error {
	if in.served() {
		return fmt.Errorf("map %q accepted while it was served: %w", in.m.name, errProtocol)
	}
	return in.accept(a)
}

// accept starts the reception of a map, unless the peer's schema does not fit. The caller holds
// inboundStream.mu.
func (in *inboundMap) accept(a *mapsyncv1.MapAccepted) error {
	if err := in.compile(a.GetSchema()); err != nil {
		in.refuseIncompatible(err, time.Now())
		return nil
	}
	known := in.generation != 0 && in.generation == a.GetGeneration()
	if !a.GetReset_() {
		if !known || a.GetPosition() != in.position {
			return fmt.Errorf("resume map %q at %d of generation %d, expected %d of %d: %w", in.m.name,
				a.GetPosition(), a.GetGeneration(), in.position, in.generation, errProtocol)
		}
	} else {
		in.beginFullSync(known, a.GetPosition())
	}
	if err := in.setHandover(a.GetHandover()); err != nil {
		return err
	}
	// Acknowledgements begin at this position. Earlier changes may not be in the kernel map yet, so
	// this position waits for them.
	in.pendingAcks.push(in.position, in.tableHead)
	in.generation = a.GetGeneration()
	in.state, in.err, in.acceptedAt = StateSyncing, nil, time.Now()
	poke(in.stream.r.wake)
	return nil
}

// served reports whether the peer has accepted the subscription. The caller holds inboundStream.mu.
func (in *inboundMap) served() bool { return in.state == StateSyncing || in.state == StateCaughtUp }

// compile creates the decoder for the peer's schema.
func (in *inboundMap) compile(p *mapsyncv1.Schema) error {
	peerSchema, err := wire.SchemaFromProto(in.m.name, p)
	if err != nil {
		return err
	}
	in.decoder, err = schema.NewDecoder(peerSchema, in.m.layout.Schema, in.m.layout.Links)
	if err != nil {
		return err
	}
	in.printer = newWirePrinter(peerSchema)
	in.peerSchema, in.namesInKey = peerSchema, peerSchema.NamesInKey()
	// The table keeps its own bytes where the peer's layout has no field.
	in.delta.Keep = in.delta.Keep[:0]
	for _, k := range in.decoder.Keep() {
		in.delta.Keep = append(in.delta.Keep, table.Range(k))
	}
	return nil
}

// refuseIncompatible ends the subscription of a map whose schema at the peer cannot be converted to
// this node's schema. syncd requests the map again after Options.incompatibleRetry, because the
// peer's map may be replaced. The caller holds inboundStream.mu.
func (in *inboundMap) refuseIncompatible(err error, now time.Time) {
	in.stream.r.count.mapsIncompatible.Add(1)
	err = fmt.Errorf("map of %s does not fit: %w", in.stream.peer.Node, err)
	if errorText(in.err) != err.Error() {
		in.stream.r.opt.Logger.Warn("map of peer does not fit, not receiving it", slog.String("peer", in.stream.peer.Node),
			slog.String("map", in.m.name), slog.Any("error", err), slog.String("hint", hintLayout))
	}
	in.endSubscription(StateRefused, err, now.Add(in.stream.r.opt.incompatibleRetry))
}

// handleMerged updates the state after a batch was merged. The caller holds inboundStream.mu.
func (in *inboundMap) handleMerged(b *wire.Batch, res mergeResult, now time.Time) {
	in.noteRejected(&res)
	in.position, in.tableHead = b.Position, res.head
	in.pendingAcks.push(b.Position, res.head)
	in.traffic.add(b.DeltaCount, b.Size())
	in.accepted += res.accepted
	in.fullSyncRecords += b.DeltaCount
	if now.Sub(in.acceptedAt) > maxSubscribePause {
		in.backoff = 0
	}
	// A peer that has other records to send sends those first. While it has requested records to send,
	// it marks no batch as caught up, so such a batch does not count.
	if b.Requested || !b.CaughtUp && !b.Resent {
		in.owners.lastProgress = now
	}
	if j := in.comparison.resend; j != nil && (b.Resent || b.Requested || !b.CaughtUp) {
		j.lastProgress = now
	}
	// An entry whose interface does not exist may fit later. An entry with a number out of range
	// does not fit before the peer changes and resends it.
	mayFit := res.refused+res.ahead > res.outOfRange
	if res.repeat || mayFit && (!b.Resent || in.unheld.Load()) {
		in.scheduleFullSync(now)
	}
	if in.unheld.Load() && in.unheldSince.IsZero() {
		in.unheldSince = now
	}
	if b.Resent {
		return // not the end of a full sync
	}
	in.refused += res.refused + res.ahead
	excepted := res.outOfRange + res.withoutInterface
	if n := res.refused - excepted; n+res.ahead > 0 {
		in.err = fmt.Errorf("%d records refused, %d too far ahead of the clock", n, res.ahead)
	}
	switch {
	case b.Requested: // out of turn
	case b.CaughtUp:
		in.handleCaughtUp()
	default:
		in.state = StateSyncing
	}
}

// handleCaughtUp records that the peer has sent everything. The caller holds inboundStream.mu.
func (in *inboundMap) handleCaughtUp() {
	// The roles depend on the sources that are complete.
	if !in.fullSyncDone {
		poke(in.stream.r.wake)
	}
	in.owners.endSendAll()
	in.sweep, in.fullSyncDone = false, true
	if !in.unheld.Load() {
		in.unheldSince = time.Time{}
	}
	in.exceptions.endSync()
	in.state = StateCaughtUp
	if in.repeatFullSyncAt.IsZero() {
		in.repeatedFullSyncs = 0
	}
}

// maxSubscribePause bounds the pause before a new subscription.
const maxSubscribePause = 30 * time.Second

// nextRetry doubles the pause before a new subscription, and returns its end. The caller holds inboundStream.mu.
func (in *inboundMap) nextRetry(now time.Time) time.Time {
	in.backoff = min(max(2*in.backoff, in.stream.r.opt.MinBackoff), maxSubscribePause)
	return now.Add(in.backoff)
}

// fail ends the subscription and schedules another after a growing pause. The caller holds
// inboundStream.mu.
func (in *inboundMap) fail(err error, now time.Time) {
	in.endSubscription(StateFailed, err, in.nextRetry(now))
}

// endSubscription ends the subscription, and schedules another at retry. The caller holds
// inboundStream.mu.
func (in *inboundMap) endSubscription(state State, err error, retry time.Time) {
	// The next requests end the subscription at the peer.
	dropped := in.index
	delete(in.stream.byIndex, in.index)
	in.reset()
	in.unsubscribeIndex, in.state, in.err, in.retryAt = dropped, state, err, retry
	poke(in.stream.wake)
	poke(in.stream.r.wake) // the roles change
}
