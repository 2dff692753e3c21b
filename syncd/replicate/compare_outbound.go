package replicate

import (
	"fmt"
	"sync/atomic"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// outboundComparison is the part of an outbound map stream that sends digests and resends. The
// sending goroutine owns it, except for the atomic fields.
type outboundComparison struct {
	// bucketsRequested is set if the next digest must have buckets. The receiving goroutine sets it.
	bucketsRequested atomic.Bool
	// digestNow is set if the next digest is due now. Any goroutine may set it.
	digestNow atomic.Bool
	// resendRequest are the buckets of a resend request without an answer; nil: none. The receiving
	// goroutine sets it, the sending goroutine clears it after the last record.
	resendRequest atomic.Pointer[table.BucketSet]
	// digestKey is the table.DigestID of the last digest; 0: none. resendKey is that at the time of resendRequest: the
	// buckets of the request belong to this key.
	digestKey, resendKey atomic.Uint64

	// now is the time of the current step.
	now time.Time
	// madeAt is when the last digest was made.
	madeAt time.Time
	// due is when the next digest is due if nothing changes.
	due time.Time
	// position is the position of the stream that the last digest describes.
	position uint64
	// lastSum combines the sums of the last digest. It shows whether the content has changed since.
	lastSum uint64
	// pendingDigest is a digest that waits for the batch before it to be sent; nil: none.
	pendingDigest *mapsyncv1.Digest
	// resend is the resend in progress; nil: none. It answers resendRequest.
	resend *outboundResend
}

// outboundResend is a pass over all records in some buckets.
type outboundResend struct {
	// buckets are the requested buckets. The set does not change.
	buckets *table.BucketSet
	// key is the table.DigestID to which the buckets belong.
	key uint64
	// cursor is the place of the pass in the table. close closes it.
	cursor *table.Cursor
	// enc encodes the batches; all are marked as resent.
	enc *wire.Encoder
	// rec is reused for every record.
	rec table.Record
	// hasBatch reports that enc has a batch to send.
	hasBatch bool
	// records is the number of records sent.
	records uint64
	// unsent is the number of records that could not be encoded.
	unsent uint64
	// atEnd reports that the pass reached the end of the order while the stream was at its end, too.
	atEnd bool
}

// close ends the resend. The caller must not hold the table's lock. Only the sending goroutine
// calls it. It may be called more than once.
func (t *outboundComparison) close() {
	if t.resend != nil {
		t.resend.cursor.Close()
		t.resend.enc.Release()
		t.resend = nil
	}
}

// pending reports whether the peer waits for an answer. The goroutine then waits for
// positionInterval at most. Any goroutine may call it.
func (t *outboundComparison) pending() bool {
	return t.bucketsRequested.Load() || t.digestNow.Load() || t.resendRequest.Load() != nil
}

// nextDigestTime returns the earliest time of the next digest for a position of the stream. A
// requested digest comes sooner, but at most four times in an interval. While nothing changes, the
// pauses are longer. The limit bounds what a peer can make this node compute. Only the sending
// goroutine calls it.
func (t *outboundComparison) nextDigestTime(position uint64, interval time.Duration) time.Time {
	switch {
	case t.bucketsRequested.Load() || t.digestNow.Load():
		return t.madeAt.Add(interval / 4)
	case position != t.position:
		return t.madeAt.Add(interval)
	}
	return t.due
}

// prepare encodes a batch. If nothing is left to send, it also makes a digest when one is due, and
// encodes a batch of a resend. All describe the same state of the table. A key that is missing from
// a resend therefore has not moved to another owner in the meantime.
//
// The sending goroutine calls it once in each step, with the table's lock held. It opens and closes
// no cursor, because that needs the lock, too. It sends nothing: a Send may block, and the table
// would stay locked.
func (out *outboundMap) prepare(tx *table.Tx) {
	out.noteHandover(tx)
	out.encode(tx)
	if out.owners.backfill != nil {
		out.encodeBackfill(tx)
	}
	// A digest before the end of the stream would show the changes that are still to be sent as
	// differences.
	if !out.canSendDigest() {
		return
	}
	t := &out.comparison
	if t.resend != nil {
		out.encodeResend(tx)
	}
	if !t.now.Before(t.nextDigestTime(out.cursor.Position(), out.s.r.opt.digestInterval)) {
		out.makeDigest(tx)
	}
}

// canSendDigest reports whether the peer can compare what it holds with what this node has sent. It
// is false for an observer, which compares nothing, and while the peer waits for requested records.
func (out *outboundMap) canSendDigest() bool {
	return out.cursor != nil && out.atEnd && !out.observe && !out.owners.pending()
}

// makeDigest makes the digest message of the records that the receiver should hold, too, and
// schedules the next one. sendComparison sends it after the batch of this step, so it describes
// exactly the records up to its position. The caller holds the table's lock.
func (out *outboundMap) makeDigest(tx *table.Tx) {
	t := &out.comparison
	t.digestNow.Store(false)
	// A request that arrives from here on is answered by the next digest.
	withBuckets := t.bucketsRequested.Swap(false)
	v := out.s.r.view.Load()
	m := &mapsyncv1.Digest{
		Map: out.index, Position: out.cursor.Position(), KeyFingerprint: out.m.table.DigestID(), ScopeFingerprint: out.m.table.DigestScope(),
		MembersFingerprint: v.members,
	}
	// Records that cannot be encoded are left out: the receiver cannot have them. With them, the
	// digests of this node and of the peer would never agree.
	missing, unsent := out.m.unsentDigests(tx)
	m.Unsent = uint64(unsent)
	var sum uint64
	for _, node := range out.digestNodes(v, withBuckets) {
		digest, buckets := digestOf(tx, node, withBuckets)
		missing.subtractFrom(func(owner string) bool { return owner == node }, &digest, buckets)
		m.Nodes = append(m.Nodes, wire.NodeDigestToProto(node, digest, buckets))
		sum = sum*31 + digest.Sum
	}
	digest, buckets := orphanedDigest(tx, v, withBuckets)
	missing.subtractFrom(v.orphaned, &digest, buckets)
	m.Orphaned = wire.NodeDigestToProto("", digest, buckets)
	sum = sum*31 + digest.Sum
	// A collision of sums only delays the next digest.
	interval := out.s.r.opt.digestInterval
	// The content has not changed since the last digest.
	if sum == t.lastSum && !withBuckets {
		interval *= idleDigestFactor
	}
	t.digestKey.Store(m.KeyFingerprint)
	t.madeAt, t.due, t.position, t.lastSum, t.pendingDigest = t.now, t.now.Add(interval), m.Position, sum, m
}

// digestNodes returns the live nodes whose digests are sent: this node, the nodes whose records the
// receiver requests, and, with buckets, the receiver itself. The digest of the receiver's own
// records serves lists of differences, which show both directions. A request has at most
// maxRequested nodes, so the message stays below wire.MaxDigests.
func (out *outboundMap) digestNodes(v *view, withBuckets bool) []string {
	nodes := append(make([]string, 0, 2), v.self.Node)
	for _, node := range out.owners.coverage.request.nodes {
		if node != v.self.Node && node != out.s.target.Node {
			nodes = append(nodes, node)
		}
	}
	if withBuckets {
		nodes = append(nodes, out.s.target.Node)
	}
	return nodes
}

// idleDigestFactor is the factor by which the pause between digests grows while nothing changes.
const idleDigestFactor = 10

// sendComparison sends the digest that prepare made and a batch of a resend. It reports whether
// there is more to send at once. The sending goroutine calls it after the table is unlocked, and
// after the batch of the same step. The error is that of Send and ends the stream.
func (out *outboundMap) sendComparison() (more bool, err error) {
	t := &out.comparison
	if m := t.pendingDigest; m != nil {
		t.pendingDigest = nil
		out.m.resendSendable()
		if err := out.send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Digest{Digest: m}}); err != nil {
			return false, err
		}
	}
	switch {
	case t.resendRequest.Load() == nil:
		return false, nil
	case t.resend == nil:
		if !out.tableComplete || !out.allowScan(out.m, t.now) {
			return false, nil
		}
		out.beginResend(t.resendRequest.Load())
		return true, nil
	case t.resend.key != out.m.table.DigestID():
		t.close() // the next step begins again
		return true, nil
	}
	resend := t.resend
	if err := out.sendResend(); err != nil || !resend.atEnd {
		return true, err
	}
	t.close()
	t.resendRequest.Store(nil) // before the peer can send the next request
	return false, out.send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Resent{
		Resent: &mapsyncv1.Resent{Map: out.index, Records: resend.records, Unsent: resend.unsent},
	}})
}

// beginResend starts a resend of the records in a set of buckets. The set must not change. If the digest key has changed
// since the peer has selected the buckets, it starts a resend of all records. The table must not be locked.
func (out *outboundMap) beginResend(in *table.BucketSet) {
	key := out.m.table.DigestID()
	if asked := out.comparison.resendKey.Load(); asked != 0 && asked != key {
		in = table.AllBuckets()
	}
	r := &outboundResend{buckets: in, key: key, cursor: out.m.table.NewCursor(0)}
	r.enc = out.m.newEncoder(out.s.r.opt.Self, wire.EncoderOptions{Index: out.index, Resent: true, Observe: out.observe})
	out.comparison.resend = r
	out.s.r.count.resends.Add(1)
}

// encodeResend fills a batch with the next records in the buckets, of all owners. Records of the
// receiver are included: a list compares them, too. The caller holds the table's lock, and the
// stream is at its end. A record that changes during the resend moves to the tail, and the cursor
// finds it there.
func (out *outboundMap) encodeResend(tx *table.Tx) {
	r := out.comparison.resend
	if r.key != out.m.table.DigestID() {
		return
	}
	r.enc.Begin(tx, wire.MaxBatchDeltas, out.s.r.opt.Times())
	// It is also set for a batch without deltas, whose buffer sendResend releases.
	r.hasBatch = true
	for n := 0; n < maxBatchScan && r.enc.Fits(); n++ {
		if !tx.Next(r.cursor, &r.rec) {
			r.atEnd = true
			return
		}
		if r.buckets.Has(tx.Bucket(r.rec.Key)) {
			r.enc.Add(tx, r.enc.Slot(r.rec.Owner), &r.rec)
		}
	}
}

// sendResend sends the batch that encodeResend has filled, if there is one. It runs in the step
// that encoded the batch, so the position of the stream has not changed.
func (out *outboundMap) sendResend() error {
	r := out.comparison.resend
	if !r.hasBatch {
		return nil
	}
	r.hasBatch = false
	r.unsent += uint64(r.enc.Unencodable())
	r.records += uint64(r.enc.Deltas())
	out.s.r.count.resentRecords.Add(uint64(r.enc.Deltas()))
	return out.sendOutOfTurn(r.enc)
}

// handleCompareRequest makes the next digest have buckets. The caller holds outboundStream.mu. The
// digest has all buckets, of all nodes that it covers. The error wraps errProtocol and ends the
// stream.
func (s *outboundStream) handleCompareRequest(m *mapsyncv1.CompareRequest) error {
	out, err := s.comparableMap(m.GetMap())
	if out == nil || err != nil {
		return err
	}
	out.comparison.bucketsRequested.Store(true)
	poke(s.wake)
	return nil
}

// handleResendRequest registers the buckets to resend. The caller holds outboundStream.mu. The
// error wraps errProtocol and ends the stream: the set is malformed, or a resend is in progress. A
// peer that requests one after the other cannot make this node keep a queue.
func (s *outboundStream) handleResendRequest(m *mapsyncv1.ResendRequest) error {
	out, err := s.comparableMap(m.GetMap())
	if out == nil || err != nil {
		return err
	}
	set := wire.DecodeBucketSet(m.GetBuckets())
	if out.comparison.resendRequest.Load() == nil {
		out.comparison.resendKey.Store(out.comparison.digestKey.Load())
	}
	switch {
	case set == nil:
		return fmt.Errorf("request for buckets in %d bytes: %w", len(m.GetBuckets()), errProtocol)
	case !out.comparison.resendRequest.CompareAndSwap(nil, set):
		return fmt.Errorf("second resend request for map %q: %w", out.name, errProtocol)
	}
	poke(s.wake)
	return nil
}

// comparableMap returns the map stream of a comparison request, or nil if it has ended in the
// meantime. The caller holds s.mu. The error wraps errProtocol.
func (s *outboundStream) comparableMap(index uint32) (*outboundMap, error) {
	if index == 0 || index > s.lastIndex {
		return nil, fmt.Errorf("request to compare unknown subscription %d: %w", index, errProtocol)
	}
	out := s.findMap(index)
	if out != nil && out.observe {
		return nil, fmt.Errorf("request to compare map %q by an observer: %w", out.name, errProtocol)
	}
	return out, nil
}
