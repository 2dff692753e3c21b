package replicate

import (
	"fmt"
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
	// is the same for the last comparison alone.
	impossibleReason, inconclusiveReason string
	// inconclusiveRounds is the number of comparisons in a row with an inconclusiveReason, at most maxInconclusive.
	inconclusiveRounds int
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
	// resendBuckets are the buckets to request again with the next request; nil: none. They belong to resendKey, the digest
	// key of the comparison that has chosen them.
	resendBuckets *table.BucketSet
	resendKey     uint64
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
	// digestKey is the table.DigestID to which the buckets belong. 0: the peer has sent a digest with another key meanwhile,
	// and may have resent other buckets. inboundStream.mu guards it.
	digestKey uint64
	// firstPosition is the head of this node's table plus 1 when the resend was requested. Records
	// that the peer has sent since then are at or above it.
	firstPosition uint64
	// acknowledged is what acknowledgedBy returned before the resend was requested.
	acknowledged uint64
	// tableHead is the head of this node's table after the last sweep.
	tableHead uint64
	// repaired is the number of entries that differed and were repaired. The receiving goroutine owns it.
	repaired int
	// unrepaired is the number of entries that still differ and are not exceptions. The receiving
	// goroutine owns it.
	unrepaired int
	// coverage has the keys about which the resend proves nothing. The table's lock guards it.
	coverage table.Coverage
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

// chooseBuckets sets the buckets of the next request, and the digest key to which they belong. The caller holds
// inboundStream.mu.
func (c *inboundComparison) chooseBuckets(buckets *table.BucketSet, key uint64) {
	c.resendBuckets, c.resendKey = buckets, key
}

// dropBuckets discards chosen buckets. A list chooses others from the next digest. The caller holds inboundStream.mu.
func (c *inboundComparison) dropBuckets() {
	c.resendBuckets = nil
	if c.list != nil {
		c.list.bucketsChosen, c.requestBuckets = false, true
	}
}

// beginFullSync discards earlier agreements before a full sync. The full sync may change what this
// node holds. The caller holds inboundStream.mu.
func (c *inboundComparison) beginFullSync() {
	c.inSync, c.divergentNodes, c.resendBuckets = false, nil, nil
}

// nodeComparison is the comparison of one digest of a message with that of this node.
type nodeComparison struct {
	// NodeDigest is the digest of the peer. It does not change.
	wire.NodeDigest
	// local is the digest of this node's records of NodeDigest.Node.
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
	in.endFullSync()
	c := &in.comparison
	if c.resend != nil && d.Key != c.resend.digestKey {
		c.resend.digestKey = 0
	}
	if c.resendBuckets != nil && d.Key != c.resendKey {
		c.dropBuckets()
	}
	// Sums made with another key are not comparable.
	if d.Key != in.m.table.DigestID() {
		in.stream.r.count.impossible.Add(1)
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
	in.applyComparison(&r, exact, &d, now)
	return nil
}
