package replicate

import (
	"fmt"
	"log/slog"
	"time"

	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// Peers compare what they hold. A sender with nothing left to send sends digests of its own records and
// of all orphaned records. A receiver that has merged everything before such a digest holds the same
// records. A remaining difference is a change in flight from another node: the receiver or a third node
// took over a key, and the sender has not received that change yet. Such differences are temporary. A
// difference is confirmed when a bucket differs by the same sum in two consecutive digests.
//
// The receiver then requests a resend of all records in these buckets, of all owners, and merges
// them by version like any others. Records in these buckets that the receiver holds as the
// sender's, and that the sender does not resend, no longer exist at the sender.

// digestOf returns the digest of one node's records, and its buckets if withBuckets is set, else nil.
func digestOf(tx *table.Tx, node string, withBuckets bool) (d table.Digest, buckets *table.Buckets) {
	if withBuckets {
		buckets = new(table.Buckets)
	}
	return tx.Digest(node, buckets), buckets
}

// comparisonResult is the result of comparing one Digest message.
type comparisonResult struct {
	// nodes has an element for each digest that was compared. add appends to it, with the table locked.
	nodes              []nodeComparison
	divergent          bool   // at least one of nodes differs
	inconclusiveReason string // why the comparison is incomplete; empty: it is complete
}

// compareDigests compares the digests of the peer with those of this node. exact reports that
// values are comparable. If not, only version sums are compared. All sums of this node are read
// under one lock of the table, so they belong to one state. The caller holds inboundStream.mu.
func (in *inboundMap) compareDigests(d *wire.Digests, exact bool) (r comparisonResult) {
	v := in.stream.r.view.Load()
	if d.InconclusiveReason != "" {
		r.inconclusiveReason = fmt.Sprintf("the peer cannot compare all records: %.256q", d.InconclusiveReason)
	}
	own := false
	in.m.table.View(func(tx *table.Tx) {
		// Digests of other live nodes count only if this node requested their records and has
		// received them.
		for _, n := range d.Nodes {
			switch {
			case n.Node == in.stream.peer.Node:
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

// add adds the comparison of one digest. Layouts that differ compare versions and owners only.
func (r *comparisonResult) add(c nodeComparison, exact bool) {
	c.inSync = c.local.Sum == c.Digest.Sum
	if !exact {
		c.inSync = c.local.VersionSum == c.Digest.VersionSum
	}
	r.divergent = r.divergent || !c.inSync
	r.nodes = append(r.nodes, c)
}

// applyComparison counts a comparison and updates the state of the map. The caller holds
// inboundStream.mu.
func (in *inboundMap) applyComparison(r *comparisonResult, exact bool, d *wire.Digests, now time.Time) {
	c := &in.comparison
	in.countAboveLimit(r)
	switch {
	case r.divergent:
		// Each comparison counts in exactly one counter.
		in.stream.r.count.divergent.Add(1)
	case r.inconclusiveReason != "":
		in.stream.r.count.impossible.Add(1)
	default:
		in.stream.r.count.inSync.Add(1)
	}
	if r.inconclusiveReason != "" {
		in.noteInconclusive(r.inconclusiveReason)
	} else if c.inconclusiveReason, c.inconclusiveRounds = "", 0; exact || !r.divergent {
		c.impossibleReason = ""
	}
	// An incomplete comparison without a difference proves nothing, in either direction.
	switch {
	case !r.divergent && r.inconclusiveReason == "":
		in.noteInSync(d.Position, now)
	case !r.divergent:
		c.divergentNodes = nil
	case exact:
		in.checkBuckets(r.nodes, r.inconclusiveReason == "", d, now)
	default:
		in.checkNodes(r.nodes, now)
	}
}

// noteInSync records that this node holds what the peer has sent. It ends the backoff of repairs.
// The caller holds inboundStream.mu.
func (in *inboundMap) noteInSync(position uint64, now time.Time) {
	c := &in.comparison
	// Only a repair sets divergent, so a difference in flight is not logged.
	if !c.inSync && c.divergent > 0 {
		in.stream.r.opt.Logger.Info("map in sync with peer again", slog.String("peer", in.stream.peer.Node), slog.String("map", in.m.name))
	}
	c.inSync, c.onThisStream, c.inSyncAt, c.inSyncPosition, c.divergent = true, true, now, position, 0
	c.departures = in.stream.r.view.Load().departures
	c.divergentNodes, c.requestBuckets, c.repairBackoff = nil, c.list != nil, 0
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
		poke(in.stream.wake)
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
		in.stream.r.opt.Logger.Warn("cannot compare map with peer", slog.String("peer", in.stream.peer.Node),
			slog.String("map", in.m.name), slog.String("reason", why),
			slog.String("hint", "if the keys differ: use the same first line in gossip-key-file on all nodes, then syncd reload; otherwise see docs/night.md#comparison-impossible"))
	}
	c.impossibleReason, c.inSync, c.divergent, c.divergentNodes = why, false, 0, nil
	c.dropBuckets()
	if c.list != nil && c.resend == nil {
		c.list.end(fmt.Errorf("compare map %q with %s: %s", in.m.name, in.stream.peer.Node, why))
		c.list = nil
	}
}

// incomparableReason returns why the last comparison was inconclusive; empty: it was conclusive.
// The reason of a lasting problem comes first. The caller holds inboundStream.mu.
func (c *inboundComparison) incomparableReason() string {
	if c.impossibleReason != "" {
		return c.impossibleReason
	}
	return c.inconclusiveReason
}
