package replicate

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// clockStream is a stream to a peer that answers clock probes.
type clockStream struct {
	mapsyncv1.ReplicationService_SubscribeClient
	sent           []*mapsyncv1.SubscribeRequest
	sendErr        error
	answers        []*mapsyncv1.SubscribeResponse // sent before the next reply
	err            error                          // returned after the answers
	probesAnswered int
}

func (c *clockStream) Send(m *mapsyncv1.SubscribeRequest) error {
	c.sent = append(c.sent, m)
	return c.sendErr
}

func (c *clockStream) Recv() (*mapsyncv1.SubscribeResponse, error) {
	if len(c.answers) > 0 {
		m := c.answers[0]
		c.answers = c.answers[1:]
		return m, nil
	}
	if c.err != nil {
		return nil, c.err
	}
	now := uint64(time.Now().Add(time.Hour).UnixNano())
	m := &mapsyncv1.ClockReply{ProbeSent: c.sent[c.probesAnswered].GetClockProbe().GetSent(), Received: now, Clock: now}
	c.probesAnswered++
	return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_ClockReply{ClockReply: m}}, nil
}

// TestClockIsMeasuredBeforeFirstRecord checks that the clock of the peer is measured several times
// before anything else is received, and that samples of an earlier stream are discarded.
func TestClockIsMeasuredBeforeFirstRecord(t *testing.T) {
	x := newInboundFixture(t)
	x.stream.clock.addSample(100*time.Hour, 0, time.Now())
	c := &clockStream{answers: []*mapsyncv1.SubscribeResponse{{Message: &mapsyncv1.SubscribeResponse_Heartbeat{}}}}
	if err := x.stream.measureClock(c); err != nil {
		t.Fatalf("measure clock: got error %v, want nil", err)
	}
	if off := x.stream.clockOffset() - time.Hour; off.Abs() > time.Minute || len(c.sent) != initialClockProbes || len(x.stream.clock.pending) != 0 {
		t.Errorf("clock offset: got an error of %s after %d probes, want at most %s after %d probes, none of them pending",
			off, len(c.sent), time.Minute, initialClockProbes)
	}
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		stream *clockStream
		want   error
	}{
		"send fails":                 {&clockStream{sendErr: broken}, broken},
		"ended":                      {&clockStream{sendErr: io.EOF, err: broken}, broken},
		"receive fails":              {&clockStream{err: broken}, broken},
		"another message":            {&clockStream{answers: []*mapsyncv1.SubscribeResponse{{Message: &mapsyncv1.SubscribeResponse_Digest{}}}}, errProtocol},
		"the reply to another probe": {&clockStream{answers: []*mapsyncv1.SubscribeResponse{{Message: &mapsyncv1.SubscribeResponse_ClockReply{}}}}, errProtocol},
	} {
		if err := newInboundFixture(t).stream.measureClock(c.stream); !errors.Is(err, c.want) {
			t.Errorf("%s: measure clock: got %v, want %v", name, err, c.want)
		}
	}
}

// TestInvalidClockReplyEndsStream checks that a reply without a probe, and a clock out of range,
// end the stream.
func TestInvalidClockReplyEndsStream(t *testing.T) {
	var c peerClock
	now := time.Unix(0, 1<<61)
	if err := c.handleReply(&mapsyncv1.ClockReply{}, now.UnixNano(), now); !errors.Is(err, errProtocol) {
		t.Errorf("reply without a probe: got %v, want a protocol error", err)
	}
	ask := func() uint64 { return c.newProbe(now).GetClockProbe().GetSent() }
	if err := c.handleReply(&mapsyncv1.ClockReply{ProbeSent: ask(), Clock: maxClock, Received: maxClock}, now.UnixNano(), time.Now()); err != nil || !c.valid {
		t.Errorf("reply with the highest clock: got %v, want no error", err)
	}
	if err := c.handleReply(&mapsyncv1.ClockReply{ProbeSent: ask(), Clock: maxClock + 1, Received: maxClock}, now.UnixNano(), time.Now()); !errors.Is(err, errProtocol) {
		t.Errorf("reply with a clock above the maximum: got %v, want a protocol error", err)
	}
	// A round trip of 0 is valid.
	c = peerClock{}
	sent := ask()
	at := c.pending[0].sentAt
	if err := c.handleReply(&mapsyncv1.ClockReply{ProbeSent: sent, Clock: 1 << 61, Received: 1 << 61}, now.UnixNano(), at); err != nil || !c.valid || c.offset != 0 || c.roundTrip != 0 {
		t.Errorf("reply with a round trip of 0: got %v, %+v, want no error and a valid sample with offset 0 and round trip 0", err, c)
	}
	sent = ask()
	at = c.pending[0].sentAt
	// The offset includes half of the round trip, without the time at the peer.
	reply := &mapsyncv1.ClockReply{ProbeSent: sent, Received: 1<<61 + 1000, Clock: 1<<61 + 1400}
	c.valid = false
	if err := c.handleReply(reply, now.UnixNano(), at.Add(1000)); err != nil || c.roundTrip != 600 || c.offset != 1700 {
		t.Errorf("reply: got error %v, round trip %d, offset %d, want round trip 600 and offset 1700", err, c.roundTrip, c.offset)
	}
	if a, b := ask(), ask(); b != a+1 {
		t.Errorf("ids of probes at the same moment: got %d, %d, want consecutive ids", a, b)
	}
	if c.reset(); c.valid || len(c.pending) != 0 {
		t.Errorf("reset: got %+v, want no sample and no pending probes", c)
	}
	// The first sample counts, however large its error is.
	c = peerClock{}
	if c.addSample(time.Nanosecond, time.Hour, now); !c.valid || c.roundTrip != time.Hour {
		t.Errorf("first sample: got %+v, want it stored", c)
	}
}

// TestClockProbesAreAnswered checks that probes are answered in order, with the time of their arrival.
func TestClockProbesAreAnswered(t *testing.T) {
	o := newOutboundFixture(t)
	at := time.Unix(1000, 0)
	o.r.opt.Now = func() time.Time { return at }
	wasWoken(o.s.wake)
	for sent := range uint64(2) {
		if err := o.s.handleClockProbe(&mapsyncv1.ClockProbe{Sent: sent + 7}); err != nil {
			t.Fatalf("handle clock probe: got error %v, want nil", err)
		}
	}
	if !wasWoken(o.s.wake) {
		t.Error("receive a probe: the sending goroutine is not woken, want it woken")
	}
	at = at.Add(time.Second)
	o.s.lastSent = time.Time{}
	if err := o.s.answerProbes(); err != nil {
		t.Fatalf("answer probes: got error %v, want nil", err)
	}
	for i, m := range o.takeSent() {
		r := m.GetClockReply()
		if r.GetProbeSent() != uint64(i+7) || r.GetReceived() != 1000e9 || r.GetClock() != 1001e9 {
			t.Errorf("clock reply: got %v, want the probe sent at %d, received at 1000e9, clock 1001e9", r, i+7)
		}
	}
	if o.s.lastSent.IsZero() || len(o.s.probes) != 0 {
		t.Error("answer probes: lastSent is not set, or probes remain, want it set and no probes")
	}
	if err := o.s.answerProbes(); err != nil || len(o.takeSent()) != 0 {
		t.Errorf("answer probes again: got %v, want no message", err)
	}
	o.err = context.Canceled
	o.s.probes = []receivedProbe{{1, 1}}
	if err := o.s.answerProbes(); !errors.Is(err, context.Canceled) {
		t.Errorf("answer probes on an ended stream: got %v, want context.Canceled", err)
	}
	// A stream sends a probe unless maxPendingProbes probes have no answer.
	x := newInboundFixture(t)
	c := &clockStream{}
	for range maxPendingProbes + 2 {
		if err := x.stream.sendClockProbe(c); err != nil {
			t.Fatalf("send clock probe: got error %v, want nil", err)
		}
	}
	if len(c.sent) != maxPendingProbes {
		t.Errorf("pending probes: got %d, want maxPendingProbes", len(c.sent))
	}
	if err := newInboundFixture(t).stream.sendClockProbe(&clockStream{sendErr: io.ErrClosedPipe}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("send a probe on a closed stream: got %v, want io.ErrClosedPipe", err)
	}
}
