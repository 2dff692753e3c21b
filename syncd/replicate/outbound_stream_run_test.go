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
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// timedFixture is a stream that stores when batches with records were sent.
type timedFixture struct {
	outboundFixture
	startedAt time.Time
	at        []time.Duration
}

func (s *timedFixture) SendMsg(m any) error {
	n := len(s.sent)
	err := s.outboundFixture.SendMsg(m)
	if len(s.sent) > n && len(s.sent[n].GetBatch().GetDeltas()) > 0 {
		s.at = append(s.at, time.Since(s.startedAt))
	}
	return err
}

// TestBatchPause checks that a change is sent at once, and that the changes within 1 ms after it
// are sent together.
func TestBatchPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutboundFixture(t)
		s := &timedFixture{outboundFixture: outboundFixture{t: t}}
		o.s.send = s
		o.r.opt.batchPause = time.Millisecond
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- o.s.run(ctx) }()
		time.Sleep(10 * time.Millisecond)
		s.startedAt = time.Now()
		for i, after := range []time.Duration{0, 200, 300, 5000, 7000} {
			time.Sleep(time.Until(s.startedAt.Add(after * time.Microsecond)))
			putTable(t, o.tb, i, i+1, 1)
			synctest.Wait()
		}
		cancel(errReplaced)
		if err := <-ended; !errors.Is(err, errReplaced) {
			t.Errorf("end of the stream: got %v, want errReplaced", err)
		}
		want := []time.Duration{0, time.Millisecond, 5 * time.Millisecond, 7 * time.Millisecond}
		if len(s.at) != len(want) {
			t.Fatalf("batches: got %s, want %s", s.at, want)
		}
		for i := range want {
			if s.at[i] != want[i] {
				t.Errorf("batches: got %s, want %s", s.at, want)
			}
		}
		if len(o.s.maps) != 0 {
			t.Error("end of the stream: got outbound map streams, want none")
		}
	})
}

// TestOutboundStreamEndReasons checks that a stream ends with its reason, also in the pause between
// two batches and before the first batch.
func TestOutboundStreamEndReasons(t *testing.T) {
	for name, c := range map[string]struct{ change, end time.Duration }{
		"before the first batch": {time.Second, 0},
		"idle":                   {time.Second, 50 * time.Millisecond},
		"in the pause":           {20 * time.Millisecond, 25 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			o := newOutboundFixture(t)
			o.r.opt.batchPause = time.Hour
			ctx, cancel := context.WithCancelCause(t.Context())
			begun := time.Now()
			if c.end == 0 {
				cancel(errReplaced)
			}
			time.AfterFunc(c.end, func() { cancel(errReplaced) })
			stop := time.AfterFunc(c.change, func() { putTable(t, o.tb, 1, 2, 1) })
			defer stop.Stop()
			if err := o.s.run(ctx); !errors.Is(err, errReplaced) || time.Since(begun) != c.end {
				t.Errorf("%s: run: got %v after %s, want an error with errReplaced and %s", name, err, time.Since(begun), c.end)
			}
		})
	}
}

// TestSendErrorsNameMessage checks that the error of the stream names the message that could not be sent.
func TestSendErrorsNameMessage(t *testing.T) {
	o := newOutboundFixture(t)
	o.err = errRefusedHere
	if err := o.s.run(t.Context()); !errors.Is(err, errRefusedHere) || !strings.Contains(err.Error(), "send welcome") {
		t.Errorf("send the Welcome: got %v, want an error with errRefusedHere and \"send welcome\"", err)
	}
	o = newOutboundFixture(t)
	o.s.probes, o.err = []receivedProbe{{1, 1}}, errRefusedHere
	if _, err := o.s.sendRound(o.now); !errors.Is(err, errRefusedHere) || !strings.Contains(err.Error(), "send clock") {
		t.Errorf("send a clock reply: got %v, want an error with errRefusedHere and \"send clock\"", err)
	}
	o = newOutboundFixture(t)
	o.sendPending()
	o.s.maps, o.err, o.now = nil, errRefusedHere, o.now.Add(time.Hour)
	if _, err := o.s.sendRound(o.now); !errors.Is(err, errRefusedHere) || !strings.Contains(err.Error(), "send heartbeat") {
		t.Errorf("send a heartbeat: got %v, want an error with errRefusedHere and \"send heartbeat\"", err)
	}
	o.s.probes = []receivedProbe{{1, 1}}
	if _, err := o.s.sendRound(o.now); !errors.Is(err, errRefusedHere) || !strings.Contains(err.Error(), "send clock") {
		t.Errorf("send a clock reply after the last map: got %v, want an error with errRefusedHere and \"send clock\"", err)
	}
}

// TestClockReplySendError checks that an idle stream ends if a clock reply cannot be sent.
func TestClockReplySendError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOutboundFixture(t)
		ended := make(chan error, 1)
		go func() { ended <- o.s.run(t.Context()) }()
		time.Sleep(time.Millisecond)
		synctest.Wait()
		begun := time.Now()
		o.err = errRefusedHere
		o.s.mu.Lock()
		err := o.s.handleClockProbe(&mapsyncv1.ClockProbe{Sent: 1})
		o.s.mu.Unlock()
		if err != nil {
			t.Fatalf("handle clock probe: got error %v, want nil", err)
		}
		if err := <-ended; !errors.Is(err, errRefusedHere) || !strings.Contains(err.Error(), "send clock") || time.Since(begun) != 0 {
			t.Errorf("run: got %v after %s, want an error with errRefusedHere and \"send clock\" at once", err, time.Since(begun))
		}
	})
}

// TestSendRoundWithHeartbeat checks whether a round with a heartbeat reports more to send.
func TestSendRoundWithHeartbeat(t *testing.T) {
	o := newOutboundFixture(t)
	for i, want := range []bool{true, false} {
		o.s.lastSent = time.Time{}
		o.m.comparison.madeAt, o.m.comparison.due = o.now.Add(time.Hour), o.now.Add(time.Hour) // no digests
		o.now = time.Now().Add(time.Hour)
		more, err := o.s.sendRound(o.now)
		if err != nil || more != want {
			t.Errorf("round %d: got more %t, error %v, want %t and nil", i, more, err, want)
		}
	}
}

// TestStreamLifetime checks that the lifetime is between 90 % of the limit and the limit.
func TestStreamLifetime(t *testing.T) {
	r, _ := newTestReplicator(t)
	s := newOutboundStream(r, target, nil)
	for _, limit := range []time.Duration{time.Hour, 5, 1} {
		r.opt.MaxStreamAge = limit
		low, high := time.Hour*24, time.Duration(0)
		for range 300 {
			age := s.lifetime()
			low, high = min(low, age), max(high, age)
		}
		if low < limit*9/10 || high > limit || low > limit*91/100+1 || high < limit*99/100 {
			t.Errorf("limit %s: lifetimes: got %s to %s, want %s to %s for the lowest, %s to %s for the highest",
				limit, low, high, limit*9/10, limit*91/100+1, limit*99/100, limit)
		}
	}
}

// TestStreamEndsBeforeCertificates checks that a stream ends before the certificates of both sides,
// and not at once while they are valid.
func TestStreamEndsBeforeCertificates(t *testing.T) {
	r, _ := newTestReplicator(t)
	r.opt.MaxStreamAge = time.Hour
	for left, want := range map[time.Duration]time.Duration{
		30 * time.Minute: 29 * time.Minute, 2 * time.Minute: time.Minute, time.Minute: 30 * time.Second, 8 * time.Second: 5 * time.Second, -time.Minute: 5 * time.Second,
	} {
		s := newOutboundStream(r, target, nil)
		s.caller.Until = time.Now().Add(left)
		if age := s.lifetime(); age > want || age < want-time.Second/2 || age < 0 {
			t.Errorf("%s before the end of the certificate: lifetime: got %s, want %s", left, age, want)
		}
	}
	s := newOutboundStream(r, target, nil)
	s.caller.Until = time.Now().Add(24 * time.Hour)
	if age := s.lifetime(); age > time.Hour || age < 54*time.Minute {
		t.Errorf("one day before the end of the certificate: lifetime: got %s, want at most %s and at least %s", age, time.Hour, 54*time.Minute)
	}
}

// TestOutboundStreamIsDone checks isDone before and after cancel.
func TestOutboundStreamIsDone(t *testing.T) {
	r, _ := newTestReplicator(t)
	r.ctx = t.Context()
	s, ctx := enterStream(t, r, target)
	if s.isDone() || ctx.Err() != nil {
		t.Error("new stream: got done, want not done")
	}
	if s.cancel(errMaxAge); !s.isDone() {
		t.Error("cancelled stream: got not done, want done")
	}
}

// TestObserversAreLogged checks that observers are logged and replicas are not.
func TestObserversAreLogged(t *testing.T) {
	var out bytes.Buffer
	r, _ := newTestReplicator(t)
	r.opt.Logger = slog.New(slog.NewTextHandler(&out, nil))
	s := newOutboundStream(r, target, nil)
	s.remote = "192.0.2.1"
	if err := s.checkRole(false); err != nil || out.Len() != 0 {
		t.Errorf("role of a replica: got error %v, log %s, want no error and no log", err, out.String())
	}
	if err := s.checkRole(true); err != nil || !strings.Contains(out.String(), `msg="observer connected" observer=x remote=192.0.2.1`) {
		t.Errorf("role of an observer: got error %v, log %s, want no error and a line about observer x at 192.0.2.1",
			err, out.String())
	}
	// An observer may use this node's name.
	s = newOutboundStream(r, r.opt.Self, &responseRecorder{})
	sub := subscription(1, testMap, testLayout)
	if sub.Observe = true; s.subscribe(sub) != nil {
		t.Error("observer with this node's name: got refused, want accepted")
	}
}

// TestPositionLostSendError checks that the stream ends if the end of a subscription cannot be sent.
func TestPositionLostSendError(t *testing.T) {
	o := newOutboundFixture(t)
	o.sendPending()
	o.m.positionLost, o.err = true, errRefusedHere
	if _, err := o.m.step(o.m.m, o.now); !errors.Is(err, errRefusedHere) {
		t.Errorf("step: got %v, want the error of Send", err)
	}
	o = newOutboundFixture(t)
	o.sendPending()
	o.m.positionLost = true
	if more, err := o.m.step(o.m.m, o.now); more || err != nil || kinds(o.takeSent()) != "END_REASON_POSITION_LOST" {
		t.Errorf("step: got more %t, error %v, want false, no error and END_REASON_POSITION_LOST", more, err)
	}
}

// TestResendEnd checks that nothing is left to send after a resend, and that a send error is returned.
func TestResendEnd(t *testing.T) {
	set := new(table.BucketSet)
	for b := range table.DigestBuckets {
		set.Add(b)
	}
	ask := func(o *outboundFixture) {
		putTable(t, o.tb, 1, 4, 1)
		o.sendPending()
		if err := o.s.handleResendRequest(&mapsyncv1.ResendRequest{Map: 1, Buckets: wire.EncodeBucketSet(set)}); err != nil {
			t.Fatalf("handle resend request: got error %v, want nil", err)
		}
	}
	o := newOutboundFixture(t)
	ask(o)
	for steps := 0; ; steps++ {
		more := o.step()
		sent := kinds(o.takeSent())
		if end := strings.HasSuffix(sent, "Resent"); end == more || steps > 5 {
			t.Fatalf("step %d: sent %q, more %t, want Resent and no more, after at most 6 steps", steps, sent, more)
		} else if end {
			break
		}
	}
	o = newOutboundFixture(t)
	ask(o)
	o.step() // starts the resend
	o.err = errRefusedHere
	if _, err := o.m.step(o.m.m, o.now); !errors.Is(err, errRefusedHere) || o.m.comparison.resendRequest.Load() == nil {
		t.Errorf("step: got %v, want the error of Send", err)
	}
}
