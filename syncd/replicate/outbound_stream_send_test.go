package replicate

import (
	"context"
	"errors"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// sendRound serves each map of the stream once.
func (o *outboundFixture) sendRound() (more bool) {
	o.t.Helper()
	more, err := o.s.sendRound(o.now)
	if err != nil {
		o.t.Fatalf("send round: got error %v, want nil", err)
	}
	return more
}

// TestSendRound checks that each map is served once in a round, that probes are answered between
// maps, and that a heartbeat is sent after a pause.
func TestSendRound(t *testing.T) {
	o := newOutboundFixture(t)
	second := subscription(2, "none", Layout{KeySize: testKeySize, ValueSize: testValueSize})
	second.Owners = &mapsyncv1.OwnerRequest{Serial: 1}
	if err := o.s.subscribe(second); err != nil {
		t.Fatalf("subscribe: got error %v, want nil", err)
	}
	if err := o.s.handleClockProbe(&mapsyncv1.ClockProbe{Sent: 7}); err != nil {
		t.Fatalf("handle clock probe: got error %v, want nil", err)
	}
	o.s.lastSent = o.now
	if !o.sendRound() {
		t.Error("first round: got no more, want more")
	}
	if k := kinds(o.takeSent()); k != "ClockReply, from 0, Pending" {
		t.Errorf("sent: got %s, want \"ClockReply, from 0, Pending\"", k)
	}
	for o.sendRound() {
	}
	o.takeSent()
	beat := o.r.opt.heartbeat
	for _, c := range []struct {
		after time.Duration
		sent  string
	}{{beat - 1, ""}, {beat, "Heartbeat"}, {beat + 1, ""}, {2*beat - 1, ""}, {2 * beat, "Heartbeat"}} {
		begun := time.Now()
		if c.after == beat-1 {
			o.s.lastSent = begun
			o.now = begun
		}
		from := o.now
		o.now = from.Add(c.after)
		o.m.comparison.madeAt, o.m.comparison.due = o.now, o.now.Add(time.Hour) // no digests
		o.sendRound()
		o.now = from
		if k := kinds(o.takeSent()); k != c.sent {
			t.Errorf("after %s: sent: got %q, want %q", c.after, k, c.sent)
		}
	}
}

// TestSendRoundErrors checks that the stream ends if an answer, a batch or a heartbeat cannot be sent.
func TestSendRoundErrors(t *testing.T) {
	broken := errors.New("broken")
	for name, prepare := range map[string]func(o *outboundFixture){
		"outbound map": func(*outboundFixture) {},
		"answer":       func(o *outboundFixture) { o.sendPending(); o.s.probes = []receivedProbe{{1, 1}} },
		"heartbeat":    func(o *outboundFixture) { o.sendPending(); o.now = o.now.Add(time.Hour); o.m.unsubscribed.Store(true) },
	} {
		o := newOutboundFixture(t)
		prepare(o)
		o.err = broken
		if _, err := o.s.sendRound(o.now); !errors.Is(err, broken) {
			t.Errorf("%s: send round: got %v, want the error of Send", name, err)
		}
		o.s.probes = []receivedProbe{{1, 1}}
		if err := o.s.run(t.Context()); !errors.Is(err, broken) {
			t.Errorf("%s: run: got %v, want the error of Send", name, err)
		}
		if len(o.s.maps) != 0 {
			t.Errorf("%s: end of the stream: got %d outbound map streams, want 0", name, len(o.s.maps))
		}
	}
}

// TestOutboundStreamEndsWithContext checks that run returns the cause of its context.
func TestOutboundStreamEndsWithContext(t *testing.T) {
	for name, after := range map[string]time.Duration{"at once": 0, "idle": 30 * time.Millisecond} {
		o := newOutboundFixture(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(after, func() { cancel(errReplaced) })
		if after == 0 {
			cancel(errReplaced)
		}
		if err := o.s.run(ctx); !errors.Is(err, errReplaced) {
			t.Errorf("%s: run: got %v, want errReplaced", name, err)
		}
		if w := o.sent[0].GetWelcome(); w.GetProtocolVersion() != supportedVersions.highest || !w.GetOwnerRequests() || !w.GetReports() || w.GetSelf().GetNode() != "b" {
			t.Errorf("welcome: got %v, want the highest version, owner requests, reports and node b", w)
		}
		o.sent = nil
	}
}

// TestOutboundStreamIdleTime checks the time until the next heartbeat, or until another message is due.
func TestOutboundStreamIdleTime(t *testing.T) {
	o := newOutboundFixture(t)
	o.r.opt.heartbeat, o.r.opt.digestInterval, o.r.opt.positionInterval = 10*time.Second, time.Second, 100*time.Millisecond
	want := func(what string, d time.Duration) {
		t.Helper()
		if got := o.s.idle(o.now); got != d {
			t.Errorf("%s: idle time: got %s, want %s", what, got, d)
		}
	}
	want("no maps", time.Second)
	for o.sendRound() {
	}
	state := &o.m.comparison
	state.madeAt, state.due, state.position = o.now, o.now.Add(500*time.Millisecond), o.m.cursor.Position()
	want("a digest is due", 500*time.Millisecond)
	state.due = o.now.Add(time.Millisecond)
	want("a digest is due at once", 100*time.Millisecond)
	state.due = o.now.Add(time.Hour)
	want("no digest is due", time.Second)
	o.r.opt.heartbeat = 700 * time.Millisecond
	want("a heartbeat is due first", 700*time.Millisecond)
	state.digestNow.Store(true)
	want("the peer waits for an answer", 100*time.Millisecond)
	state.digestNow.Store(false)
	o.m.sentPosition.Store(o.m.sentPosition.Load() + 1)
	want("the position advances", 100*time.Millisecond)
}
