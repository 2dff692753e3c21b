package replicate

import (
	"fmt"
	"log/slog"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

const (
	// explainedTTL is how long a bucket difference that remains after a repair counts as in sync.
	// The peer then lacks a newer record that this node has.
	explainedTTL = time.Minute
	// maxRepairBackoff bounds the pause between repairs that leave differences.
	maxRepairBackoff = time.Minute
)

// inboundComparison is the comparison state of an inbound map stream. inboundStream.mu guards it.
//
// A comparison has these steps. A digest differs, and the next request asks for buckets. The same
// difference in two digests confirms some buckets. This node requests their records, and merges or
// lists them. Resent ends the resend, and the next digest shows what is left.
type inboundComparison struct {
	// inSync is set when the digests agree. It is cleared when a repair finds a difference, when
	// the digests cannot be compared, and when a full sync begins.
	inSync bool
	// onThisStream reports that the digests agreed on the current subscription. An agreement on an
	// earlier one does not show the present state.
	onThisStream bool
	// inSyncAt is when the digests last agreed; zero: never. By the clock of time.Now.
	inSyncAt time.Time
	// inSyncPosition is the position of the peer at which the digests last agreed.
	inSyncPosition uint64
	// resyncStart is when the last resync began. Agreements before it do not count.
	resyncStart time.Time
	// departures is view.departures of the view under which the digests last agreed.
	departures uint64
	// impossibleReason is why the digests cannot be compared, empty if they can. inconclusiveReason
	// is the same for the last comparison alone. inconclusiveRounds is the number of such
	// comparisons in a row, at most maxInconclusive.
	impossibleReason, inconclusiveReason string
	inconclusiveRounds                   int
	// divergent is the number of entries that differ, as far as this node could determine.
	// endResend and checkNodes set it. An agreement and a comparison that cannot be made set it to
	// 0.
	divergent int
	// peerLive is the number of live records of the peer itself, as of its last digest.
	peerLive int
	// peerUnsent is the number of records that the peer cannot send, as of its last digest.
	peerUnsent int

	// divergentNodes are the owners whose digests differ.
	divergentNodes map[string]*divergentNode
	// requestBuckets is set if the next request asks for a digest with buckets.
	requestBuckets bool
	// resendBuckets are the buckets to request again with the next request; nil: none.
	resendBuckets *table.BucketSet
	// resend is the resend that the peer is sending; nil: none. A new one starts only after it has ended.
	resend *inboundResend
	// list is the list of differences that waits for a digest or for its resend; nil: none. See Diff.
	list *diffList
	// rateLimitTime accounts for the digests of the peer that were compared: see allowDigest.
	rateLimitTime time.Time
	// repairAfter is the earliest time of the next repair.
	repairAfter time.Time
	// repairBackoff is the pause after the last repair that left differences; 0: none since the
	// digests last agreed.
	repairBackoff time.Duration
}

// inboundResend is a resend of records that this node requested, for a repair or for a list.
type inboundResend struct {
	// buckets are the requested buckets. The set does not change.
	buckets *table.BucketSet
	// firstPosition is the head of this node's table plus 1 when the resend was requested. Records
	// that the peer has sent since then are at or above it.
	firstPosition uint64
	// tableHead is the head of this node's table after the last sweep.
	tableHead uint64
	// repaired is the number of entries that differed and were repaired. The receiving goroutine owns it.
	repaired int
	// unrepaired is the number of entries that still differ and are not exceptions. The receiving
	// goroutine owns it.
	unrepaired int
	// list is the list that the resend is for; nil: a repair.
	list *diffList
	// lastProgress is when the resend began or the peer last sent a part of it.
	// inboundStream.mu guards it.
	lastProgress time.Time
}

// stalled reports whether the peer has sent nothing of a resend for longer than stall. The caller
// holds inboundStream.mu.
func (c *inboundComparison) stalled(now time.Time, stall time.Duration) bool {
	return c.resend != nil && now.Sub(c.resend.lastProgress) > stall
}

// reset clears the state of a subscription that has ended. Agreements stay, except for
// onThisStream. A caller of Compare gets errSubscriptionEnded. The caller holds inboundStream.mu.
func (c *inboundComparison) reset() {
	if c.resend != nil && c.resend.list != nil {
		c.resend.list.end(errSubscriptionEnded)
	}
	if c.list != nil {
		c.list.end(errSubscriptionEnded)
	}
	c.onThisStream, c.divergentNodes, c.requestBuckets, c.resendBuckets, c.resend, c.list = false, nil, false, nil, nil, nil
}

// beginFullSync discards earlier agreements before a full sync. The full sync may change what this
// node holds. The caller holds inboundStream.mu.
func (c *inboundComparison) beginFullSync() {
	c.inSync, c.divergentNodes, c.resendBuckets = false, nil, nil
}

// nodeComparison is the comparison of one digest of a message with that of this node.
type nodeComparison struct {
	wire.NodeDigest
	// local is the digest of this node's records of the same owner.
	local table.Digest
	// localBuckets are the buckets of local; nil if the peer sent none.
	localBuckets *table.Buckets
	// inSync reports whether the digests agree.
	inSync bool
}

// processDigest compares a Digest message of the peer with this node's table. The caller holds
// inboundStream.mu. An error ends the stream: the digest is malformed, or does not belong to this
// position of the stream.
func (in *inboundMap) processDigest(m *mapsyncv1.Digest, now time.Time) error {
	if in.state != StateSyncing && in.state != StateCaughtUp {
		return fmt.Errorf("receive digest of map %q before it was accepted: %w", in.m.name, errProtocol)
	}
	d, err := wire.DigestsFromProto(m)
	if err != nil {
		return err
	}
	// A position above in.position is valid: the sender passes records that are not for this node.
	if d.Position < in.position {
		return fmt.Errorf("receive digest of map %q at %d, after %d: %w", in.m.name, d.Position, in.position, errProtocol)
	}
	in.allReceived = true // the peer sends a digest only after a full sync that it has begun
	c := &in.comparison
	// Sums made with another key are not comparable.
	if d.Key != in.m.table.DigestID() {
		in.l.r.count.impossible.Add(1)
		in.noteIncomparable("the peer's digests use another key: check that all nodes have the same gossip key")
		return nil
	}
	c.peerUnsent = int(min(m.GetUnsent(), 1<<31))
	// Values are comparable only if both nodes have the same layout and compare the same fields.
	exact := in.decoder.Same() && d.Scope == in.m.table.DigestScope()
	r := in.compareDigests(&d, exact)
	if c.list != nil && c.resend == nil && c.resendBuckets == nil && r.inconclusiveReason == "" {
		in.chooseListBuckets(&d, r.nodes, exact)
	}
	in.applyComparison(&r, exact, d.Position, now)
	return nil
}

// applyComparison counts a comparison and updates the state of the map. The caller holds
// inboundStream.mu.
func (in *inboundMap) applyComparison(r *comparisonResult, exact bool, position uint64, now time.Time) {
	c := &in.comparison
	in.countAboveLimit(r)
	switch {
	case r.divergent:
		// Each comparison counts in exactly one counter.
		in.l.r.count.divergent.Add(1)
	case r.inconclusiveReason != "":
		in.l.r.count.impossible.Add(1)
	default:
		in.l.r.count.inSync.Add(1)
	}
	if r.inconclusiveReason != "" {
		in.noteInconclusive(r.inconclusiveReason)
	} else if c.inconclusiveReason, c.inconclusiveRounds = "", 0; exact || !r.divergent {
		c.impossibleReason = ""
	}
	// An incomplete comparison without a difference proves nothing, in either direction.
	switch {
	case !r.divergent && r.inconclusiveReason == "":
		in.noteInSync(position, now)
	case !r.divergent:
		c.divergentNodes = nil
	case exact:
		in.checkBuckets(r.nodes, r.inconclusiveReason == "", position, now)
	default:
		in.checkNodes(r.nodes, now)
	}
}

// maxInconclusive is the number of inconclusive comparisons in a row that are tolerated before
// syncd reports them: nodes detect a change of membership at different times.
const maxInconclusive = 4

// noteInconclusive records that a comparison was inconclusive, and why. If that lasts, an earlier
// agreement becomes invalid. The caller holds inboundStream.mu.
func (in *inboundMap) noteInconclusive(why string) {
	c := &in.comparison
	if c.list != nil {
		c.requestBuckets = true
		poke(in.l.wake)
	}
	// Nodes detect a change of membership at different times, so single comparisons may fail.
	if c.inconclusiveReason = why; c.inconclusiveRounds < maxInconclusive {
		c.inconclusiveRounds++
		return
	}
	in.noteIncomparable(why)
}

// noteIncomparable records that the map cannot be compared with the peer, and why. It logs a new
// reason and ends a waiting list. The map then counts as not in sync: nothing is proven, and a node
// that is not ready waits. The caller holds inboundStream.mu.
func (in *inboundMap) noteIncomparable(why string) {
	c := &in.comparison
	if c.impossibleReason != why {
		in.l.r.opt.Logger.Warn("cannot compare map with peer", slog.String("peer", in.l.peer.Node),
			slog.String("map", in.m.name), slog.String("reason", why))
	}
	c.impossibleReason, c.inSync, c.divergent, c.divergentNodes = why, false, 0, nil
	if c.list != nil && c.resend == nil {
		c.list.end(fmt.Errorf("compare map %q with %s: %s", in.m.name, in.l.peer.Node, why))
		c.list = nil
	}
}

// comparisonResult is the result of comparing one Digest message.
type comparisonResult struct {
	nodes              []nodeComparison
	divergent          bool   // at least one of nodes differs
	inconclusiveReason string // why the comparison is incomplete; empty: it is complete
}

// compareDigests compares the digests of the peer with those of this node. exact reports that
// values are comparable. If not, only version sums are compared. All sums of this node are read
// under one lock of the table, so they belong to one state. The caller holds inboundStream.mu.
func (in *inboundMap) compareDigests(d *wire.Digests, exact bool) (r comparisonResult) {
	v := in.l.r.view.Load()
	if d.InconclusiveReason != "" {
		r.inconclusiveReason = fmt.Sprintf("the peer cannot compare all records: %.256q", d.InconclusiveReason)
	}
	own := false
	in.m.table.View(func(tx *table.Tx) {
		// Digests of other live nodes count only if this node requested their records and has
		// received them.
		for _, n := range d.Nodes {
			switch {
			case n.Node == in.l.peer.Node:
				in.comparison.peerLive, own = n.Digest.Live, true
			case !in.owners.requested.requests(n.Node) || !in.requestsComplete():
				continue
			}
			// The peer's digest leaves out its unsent records. This node cannot have them.
			local, buckets := digestOf(tx, n.Node, n.Buckets != nil)
			if !exact {
				local.VersionSum += in.exceptionsVersionSum(tx, func(owner string) bool { return owner == n.Node })
			}
			r.add(nodeComparison{NodeDigest: n, local: local, localBuckets: buckets}, exact)
		}
		if why := in.compareOrphaned(tx, v, d, exact, &r); why != "" && r.inconclusiveReason == "" {
			r.inconclusiveReason = why
		}
	})
	if !own && r.inconclusiveReason == "" {
		r.inconclusiveReason = "the peer sends no digest of its own records"
	}
	return r
}

// compareOrphaned compares orphaned records. They have no live owner to compare with, so every pair
// of nodes compares them. It returns the reason if it could not compare them. With three nodes, the
// two that remain compare the records of the third. The caller holds the table's lock.
func (in *inboundMap) compareOrphaned(tx *table.Tx, v *view, d *wire.Digests, exact bool, r *comparisonResult) (unknown string) {
	switch {
	case !in.l.supportsOwnerRequests:
		return "" // an older version of syncd: the digest of its fallback sender covers them
	case d.Orphaned == nil:
		return "the peer sends no digest of orphaned records"
	case d.Members != v.members:
		return "this node and the peer see different live nodes"
	case !in.m.requestsComplete.Load():
		return "orphaned records are still being received"
	}
	local, buckets := orphanedDigest(tx, v, d.Orphaned.Buckets != nil)
	if !exact {
		local.VersionSum += in.exceptionsVersionSum(tx, v.orphaned)
	}
	missing, _ := in.m.unsentDigests(tx) // the peer leaves out its own
	missing.subtractFrom(v.orphaned, &local, buckets)
	r.add(nodeComparison{NodeDigest: *d.Orphaned, local: local, localBuckets: buckets}, exact)
	return ""
}

// add adds the comparison of one digest. Layouts that differ compare versions and owners only.
func (r *comparisonResult) add(c nodeComparison, exact bool) {
	c.inSync = c.local.Sum == c.Digest.Sum
	if !exact {
		c.inSync = c.local.VersionSum == c.Digest.VersionSum
	}
	r.divergent = r.divergent || !c.inSync
	r.nodes = append(r.nodes, c)
}

// noteInSync records that this node holds what the peer has sent. It ends the backoff of repairs.
// The caller holds inboundStream.mu.
func (in *inboundMap) noteInSync(position uint64, now time.Time) {
	c := &in.comparison
	// Only a repair sets divergent, so a difference in flight is not logged.
	if !c.inSync && c.divergent > 0 {
		in.l.r.opt.Logger.Info("map in sync with peer again", slog.String("peer", in.l.peer.Node), slog.String("map", in.m.name))
	}
	c.inSync, c.onThisStream, c.inSyncAt, c.inSyncPosition, c.divergent = true, true, now, position, 0
	c.departures = in.l.r.view.Load().departures
	c.divergentNodes, c.requestBuckets, c.repairBackoff = nil, c.list != nil, 0
}
