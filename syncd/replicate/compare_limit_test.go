package replicate

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// TestDigestsOfStrangers: of a flood of digests few are compared. None is ignored of a peer that sends four in
// each interval, as one that is asked for them does.
func TestDigestsOfStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newStreamless(t)
		flood := func(n int, pause time.Duration) (compared uint64) {
			was := x.r.Stats().Digests
			for range n {
				x.take(x.digest(true))
				time.Sleep(pause)
			}
			return x.r.Stats().Digests - was
		}
		interval := x.r.opt.compare
		if n := flood(1000, 0); n != digestBurst {
			t.Errorf("%d of 1,000 digests are compared at once, want %d", n, digestBurst)
		}
		time.Sleep(interval)
		if n := flood(1000, 0); n != digestRate {
			t.Errorf("%d of 1,000 digests are compared after an interval, want %d", n, digestRate)
		}
		if n := flood(1000, interval/100); n > 10*digestRate || n < 10*digestRate-1 {
			t.Errorf("%d digests are compared in ten intervals, want %d", n, 10*digestRate)
		}
		if n := flood(100, interval/4); n != 100 {
			t.Errorf("%d of 100 digests are compared that come as they should", n)
		}
		x.l.down(errGap)
		x.subscribe(1, false)
		flood(1000, 0)
		x.l.down(errGap)
		x.subscribe(1, false)
		if n := flood(1000, 0); n != 0 {
			t.Errorf("%d digests are compared on another stream", n)
		}
	})
}

// TestDigestOfManyStrangers: a digest of orphaned records has the sums of all owners that have left.
func TestDigestOfManyStrangers(t *testing.T) {
	x := newStreamless(t)
	x.l.ownerRequests = true
	x.in.requesting.permit = &permit{peer: "x", orphaned: true, fallback: true}
	x.in.requesting.wanted = x.in.requesting.permit
	const owners = 200
	m := stockBatch(x.in.index, 0, 10)
	b := m.GetBatch()
	b.Owners = nil
	for i := range uint32(owners) {
		b.Owners = append(b.Owners, &mapsyncv1.Incarnation{Node: fmt.Sprint("n", i), Number: 1})
		b.Deltas = append(b.Deltas, record(int(i), value(int(i)), 5, i))
	}
	x.take(m)
	x.in.m.settled.Store(true)
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
	digest := x.digest(true)
	digest.GetDigest().Members = v.members
	digest.GetDigest().Orphaned = sums{table.Digest{Sum: sum}}.message("", parts)
	x.take(digest)
	if s := x.r.Stats(); s.Digests != 1 || s.DigestsDiffer+s.DigestsImpossible != 0 {
		t.Errorf("%d compared, %d differ, %d impossible: %s", s.Digests, s.DigestsDiffer, s.DigestsImpossible, x.in.comparing.unknown)
	}
	digest.GetDigest().Orphaned.Sum++
	if x.take(digest); x.r.Stats().DigestsDiffer != 1 {
		t.Error("another sum makes no difference")
	}
}
