package replicate

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// clocked is a stream to a peer that answers clock probes.
type clocked struct {
	mapsyncv1.ReplicationService_SubscribeClient
	sent    []*mapsyncv1.SubscribeRequest
	sendErr error
	answers []*mapsyncv1.SubscribeResponse // before the next reply
	err     error                          // after them
	asks    int
}

func (c *clocked) Send(m *mapsyncv1.SubscribeRequest) error {
	c.sent = append(c.sent, m)
	return c.sendErr
}

func (c *clocked) Recv() (*mapsyncv1.SubscribeResponse, error) {
	if len(c.answers) > 0 {
		m := c.answers[0]
		c.answers = c.answers[1:]
		return m, nil
	}
	if c.err != nil {
		return nil, c.err
	}
	now := uint64(time.Now().Add(time.Hour).UnixNano())
	m := &mapsyncv1.ClockReply{ProbeSent: c.sent[c.asks].GetClockProbe().GetSent(), Received: now, Clock: now}
	c.asks++
	return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_ClockReply{ClockReply: m}}, nil
}

// TestClockBeforeTheFirstRecord: the peer's clock is measured several times before anything else is
// received, and what was measured on an earlier stream is forgotten.
func TestClockBeforeTheFirstRecord(t *testing.T) {
	x := newStreamless(t)
	x.l.clock.sample(100*time.Hour, 0, time.Now())
	c := &clocked{answers: []*mapsyncv1.SubscribeResponse{{Message: &mapsyncv1.SubscribeResponse_Heartbeat{}}}}
	if err := x.l.synchronise(c); err != nil {
		t.Fatal(err)
	}
	if off := x.l.clockOffset() - time.Hour; off.Abs() > time.Minute || len(c.sent) != firstProbes || len(x.l.clock.probes) != 0 {
		t.Errorf("off by %s after %d probes", off, len(c.sent))
	}
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		stream *clocked
		want   error
	}{
		"not sent":        {&clocked{sendErr: broken}, broken},
		"ended":           {&clocked{sendErr: io.EOF, err: broken}, broken},
		"nothing comes":   {&clocked{err: broken}, broken},
		"something else":  {&clocked{answers: []*mapsyncv1.SubscribeResponse{{Message: &mapsyncv1.SubscribeResponse_Digest{}}}}, errProtocol},
		"another's probe": {&clocked{answers: []*mapsyncv1.SubscribeResponse{{Message: &mapsyncv1.SubscribeResponse_ClockReply{}}}}, errProtocol},
	} {
		if err := newStreamless(t).l.synchronise(c.stream); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestClockReplies: a reply that was not asked for ends the stream, and so does a clock beyond all
// bounds.
func TestClockReplies(t *testing.T) {
	var c peerClock
	now := time.Unix(0, 1<<61)
	if err := c.answered(&mapsyncv1.ClockReply{}, now, now); !errors.Is(err, errProtocol) {
		t.Errorf("not asked for: %v", err)
	}
	ask := func() uint64 { return c.ask(now).GetClockProbe().GetSent() }
	if err := c.answered(&mapsyncv1.ClockReply{ProbeSent: ask(), Clock: maxClock, Received: maxClock}, now, time.Now()); err != nil || !c.known {
		t.Errorf("the latest clock: %v", err)
	}
	if err := c.answered(&mapsyncv1.ClockReply{ProbeSent: ask(), Clock: maxClock + 1, Received: maxClock}, now, time.Now()); !errors.Is(err, errProtocol) {
		t.Errorf("a later one: %v", err)
	}
	// A round trip of nothing is one.
	c = peerClock{}
	sent := ask()
	at := c.probes[0].at
	if err := c.answered(&mapsyncv1.ClockReply{ProbeSent: sent, Clock: 1 << 61, Received: 1 << 61}, now, at); err != nil || !c.known || c.offset != 0 || c.roundTrip != 0 {
		t.Errorf("no round trip: %v, %+v", err, c)
	}
	sent = ask()
	at = c.probes[0].at
	// The half of the way back counts, the time at the peer does not.
	reply := &mapsyncv1.ClockReply{ProbeSent: sent, Received: 1<<61 + 1000, Clock: 1<<61 + 1400}
	c.known = false
	if err := c.answered(reply, now, at.Add(1000)); err != nil || c.roundTrip != 600 || c.offset != 1700 {
		t.Errorf("%v, round trip %d, offset %d", err, c.roundTrip, c.offset)
	}
	if a, b := ask(), ask(); b != a+1 {
		t.Errorf("probes of one moment: %d, %d", a, b)
	}
	if c.reset(); c.known || len(c.probes) != 0 {
		t.Errorf("%+v", c)
	}
	// The first sample counts, whatever it is like.
	c = peerClock{}
	if c.sample(time.Nanosecond, time.Hour, now); !c.known || c.roundTrip != time.Hour {
		t.Errorf("%+v", c)
	}
}

// TestClockProbesAreAnswered in turn, with the time at which they came.
func TestClockProbesAreAnswered(t *testing.T) {
	o := newOut(t)
	at := time.Unix(1000, 0)
	o.r.opt.Now = func() time.Time { return at }
	woken(o.s.wake)
	for sent := range uint64(2) {
		if err := o.s.probed(&mapsyncv1.ClockProbe{Sent: sent + 7}); err != nil {
			t.Fatal(err)
		}
	}
	if !woken(o.s.wake) {
		t.Error("the sender is not woken")
	}
	at = at.Add(time.Second)
	o.s.lastSent = time.Time{}
	if err := o.s.answer(); err != nil {
		t.Fatal(err)
	}
	for i, m := range o.took() {
		r := m.GetClockReply()
		if r.GetProbeSent() != uint64(i+7) || r.GetReceived() != 1000e9 || r.GetClock() != 1001e9 {
			t.Errorf("reply %v", r)
		}
	}
	if o.s.lastSent.IsZero() || len(o.s.probes) != 0 {
		t.Error("the stream counts as silent, or probes are answered twice")
	}
	if err := o.s.answer(); err != nil || len(o.took()) != 0 {
		t.Errorf("answered twice: %v", err)
	}
	o.err = context.Canceled
	o.s.probes = []received{{1, 1}}
	if err := o.s.answer(); !errors.Is(err, context.Canceled) {
		t.Errorf("not sent: %v", err)
	}
	// A link asks for the clock unless many answers are owed.
	x := newStreamless(t)
	c := &clocked{}
	for range maxProbes + 2 {
		if err := x.l.probe(c); err != nil {
			t.Fatal(err)
		}
	}
	if len(c.sent) != maxProbes {
		t.Errorf("%d probes under way", len(c.sent))
	}
	if err := newStreamless(t).l.probe(&clocked{sendErr: io.ErrClosedPipe}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("not sent: %v", err)
	}
}
