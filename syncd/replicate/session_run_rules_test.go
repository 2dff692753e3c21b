package replicate

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// timed is a stream of responses that keeps when batches with records were sent.
type timed struct {
	outStream
	begun time.Time
	at    []time.Duration
}

func (s *timed) SendMsg(m any) error {
	n := len(s.sent)
	err := s.outStream.SendMsg(m)
	if len(s.sent) > n && len(s.sent[n].GetBatch().GetDeltas()) > 0 {
		s.at = append(s.at, time.Since(s.begun))
	}
	return err
}

// TestPaceOfBatches: a change is sent at once, and those within a millisecond after it together.
func TestPaceOfBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOut(t)
		s := &timed{outStream: outStream{t: t}}
		o.s.send = s
		o.r.opt.pace = time.Millisecond
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- o.s.run(ctx) }()
		time.Sleep(10 * time.Millisecond)
		s.begun = time.Now()
		for i, after := range []time.Duration{0, 200, 300, 5000, 7000} {
			time.Sleep(time.Until(s.begun.Add(after * time.Microsecond)))
			putTable(t, o.tb, i, i+1, 1)
			synctest.Wait()
		}
		cancel(errReplaced)
		if err := <-ended; !errors.Is(err, errReplaced) {
			t.Errorf("%v", err)
		}
		want := []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 7 * time.Millisecond}
		if len(s.at) != len(want) {
			t.Fatalf("batches after %s, want %s", s.at, want)
		}
		for i := range want {
			if s.at[i] != want[i] {
				t.Errorf("batches after %s, want %s", s.at, want)
			}
		}
		if len(o.s.feeds) != 0 {
			t.Error("the session has ended with feeds")
		}
	})
}

// TestReasonsForTheEndOfASession: also in the pause between two batches, and before the first.
func TestReasonsForTheEndOfASession(t *testing.T) {
	for name, c := range map[string]struct{ change, end time.Duration }{
		"before the first batch": {time.Second, 0},
		"idle":                   {time.Second, 50 * time.Millisecond},
		"in a pause":             {20 * time.Millisecond, 25 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			o := newOut(t)
			o.r.opt.pace = time.Hour
			ctx, cancel := context.WithCancelCause(t.Context())
			begun := time.Now()
			if c.end == 0 {
				cancel(errReplaced)
			}
			time.AfterFunc(c.end, func() { cancel(errReplaced) })
			stop := time.AfterFunc(c.change, func() { putTable(t, o.tb, 1, 2, 1) })
			defer stop.Stop()
			if err := o.s.run(ctx); !errors.Is(err, errReplaced) || time.Since(begun) != c.end {
				t.Errorf("%s: %v after %s", name, err, time.Since(begun))
			}
		})
	}
}

// TestMessagesThatCannotBeSent end a session with an error that names the message.
func TestMessagesThatCannotBeSent(t *testing.T) {
	o := newOut(t)
	o.err = errRefusedHere
	if err := o.s.run(t.Context()); !errors.Is(err, errRefusedHere) || !strings.Contains(err.Error(), "send welcome") {
		t.Errorf("the welcome: %v", err)
	}
	o = newOut(t)
	o.s.probes, o.err = []received{{1, 1}}, errRefusedHere
	if _, err := o.s.sendRound(o.now); !errors.Is(err, errRefusedHere) || !strings.Contains(err.Error(), "send clock") {
		t.Errorf("a clock: %v", err)
	}
	o = newOut(t)
	o.run()
	o.s.feeds, o.err, o.now = nil, errRefusedHere, o.now.Add(time.Hour)
	if _, err := o.s.sendRound(o.now); !errors.Is(err, errRefusedHere) || !strings.Contains(err.Error(), "send heartbeat") {
		t.Errorf("a heartbeat: %v", err)
	}
	o.s.probes = []received{{1, 1}}
	if _, err := o.s.sendRound(o.now); !errors.Is(err, errRefusedHere) || !strings.Contains(err.Error(), "send clock") {
		t.Errorf("a clock after the last map: %v", err)
	}
}

// TestClockThatCannotBeSent ends a session that is idle.
func TestClockThatCannotBeSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOut(t)
		ended := make(chan error, 1)
		go func() { ended <- o.s.run(t.Context()) }()
		time.Sleep(time.Millisecond)
		synctest.Wait()
		begun := time.Now()
		o.err = errRefusedHere
		o.s.mu.Lock()
		err := o.s.probed(&mapsyncv1.ClockProbe{Sent: 1})
		o.s.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		if err := <-ended; !errors.Is(err, errRefusedHere) || !strings.Contains(err.Error(), "send clock") || time.Since(begun) != 0 {
			t.Errorf("%v after %s", err, time.Since(begun))
		}
	})
}

// TestRoundWithAHeartbeat reports whether there is more to send.
func TestRoundWithAHeartbeat(t *testing.T) {
	o := newOut(t)
	for i, want := range []bool{true, false} {
		o.s.lastSent = time.Time{}
		o.f.telling.made, o.f.telling.due = o.now.Add(time.Hour), o.now.Add(time.Hour) // no digests
		o.now = time.Now().Add(time.Hour)
		more, err := o.s.sendRound(o.now)
		if err != nil || more != want {
			t.Errorf("round %d: more %t, %v", i, more, err)
		}
	}
}

// TestAgeOfStreams is between nine tenths of the limit and the limit.
func TestAgeOfStreams(t *testing.T) {
	r, _ := newReceiver(t)
	s := newSession(r, target, nil)
	for _, limit := range []time.Duration{time.Hour, 5, 1} {
		r.opt.MaxStreamAge = limit
		low, high := time.Hour*24, time.Duration(0)
		for range 300 {
			age := s.lifetime()
			low, high = min(low, age), max(high, age)
		}
		if low < limit*9/10 || high > limit || low > limit*91/100+1 || high < limit*99/100 {
			t.Errorf("limit %s: from %s to %s", limit, low, high)
		}
	}
}

// TestAgeOfCertificates: a stream ends before the certificates of both sides, and not at once while
// they are valid.
func TestAgeOfCertificates(t *testing.T) {
	r, _ := newReceiver(t)
	r.opt.MaxStreamAge = time.Hour
	for left, want := range map[time.Duration]time.Duration{
		30 * time.Minute: 29 * time.Minute, 2 * time.Minute: time.Minute, time.Minute: 30 * time.Second, 8 * time.Second: 5 * time.Second, -time.Minute: 5 * time.Second,
	} {
		s := newSession(r, target, nil)
		s.caller.Until = time.Now().Add(left)
		if age := s.lifetime(); age > want || age < want-time.Second/2 || age < 0 {
			t.Errorf("%s before the end: %s, want %s", left, age, want)
		}
	}
	s := newSession(r, target, nil)
	s.caller.Until = time.Now().Add(24 * time.Hour)
	if age := s.lifetime(); age > time.Hour || age < 54*time.Minute {
		t.Errorf("a day before the end: %s", age)
	}
}

// TestSessionsThatAreDone are those that were cancelled.
func TestSessionsThatAreDone(t *testing.T) {
	r, _ := newReceiver(t)
	r.ctx = t.Context()
	s, ctx := enter(t, r, target)
	if s.isDone() || ctx.Err() != nil {
		t.Error("done from the start")
	}
	if s.cancel(errAged); !s.isDone() {
		t.Error("not done after its end")
	}
}

// TestObserversAreLogged, replicas are not.
func TestObserversAreLogged(t *testing.T) {
	var out bytes.Buffer
	r, _ := newReceiver(t)
	r.opt.Logger = slog.New(slog.NewTextHandler(&out, nil))
	s := newSession(r, target, nil)
	s.remote = "192.0.2.1"
	if err := s.admit(false); err != nil || out.Len() != 0 {
		t.Errorf("a replica: %v, %s", err, out.String())
	}
	if err := s.admit(true); err != nil || !strings.Contains(out.String(), `msg="observer connected" observer=x remote=192.0.2.1`) {
		t.Errorf("an observer: %v, %s", err, out.String())
	}
	// An observer may have this node's name.
	s = newSession(r, r.opt.Self, &recorder{})
	sub := subscription(1, testMap, testLayout)
	if sub.Observe = true; s.subscribe(sub) != nil {
		t.Error("an observer of this node's name is refused")
	}
}

// TestLostPositionThatCannotBeSent ends the session.
func TestLostPositionThatCannotBeSent(t *testing.T) {
	o := newOut(t)
	o.run()
	o.f.lost, o.err = true, errRefusedHere
	if _, err := o.f.step(o.f.m, o.now); !errors.Is(err, errRefusedHere) {
		t.Errorf("%v", err)
	}
	o = newOut(t)
	o.run()
	o.f.lost = true
	if more, err := o.f.step(o.f.m, o.now); more || err != nil || kinds(o.took()) != "END_REASON_POSITION_LOST" {
		t.Errorf("%t, %v", more, err)
	}
}

// TestEndOfARepair: nothing is left to send after it, and one that cannot be sent is an error.
func TestEndOfARepair(t *testing.T) {
	set := new(table.BucketSet)
	for b := range table.DigestBuckets {
		set.Add(b)
	}
	ask := func(o *outStream) {
		putTable(t, o.tb, 1, 4, 1)
		o.run()
		if err := o.s.askedAgain(&mapsyncv1.RetellRequest{Map: 1, Buckets: setBytes(set)}); err != nil {
			t.Fatal(err)
		}
	}
	o := newOut(t)
	ask(o)
	for steps := 0; ; steps++ {
		more := o.step()
		sent := kinds(o.took())
		if end := strings.HasSuffix(sent, "Retold"); end == more || steps > 5 {
			t.Fatalf("step %d: sent %q, more %t", steps, sent, more)
		} else if end {
			break
		}
	}
	o = newOut(t)
	ask(o)
	o.step() // begins the repair
	o.err = errRefusedHere
	if _, err := o.f.step(o.f.m, o.now); !errors.Is(err, errRefusedHere) || o.f.telling.retell.Load() == nil {
		t.Errorf("%v", err)
	}
}
