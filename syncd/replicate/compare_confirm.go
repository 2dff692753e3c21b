package replicate

import (
	"time"

	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// divergentNode is an owner whose digest differs from that of the peer. inboundStream.mu guards it.
// It exists from the first comparison that found the difference until one finds none.
type divergentNode struct {
	// rounds is the number of comparisons since the first difference. Comparisons of equal layouts
	// count only if the peer sent buckets.
	rounds int
	// bucketDeltas are the sums of the peer minus those of this node, in the last round. Sums are
	// modulo 2^64, so a delta has no sign. 0: the bucket agreed.
	bucketDeltas table.Buckets
	// versionSumDelta is the version sum of the peer minus that of this node, in the last round.
	versionSumDelta uint64
	// sameRounds is the number of rounds in a row that repeated versionSumDelta. It is used only
	// for entries of another layout.
	sameRounds int
	// matchedBuckets are the buckets that agreed in at least one round. If all buckets are in it,
	// the two nodes have agreed on each bucket at some moment, and the map counts as in sync.
	matchedBuckets table.BucketSet
	// explained are the differences that remained after a repair, by bucket. They count as
	// agreement. The peer lacks a newer record that this node has: its own comparison reports that.
	explained map[int]uint64
	// explainedUntil is the end of the validity of explained.
	explainedUntil time.Time
	// repairedBuckets are the buckets repaired since the last round; nil: none. endResend sets it.
	repairedBuckets *table.BucketSet
}

// checkBuckets finds the buckets that differ by the same sum as in the previous round. Differences
// that are in flight change between rounds.
//
// A confirmed difference is repaired: it cannot be a change in flight, unless that change is
// delayed for longer than an interval. Then the repair merges what the peer has, which is harmless.
//
// complete reports that the peer and this node compared all records. If it is false, differences
// are repaired and nothing is confirmed. The caller holds inboundStream.mu.
func (in *inboundMap) checkBuckets(all []nodeComparison, complete bool, d *wire.Digests, now time.Time) {
	c := &in.comparison
	// Nodes that are in sync now lose their state. A later difference starts from the first round.
	old := c.divergentNodes
	c.divergentNodes = make(map[string]*divergentNode)
	confirmed, agreed := new(table.BucketSet), complete
	withBuckets, remains := false, false
	for i := range all {
		n := &all[i]
		if n.inSync {
			continue
		}
		s := old[n.Node]
		if s == nil {
			s = &divergentNode{}
		}
		c.divergentNodes[n.Node] = s
		if n.NodeDigest.Buckets != nil {
			left := s.compareBuckets(n, confirmed, now)
			withBuckets, remains = true, remains || left && in.unexplained.checkNext
		}
		// Each bucket of the node was equal in some round since the first difference.
		agreed = agreed && s.matchedBuckets.Len() == table.DigestBuckets
	}
	if complete && remains {
		in.noteUnexplained(now)
	}
	if withBuckets {
		in.unexplained.checkNext = false
	}
	// Buckets cost 8 KiB for each node, so they are sent only after a difference.
	c.requestBuckets = true
	poke(in.stream.wake)
	switch {
	case confirmed.Len() > 0:
		// The resend shows whether this is a difference or a change that is in flight for long. One
		// repair at a time, and not before the backoff of the last one has passed.
		if c.resend == nil && c.resendBuckets == nil && !now.Before(c.repairAfter) {
			c.chooseBuckets(confirmed, d.Key)
		}
	case agreed:
		// Each bucket agreed at some time since the first difference.
		in.noteInSync(d.Position, now)
	}
}

// compareBuckets compares the buckets of one digest, and adds confirmed differences to confirmed.
// It reports whether a bucket differs that was repaired since the last round. The caller holds
// inboundStream.mu, and n has buckets.
func (s *divergentNode) compareBuckets(n *nodeComparison, confirmed *table.BucketSet, now time.Time) (left bool) {
	// An old explanation may hide a new difference.
	if now.After(s.explainedUntil) {
		s.explained = nil
	}
	for b := range n.localBuckets {
		d := n.NodeDigest.Buckets[b] - n.localBuckets[b]
		// A repair has just merged everything that the peer has in this bucket.
		if s.repairedBuckets != nil && s.repairedBuckets.Has(b) && d != 0 {
			if s.explained == nil {
				s.explained, s.explainedUntil = make(map[int]uint64), now.Add(explainedTTL)
			}
			s.explained[b], left = d, true
		}
		switch {
		case d == 0 || s.explained[b] == d:
			s.matchedBuckets.Add(b)
		// The same sum twice in a row: changes in flight would give another sum.
		case s.rounds > 0 && d == s.bucketDeltas[b]:
			confirmed.Add(b)
		}
		s.bucketDeltas[b] = d
	}
	s.rounds, s.repairedBuckets = s.rounds+1, nil
	return left
}

// maxVersionSumRounds is the number of rounds after which a comparison of entries with another
// layout is given up, because changes are always in flight.
const maxVersionSumRounds = 16

// sameVersionSumRounds is the number of repetitions of the same difference after which a full sync
// repairs it. A difference of version sums has no buckets to look into.
const sameVersionSumRounds = 4

// checkNodes compares entries of another layout, which are comparable only as a whole. A full sync
// repairs a difference that persists.
//
// Such a repair costs a full sync, because version sums do not show which records differ. The
// caller holds inboundStream.mu.
func (in *inboundMap) checkNodes(all []nodeComparison, now time.Time) {
	c := &in.comparison
	if c.divergentNodes == nil {
		c.divergentNodes = make(map[string]*divergentNode)
	}
	c.requestBuckets = true // to start another round soon
	poke(in.stream.wake)
	for i := range all {
		n := &all[i]
		if n.inSync {
			delete(c.divergentNodes, n.Node)
			continue
		}
		s := c.divergentNodes[n.Node]
		if s == nil {
			s = &divergentNode{}
			// The peer chooses the names, so their number is bounded.
			if len(c.divergentNodes) < wire.MaxDigests {
				c.divergentNodes[n.Node] = s
			}
		}
		delta := n.Digest.VersionSum - n.local.VersionSum
		// A difference in flight changes between rounds. A persistent one repeats. The first round
		// compares with 0, which no difference has.
		if s.sameRounds++; delta != s.versionSumDelta {
			s.sameRounds = 0
		}
		s.rounds, s.versionSumDelta = s.rounds+1, delta
		switch {
		case s.sameRounds >= sameVersionSumRounds && !now.Before(c.repairAfter):
			c.inSync, c.divergent = false, max(1, n.Digest.Live-n.local.Live, n.local.Live-n.Digest.Live)
			in.backOffRepair(now)
			in.repeatFullSyncAt = now
			in.stream.r.count.repairs.Add(1)
			// An earlier full sync has not removed the difference.
			if in.unexplained.checkNext {
				in.noteUnexplained(now)
			}
			in.unexplained.checkNext = true
		case s.rounds > maxVersionSumRounds && s.sameRounds == 0:
			in.noteIncomparable("entries have another layout at the peer and change owner continuously")
			return
		}
	}
}
