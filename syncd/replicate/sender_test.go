package replicate

import (
	"context"
	"errors"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// round has a session give each feed its turn.
func (o *outStream) round() (more bool) {
	o.t.Helper()
	more, err := o.s.sendRound(o.now)
	if err != nil {
		o.t.Fatal(err)
	}
	return more
}

// TestRoundsOfASession: each map has its turn in a round, probes are answered between them, and a
// heartbeat fills the silence.
func TestRoundsOfASession(t *testing.T) {
	o := newOut(t)
	second := subscription(2, "none", Layout{KeySize: testKeySize, ValueSize: testValueSize})
	second.Owners = &mapsyncv1.OwnerRequest{Serial: 1}
	if err := o.s.subscribe(second); err != nil {
		t.Fatal(err)
	}
	if err := o.s.probed(&mapsyncv1.ClockProbe{Sent: 7}); err != nil {
		t.Fatal(err)
	}
	o.s.lastSent = o.now
	if !o.round() {
		t.Error("the first map has more, and the round reports none")
	}
	if k := kinds(o.took()); k != "ClockReply, from 0, Pending" {
		t.Errorf("sent %s", k)
	}
	for o.round() {
	}
	o.took()
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
		o.f.telling.made, o.f.telling.due = o.now, o.now.Add(time.Hour) // no digests
		o.round()
		o.now = from
		if k := kinds(o.took()); k != c.sent {
			t.Errorf("after %s: sent %q, expected %q", c.after, k, c.sent)
		}
	}
}

// TestRoundsThatFail: an answer, a feed or a heartbeat that cannot be sent ends the session.
func TestRoundsThatFail(t *testing.T) {
	broken := errors.New("broken")
	for name, prepare := range map[string]func(o *outStream){
		"feed":      func(*outStream) {},
		"answer":    func(o *outStream) { o.run(); o.s.probes = []received{{1, 1}} },
		"heartbeat": func(o *outStream) { o.run(); o.now = o.now.Add(time.Hour); o.f.unwanted.Store(true) },
	} {
		o := newOut(t)
		prepare(o)
		o.err = broken
		if _, err := o.s.sendRound(o.now); !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
		o.s.probes = []received{{1, 1}}
		if err := o.s.run(t.Context()); !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
		if len(o.s.feeds) != 0 {
			t.Errorf("%s: the session has ended with %d feeds", name, len(o.s.feeds))
		}
	}
}

// TestSessionEndsWithItsContext returns why.
func TestSessionEndsWithItsContext(t *testing.T) {
	for name, after := range map[string]time.Duration{"at once": 0, "idle": 30 * time.Millisecond} {
		o := newOut(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(after, func() { cancel(errReplaced) })
		if after == 0 {
			cancel(errReplaced)
		}
		if err := o.s.run(ctx); !errors.Is(err, errReplaced) {
			t.Errorf("%s: %v", name, err)
		}
		if w := o.sent[0].GetWelcome(); w.GetProtocolVersion() != protocolVersion || !w.GetOwnerRequests() || !w.GetReports() || w.GetSelf().GetNode() != "b" {
			t.Errorf("welcome %v", w)
		}
		o.sent = nil
	}
}

// TestIdleTimeOfASession: until the next heartbeat, or until something is due.
func TestIdleTimeOfASession(t *testing.T) {
	o := newOut(t)
	o.r.opt.heartbeat, o.r.opt.compare, o.r.opt.advance = 10*time.Second, time.Second, 100*time.Millisecond
	want := func(what string, d time.Duration) {
		t.Helper()
		if got := o.s.idle(o.now); got != d {
			t.Errorf("%s: %s, want %s", what, got, d)
		}
	}
	want("no map", time.Second)
	for o.round() {
	}
	tell := &o.f.telling
	tell.made, tell.due, tell.at = o.now, o.now.Add(500*time.Millisecond), o.f.cursor.Position()
	want("a digest is due", 500*time.Millisecond)
	tell.due = o.now.Add(time.Millisecond)
	want("a digest is due at once", 100*time.Millisecond)
	tell.due = o.now.Add(time.Hour)
	want("no digest is due", time.Second)
	o.r.opt.heartbeat = 700 * time.Millisecond
	want("a heartbeat comes before", 700*time.Millisecond)
	tell.hurry.Store(true)
	want("the peer waits", 100*time.Millisecond)
	tell.hurry.Store(false)
	o.f.sent.Store(o.f.sent.Load() + 1)
	want("the position moves", 100*time.Millisecond)
}
