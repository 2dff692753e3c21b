package replicate

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// TestDigestRateLimit checks that few digests of a flood are compared. A peer that sends four
// digests in each interval, all on request, has all of them compared.
func TestDigestRateLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newInboundFixture(t)
		flood := func(n int, pause time.Duration) (compared uint64) {
			was := x.r.Stats().Digests
			for range n {
				x.handle(x.digestMessage(true))
				time.Sleep(pause)
			}
			return x.r.Stats().Digests - was
		}
		interval := x.r.opt.digestInterval
		if n := flood(1000, 0); n != digestBurst {
			t.Errorf("flood of 1,000 digests: got %d compared at once, want %d", n, digestBurst)
		}
		time.Sleep(interval)
		if n := flood(1000, 0); n != digestRate {
			t.Errorf("flood of 1,000 digests: got %d compared after an interval, want %d", n, digestRate)
		}
		if n := flood(1000, interval/100); n > 10*digestRate || n < 10*digestRate-1 {
			t.Errorf("flood of digests: got %d compared in 10 intervals, want %d", n, 10*digestRate)
		}
		if n := flood(100, interval/4); n != 100 {
			t.Errorf("digests at the regular rate: got %d of 100 compared, want 100", n)
		}
		x.stream.markDown(errGap)
		x.subscribe(1, false)
		flood(1000, 0)
		x.stream.markDown(errGap)
		x.subscribe(1, false)
		if n := flood(1000, 0); n != 0 {
			t.Errorf("flood on another stream: got %d compared, want 0", n)
		}
	})
}

// TestOrphanedDigestOfManyOwners checks that the digest of orphaned records covers the owners that
// have left, all of them.
func TestOrphanedDigestOfManyOwners(t *testing.T) {
	x := newInboundFixture(t)
	x.stream.supportsOwnerRequests = true
	x.in.owners.permit = &permit{peer: "x", orphaned: true, fallback: true}
	x.in.owners.requested = x.in.owners.permit
	const owners = 200
	m := stockBatch(x.in.index, 0, 10)
	b := m.GetBatch()
	b.Owners = nil
	for i := range uint32(owners) {
		b.Owners = append(b.Owners, &mapsyncv1.Incarnation{Node: fmt.Sprint("n", i), Number: 1})
		b.Deltas = append(b.Deltas, wireRecord(int(i), value(int(i)), 5, i))
	}
	x.handle(m)
	x.in.m.requestsComplete.Store(true)
	v := x.r.view.Load()
	var sum uint64
	parts := new(table.Buckets)
	x.tb.View(func(tx *table.Tx) {
		for i := range owners {
			g, each := digestOf(tx, fmt.Sprint("n", i), true)
			sum += g.Sum
			for b := range each {
				parts[b] += each[b]
			}
		}
	})
	digest := x.digestMessage(true)
	digest.GetDigest().MembersFingerprint = v.members
	digest.GetDigest().Orphaned = wire.NodeDigestToProto("", table.Digest{Sum: sum}, parts)
	x.handle(digest)
	if s := x.r.Stats(); s.Digests != 1 || s.DigestsDivergent+s.DigestsImpossible != 0 {
		t.Errorf("comparisons: got %d, %d divergent, %d impossible, reason %q, want 1, none and none",
			s.Digests, s.DigestsDivergent, s.DigestsImpossible, x.in.comparison.inconclusiveReason)
	}
	digest.GetDigest().Orphaned.Sum++
	if x.handle(digest); x.r.Stats().DigestsDivergent != 1 {
		t.Error("another sum: got in sync, want divergent")
	}
}
