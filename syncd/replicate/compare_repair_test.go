package replicate

import (
	"testing"
	"time"

	"mapsync/syncd/table"
)

// TestRepairsThatDoNotHelp come ever later, up to a minute apart.
func TestRepairsThatDoNotHelp(t *testing.T) {
	x := newStreamless(t)
	c, now := &x.in.comparing, time.Now()
	x.r.opt.compare = 10 * time.Second
	for i, want := range []time.Duration{10, 20, 40, 60, 60} {
		c.agreed = true
		woken(x.l.wake)
		x.in.endJob(&job{found: i, left: 1}, now)
		if c.retry.Sub(now) != want*time.Second || c.agreed || c.divergent != i+1 || !woken(x.l.wake) {
			t.Errorf("repair %d: the next after %s, want %s; %+v", i, c.retry.Sub(now), want*time.Second, *c)
		}
	}
	if x.in.endJob(&job{found: 2}, now); c.pause != 0 || c.divergent != 2 {
		t.Errorf("a repair that found all: pause %s, %d diverge", c.pause, c.divergent)
	}
	c.agreed = true
	if x.in.endJob(&job{}, now); !c.agreed || c.divergent != 0 {
		t.Error("a repair that found nothing ends agreement")
	}
	if x.r.Stats().Repaired != 0+1+2+3+4+2 {
		t.Errorf("%d entries repaired", x.r.Stats().Repaired)
	}
}

// TestComparisonsAreRequested: what is to be asked for goes out once, and a repair one at a time.
func TestComparisonsAreRequested(t *testing.T) {
	x := newStreamless(t)
	c := &x.in.comparing
	asked := func() (kinds string) {
		for _, m := range x.l.comparisons(nil) {
			switch {
			case m.GetCompare().GetMap() == 1:
				kinds += "digest "
			case m.GetRetell().GetMap() == 1 && len(m.GetRetell().GetBuckets()) == setSize:
				kinds += "repair "
			}
		}
		return kinds
	}
	c.ask = true
	for _, state := range []State{StateWaiting, StatePending, StateFailed} {
		x.in.state = state
		if got := asked(); got != "" {
			t.Errorf("%s: asked for %s", state, got)
		}
	}
	x.in.state = StateCaughtUp
	if got := asked() + asked(); got != "digest " {
		t.Errorf("asked for %s", got)
	}
	c.ask, c.want = true, new(table.BucketSet)
	x.in.state = StateSyncing
	if got := asked() + asked(); got != "repair " || c.job == nil || c.want != nil || c.job.before != x.in.m.head()+1 {
		t.Errorf("asked for %s, job %+v", got, c.job)
	}
	c.want, c.ask = new(table.BucketSet), true
	if got := asked(); got != "digest " || c.want == nil {
		t.Errorf("during a repair: asked for %s", got)
	}
	c.want, c.job = nil, nil
	if x.r.Stats().Repairs != 1 {
		t.Errorf("%d repairs", x.r.Stats().Repairs)
	}
	// A list that has not chosen its buckets is not what the repair is for.
	l := &listing{done: make(chan struct{})}
	c.list, c.want = l, new(table.BucketSet)
	if asked(); c.job.list != nil || c.list != l || x.r.Stats().Repairs != 2 {
		t.Errorf("job %+v", c.job)
	}
	c.job, c.want, l.chosen = nil, new(table.BucketSet), true
	if asked(); c.job.list != l || c.list != nil || x.r.Stats().Repairs != 2 {
		t.Errorf("job %+v", c.job)
	}
}
