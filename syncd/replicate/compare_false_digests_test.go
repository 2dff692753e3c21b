package replicate

import (
	"testing"
	"time"
)

// TestFalseDigestsAreSlowedDown checks that repairs without a reason become rare, are counted and make the digests of
// the peer count as false. Digests that agree for a moment change nothing.
func TestFalseDigestsAreSlowedDown(t *testing.T) {
	x := newInboundFixture(t)
	x.r.opt.digestInterval = time.Second
	c, now := &x.in.comparison, time.Now()
	for i, want := range []time.Duration{2, 4, 8, 16, 32, 60, 60} {
		x.in.endResend(&inboundResend{}, now)
		if got := c.repairAfter.Sub(now); got != want*time.Second {
			t.Errorf("repair %d: got next after %s, want %s", i, got, want*time.Second)
		}
		if got, want := x.in.unexplained.isFalse(now), i >= falseDigestRepairs; got != want {
			t.Errorf("repair %d: digests are false: got %t, want %t", i, got, want)
		}
		x.in.noteInSync(1, now)
	}
	if n := x.r.Stats().Unexplained; n != 7 {
		t.Errorf("unexplained repairs: got %d, want 7", n)
	}
	if m, _ := (&node{r: x.r}).status("x", testMap); !m.FalseDigests {
		t.Error("status of the map: got no false digests, want false digests")
	}
	for range 100 {
		x.in.noteUnexplained(now)
	}
	later := now.Add((maxUnexplained - falseDigestRepairs) * unexplainedTTL)
	if x.in.unexplained.isFalse(later) || !x.in.unexplained.isFalse(later.Add(-time.Second)) {
		t.Errorf("unexplained repairs: got %+v, want one forgotten every %s", x.in.unexplained, unexplainedTTL)
	}
	x.in.unexplained = unexplainedRepairs{}
	x.in.endResend(&inboundResend{repaired: 3}, now)
	if !x.in.unexplained.checkNext || x.in.unexplained.count != 0 || c.repairAfter.Sub(now) != time.Second {
		t.Errorf("repair that changed records: got %+v, next after %s, want a check of the next digest, and 1 s",
			x.in.unexplained, c.repairAfter.Sub(now))
	}
}
