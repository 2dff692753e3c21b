package replicate

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// enter registers a session of a running replicator, and returns its context.
func enter(t *testing.T, r *Replicator, owner table.Owner) (*session, context.Context) {
	t.Helper()
	s := newSession(r, owner, &recorder{})
	ctx, err := r.enter(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.leave(s) })
	return s, ctx
}

// TestSessionsNeedARunningReplicator: streams are served while Run runs, and end with it.
func TestSessionsNeedARunningReplicator(t *testing.T) {
	r, _ := newReceiver(t)
	refused := func(what string) {
		t.Helper()
		if _, err := r.enter(t.Context(), newSession(r, target, nil)); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("before Run")
	run, end := context.WithCancel(t.Context())
	r.ctx = run
	_, ctx := enter(t, r, target)
	left := newSession(r, target, nil)
	leftCtx, err := r.enter(t.Context(), left)
	if err != nil {
		t.Fatal(err)
	}
	r.leave(left)
	if _, ok := r.sessions[left]; ok || len(r.sessions) != 1 {
		t.Errorf("%d sessions, one of which has left", len(r.sessions))
	}
	end()
	<-ctx.Done()
	if leftCtx.Err() != nil {
		t.Error("the end of Run reaches a session that has left")
	}
	left.cancel(nil)
	refused("after Run")
}

// TestReplicaHasOneStream: the first subscription of a replica ends its older streams. Those of other
// nodes, and observers, stay.
func TestReplicaHasOneStream(t *testing.T) {
	for _, observes := range []bool{false, true} {
		r, _ := newReceiver(t)
		r.ctx = t.Context()
		_, old := enter(t, r, table.Owner{Node: "x", Incarnation: 2})
		_, others := enter(t, r, other)
		watching, observer := enter(t, r, target)
		watching.observing.Store(true)
		s, ctx := enter(t, r, target)
		woken(s.wake)
		sub := subscription(1, testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize})
		sub.Observe = observes
		if err := s.subscribe(sub); err != nil || !s.joined.Load() || s.observing.Load() != observes || !woken(s.wake) {
			t.Fatalf("%v, joined %t, observing %t", err, s.joined.Load(), s.observing.Load())
		}
		if got := errors.Is(context.Cause(old), errReplaced); got == observes {
			t.Errorf("observes %t: the older stream ends: %t", observes, got)
		}
		if others.Err() != nil || observer.Err() != nil || ctx.Err() != nil {
			t.Error("another stream ends")
		}
		_, late := enter(t, r, target)
		sub.Map = 2
		if err := s.subscribe(sub); err != nil {
			t.Fatal(err)
		}
		if late.Err() != nil {
			t.Error("a second subscription ends a newer stream")
		}
	}
}

// TestSubscriptionsAreChecked has subscriptions that break the protocol: the stream ends, and
// nothing is served.
func TestSubscriptionsAreChecked(t *testing.T) {
	layout := Layout{KeySize: testKeySize, ValueSize: testValueSize}
	for want, c := range map[string]struct {
		owner  table.Owner
		first  int // subscriptions before
		change func(s *session, m *mapsyncv1.MapSubscription)
	}{
		"subscription 0 after 0":    {target, 0, func(_ *session, m *mapsyncv1.MapSubscription) { m.Map = 0 }},
		"subscription 1 after 1":    {target, 1, func(_ *session, m *mapsyncv1.MapSubscription) { m.Map = 1 }},
		"more than 64 subscription": {target, 2 * MaxMaps, func(*session, *mapsyncv1.MapSubscription) {}},
		"map name of 0 bytes":       {target, 0, func(_ *session, m *mapsyncv1.MapSubscription) { m.Name = "" }},
		"which is this node's own":  {table.Owner{Node: "b", Incarnation: 1}, 0, func(*session, *mapsyncv1.MapSubscription) {}},
		"observe among others":      {target, 1, func(_ *session, m *mapsyncv1.MapSubscription) { m.Observe = true }},
		"not among the observers": {target, 0, func(s *session, m *mapsyncv1.MapSubscription) {
			m.Observe, s.caller = true, Caller{Replica: true}
		}},
		"but not replicate": {target, 0, func(s *session, _ *mapsyncv1.MapSubscription) { s.caller = Caller{Observer: true} }},
	} {
		r, _ := newReceiver(t)
		s := newSession(r, c.owner, &recorder{})
		for i := range c.first {
			if err := s.subscribe(subscription(uint32(i+1), testMap, layout)); err != nil {
				t.Fatalf("%s: subscription %d: %v", want, i+1, err)
			}
		}
		m := subscription(uint32(c.first+1), testMap, layout)
		c.change(s, m)
		err := s.subscribe(m)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("expected %q, got: %v", want, err)
		}
		if len(s.feeds) != c.first || c.first == 0 && s.joined.Load() {
			t.Errorf("%s: %d feeds, joined %t", want, len(s.feeds), s.joined.Load())
		}
	}
}

// TestEndsOfStreams: the peer learns why a stream has ended, and requests that were wrong are counted.
func TestEndsOfStreams(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		code codes.Code
		bad  uint64
	}{
		"aged":      {errAged, codes.Aborted, 0},
		"denied":    {status.Error(codes.PermissionDenied, "no"), codes.PermissionDenied, 1},
		"protocol":  {fmt.Errorf("x: %w", errProtocol), codes.InvalidArgument, 1},
		"too large": {fmt.Errorf("x: %w", status.Error(codes.ResourceExhausted, "large")), codes.Unavailable, 0}, // see noteUnreadable
		"gone":      {errPeerGone, codes.Unavailable, 0},
	} {
		r, _ := newReceiver(t)
		err := newSession(r, target, nil).ended(c.err)
		if status.Code(err) != c.code || r.Stats().BadRequests != c.bad {
			t.Errorf("%s: %v, %d bad requests", name, err, r.Stats().BadRequests)
		}
	}
}

// TestLifetimesOfStreams: streams that began together end apart, within a tenth of their age.
func TestLifetimesOfStreams(t *testing.T) {
	r, _ := newReceiver(t)
	r.opt.MaxStreamAge = 100 * time.Second
	seen := make(map[time.Duration]bool)
	for range 200 {
		d := newSession(r, target, nil).lifetime()
		if d > 100*time.Second || d < 90*time.Second {
			t.Fatalf("a stream lasts %s", d)
		}
		seen[d] = true
	}
	if len(seen) < 100 {
		t.Errorf("%d different ages of 200", len(seen))
	}
}

// scripted is a stream of requests that ends with an error.
type scripted struct {
	mapsyncv1.ReplicationService_SubscribeServer
	requests []*mapsyncv1.SubscribeRequest
	err      error
}

func (s *scripted) Recv() (*mapsyncv1.SubscribeRequest, error) {
	if len(s.requests) == 0 {
		return nil, s.err
	}
	m := s.requests[0]
	s.requests = s.requests[1:]
	return m, nil
}

// TestRequestsOfAStream: requests are handled in turn until one is wrong or the stream ends.
func TestRequestsOfAStream(t *testing.T) {
	probe := &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_ClockProbe{ClockProbe: &mapsyncv1.ClockProbe{Sent: 7}}}
	r, _ := newReceiver(t)
	broken := errors.New("broken")
	s := newSession(r, target, &recorder{})
	if err := s.receive(&scripted{requests: []*mapsyncv1.SubscribeRequest{probe, probe}, err: broken}); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	if len(s.probes) != 2 {
		t.Errorf("%d requests were handled", len(s.probes))
	}
	if err := s.receive(&scripted{requests: []*mapsyncv1.SubscribeRequest{{}, probe}, err: broken}); !errors.Is(err, errProtocol) {
		t.Errorf("got %v", err)
	}
	if _, err := firstRequest(&scripted{err: broken}, time.Minute); !errors.Is(err, broken) {
		t.Errorf("first request: %v", err)
	}
}
