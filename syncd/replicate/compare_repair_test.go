package replicate

import (
	"testing"
	"time"

	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// TestRepairBackoff checks that the pause between repairs grows up to 1 min.
func TestRepairBackoff(t *testing.T) {
	x := newInboundFixture(t)
	c, now := &x.in.comparison, time.Now()
	x.r.opt.digestInterval = 10 * time.Second
	for i, want := range []time.Duration{10, 20, 40, 60, 60} {
		c.inSync = true
		wasWoken(x.stream.wake)
		x.in.endResend(&inboundResend{repaired: i, unrepaired: 1}, now)
		if c.repairAfter.Sub(now) != want*time.Second || c.inSync || c.divergent != i+1 || !wasWoken(x.stream.wake) {
			t.Errorf("repair %d: got next after %s, want %s; %+v", i, c.repairAfter.Sub(now), want*time.Second, *c)
		}
	}
	if x.in.endResend(&inboundResend{repaired: 2}, now); c.repairBackoff != 0 || c.divergent != 2 {
		t.Errorf("repair without remaining differences: got pause %s, %d divergent, want 0 and 2", c.repairBackoff, c.divergent)
	}
	c.inSync = true
	if x.in.endResend(&inboundResend{}, now); !c.inSync || c.divergent != 0 {
		t.Error("repair without differences: got not in sync, want the agreement kept")
	}
	if x.r.Stats().Repaired != 0+1+2+3+4+2 {
		t.Errorf("repaired entries: got %d, want 12", x.r.Stats().Repaired)
	}
}

// TestComparisonRequestsAreSentOnce checks that each request is sent once, and that one resend at a
// time is requested.
func TestComparisonRequestsAreSentOnce(t *testing.T) {
	x := newInboundFixture(t)
	c := &x.in.comparison
	asked := func() (kinds string) {
		for _, m := range x.stream.appendComparisons(nil) {
			switch {
			case m.GetCompare().GetMap() == 1:
				kinds += "digest "
			case m.GetResend().GetMap() == 1 && len(m.GetResend().GetBuckets()) == wire.BucketSetBytes:
				kinds += "repair "
			}
		}
		return kinds
	}
	c.requestBuckets = true
	for _, state := range []State{StateWaiting, StatePending, StateFailed} {
		x.in.state = state
		if got := asked(); got != "" {
			t.Errorf("state %s: got requests %s, want none", state, got)
		}
	}
	x.in.state = StateCaughtUp
	if got := asked() + asked(); got != "digest " {
		t.Errorf("requests: got %s, want one digest", got)
	}
	c.requestBuckets, c.resendBuckets, c.resendKey = true, new(table.BucketSet), x.tb.DigestID()
	x.in.state = StateSyncing
	if got := asked() + asked(); got != "repair " || c.resend == nil || c.resendBuckets != nil || c.resend.firstPosition != x.in.m.head()+1 {
		t.Errorf("requests: got %s, resend %+v, want one repair, a resend from position %d, and no buckets left",
			got, c.resend, x.in.m.head()+1)
	}
	c.resendBuckets, c.requestBuckets = new(table.BucketSet), true
	if got := asked(); got != "digest " || c.resendBuckets == nil {
		t.Errorf("requests during a resend: got %s, want one digest", got)
	}
	c.resendBuckets, c.resend = nil, nil
	if x.r.Stats().Repairs != 1 {
		t.Errorf("repairs: got %d, want 1", x.r.Stats().Repairs)
	}
	// A list without buckets is not part of a repair.
	l := &diffList{done: make(chan struct{})}
	c.list, c.resendBuckets = l, new(table.BucketSet)
	if asked(); c.resend.list != nil || c.list != l || x.r.Stats().Repairs != 2 {
		t.Errorf("resend of a repair: got %+v, want a resend without the list, the list still waiting, and 2 repairs", c.resend)
	}
	c.resend, c.resendBuckets, l.bucketsChosen = nil, new(table.BucketSet), true
	if asked(); c.resend.list != l || c.list != nil || x.r.Stats().Repairs != 2 {
		t.Errorf("resend of a list: got %+v, want a resend of the list, no list waiting, and 2 repairs", c.resend)
	}
}
