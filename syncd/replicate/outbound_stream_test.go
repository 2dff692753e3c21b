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

// enterStream registers a stream with a running replicator, and returns its context.
func enterStream(t *testing.T, r *Replicator, owner table.Owner) (*outboundStream, context.Context) {
	t.Helper()
	s := newOutboundStream(r, owner, &responseRecorder{})
	ctx, err := r.registerStream(t.Context(), s)
	if err != nil {
		t.Fatalf("register stream: got error %v, want nil", err)
	}
	t.Cleanup(func() { r.unregisterStream(s) })
	return s, ctx
}

// TestStreamsNeedRunningReplicator checks that streams are served while Run runs, and end with it.
func TestStreamsNeedRunningReplicator(t *testing.T) {
	r, _ := newTestReplicator(t)
	refused := func(what string) {
		t.Helper()
		if _, err := r.registerStream(t.Context(), newOutboundStream(r, target, nil)); status.Code(err) != codes.Unavailable {
			t.Errorf("%s: register: got %v, want Unavailable", what, err)
		}
	}
	refused("before Run")
	run, end := context.WithCancel(t.Context())
	r.ctx = run
	_, ctx := enterStream(t, r, target)
	left := newOutboundStream(r, target, nil)
	leftCtx, err := r.registerStream(t.Context(), left)
	if err != nil {
		t.Fatalf("register stream: got error %v, want nil", err)
	}
	r.unregisterStream(left)
	if _, ok := r.outboundStreams[left]; ok || len(r.outboundStreams) != 1 {
		t.Errorf("registered streams: got %d, want 1", len(r.outboundStreams))
	}
	end()
	<-ctx.Done()
	if leftCtx.Err() != nil {
		t.Error("end of Run: got an unregistered stream cancelled, want unchanged")
	}
	left.cancel(nil)
	refused("after Run")
}

// TestReplicaHasOneStream checks that the first subscription of a replica ends its older streams.
// The streams of other nodes, and observers, continue.
func TestReplicaHasOneStream(t *testing.T) {
	for _, observes := range []bool{false, true} {
		r, _ := newTestReplicator(t)
		r.ctx = t.Context()
		_, old := enterStream(t, r, table.Owner{Node: "x", Incarnation: 2})
		_, others := enterStream(t, r, other)
		watching, observer := enterStream(t, r, target)
		watching.observing.Store(true)
		s, ctx := enterStream(t, r, target)
		wasWoken(s.wake)
		sub := subscription(1, testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize})
		sub.Observe = observes
		if err := s.subscribe(sub); err != nil || !s.subscribed.Load() || s.observing.Load() != observes || !wasWoken(s.wake) {
			t.Fatalf("subscribe: got error %v, subscribed %t, observing %t, want no error, true and %t, and the stream woken",
				err, s.subscribed.Load(), s.observing.Load(), observes)
		}
		if got := errors.Is(context.Cause(old), errReplaced); got == observes {
			t.Errorf("observes %t: older stream ends: got %t, want %t", observes, got, !observes)
		}
		if others.Err() != nil || observer.Err() != nil || ctx.Err() != nil {
			t.Error("streams of other nodes and observers: got ended, want open")
		}
		_, late := enterStream(t, r, target)
		sub.Map, sub.Name = 2, "another"
		if err := s.subscribe(sub); err != nil {
			t.Fatalf("subscribe: got error %v, want nil", err)
		}
		if late.Err() != nil {
			t.Error("second subscription: got a newer stream ended, want open")
		}
	}
}

// TestSubscriptionValidation checks that subscriptions which violate the protocol end the stream,
// and that no map is served. The keys of the table are parts of the errors.
func TestSubscriptionValidation(t *testing.T) {
	layout := Layout{KeySize: testKeySize, ValueSize: testValueSize}
	for want, c := range map[string]struct {
		owner  table.Owner
		first  int // earlier subscriptions
		change func(s *outboundStream, m *mapsyncv1.MapSubscription)
	}{
		"subscription 0 after 0":            {target, 0, func(_ *outboundStream, m *mapsyncv1.MapSubscription) { m.Map = 0 }},
		"subscription 1 after 1":            {target, 1, func(_ *outboundStream, m *mapsyncv1.MapSubscription) { m.Map = 1 }},
		"second subscription to map":        {target, 1, func(_ *outboundStream, m *mapsyncv1.MapSubscription) { m.Name = "map1" }},
		"more than 1024 subscription":       {target, 2 * MaxMaps, func(*outboundStream, *mapsyncv1.MapSubscription) {}},
		"map name of 0 bytes":               {target, 0, func(_ *outboundStream, m *mapsyncv1.MapSubscription) { m.Name = "" }},
		"which is this node's own":          {table.Owner{Node: "b", Incarnation: 1}, 0, func(*outboundStream, *mapsyncv1.MapSubscription) {}},
		"must all observe or all replicate": {target, 1, func(_ *outboundStream, m *mapsyncv1.MapSubscription) { m.Observe = true }},
		"not among the observers": {target, 0, func(s *outboundStream, m *mapsyncv1.MapSubscription) {
			m.Observe, s.caller = true, Caller{Replica: true}
		}},
		"but not replicate": {target, 0, func(s *outboundStream, _ *mapsyncv1.MapSubscription) { s.caller = Caller{Observer: true} }},
	} {
		r, _ := newTestReplicator(t)
		s := newOutboundStream(r, c.owner, &responseRecorder{})
		for i := range c.first {
			if err := s.subscribe(subscription(uint32(i+1), fmt.Sprint("map", i+1), layout)); err != nil {
				t.Fatalf("%s: subscription %d: got %v, want nil", want, i+1, err)
			}
		}
		m := subscription(uint32(c.first+1), testMap, layout)
		c.change(s, m)
		err := s.subscribe(m)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("subscribe: want error %q, got: %v", want, err)
		}
		if len(s.maps) != c.first || c.first == 0 && s.subscribed.Load() {
			t.Errorf("%s: got %d outbound map streams, subscribed %t, want %d, and false if 0",
				want, len(s.maps), s.subscribed.Load(), c.first)
		}
	}
}

// TestStreamEndStatus checks the gRPC status at the end of a stream, and that invalid requests
// are counted.
func TestStreamEndStatus(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		code codes.Code
		bad  uint64
	}{
		"aged":      {errMaxAge, codes.Aborted, 0},
		"denied":    {status.Error(codes.PermissionDenied, "no"), codes.PermissionDenied, 1},
		"protocol":  {fmt.Errorf("x: %w", errProtocol), codes.InvalidArgument, 1},
		"too large": {fmt.Errorf("x: %w", status.Error(codes.ResourceExhausted, "large")), codes.Unavailable, 0}, // see noteUnreadable
		"gone":      {errPeerGone, codes.Unavailable, 0},
	} {
		r, _ := newTestReplicator(t)
		err := newOutboundStream(r, target, nil).endStatus(c.err)
		if status.Code(err) != c.code || r.Stats().BadRequests != c.bad {
			t.Errorf("%s: end status: got %v, %d bad requests, want code %s and %d", name, err, r.Stats().BadRequests, c.code, c.bad)
		}
	}
}

// TestStreamLifetimesAreSpread checks that streams that began together end at different times,
// within a tenth of their lifetime.
func TestStreamLifetimesAreSpread(t *testing.T) {
	r, _ := newTestReplicator(t)
	r.opt.MaxStreamAge = 100 * time.Second
	seen := make(map[time.Duration]bool)
	for range 200 {
		d := newOutboundStream(r, target, nil).lifetime()
		if d > 100*time.Second || d < 90*time.Second {
			t.Fatalf("lifetime: got %s, want 90 s to 100 s", d)
		}
		seen[d] = true
	}
	if len(seen) < 100 {
		t.Errorf("different lifetimes: got %d of 200, want at least 100", len(seen))
	}
}

// requestScript is a stream of requests that ends with an error.
type requestScript struct {
	mapsyncv1.ReplicationService_SubscribeServer
	requests []*mapsyncv1.SubscribeRequest
	err      error
}

func (s *requestScript) Recv() (*mapsyncv1.SubscribeRequest, error) {
	if len(s.requests) == 0 {
		return nil, s.err
	}
	m := s.requests[0]
	s.requests = s.requests[1:]
	return m, nil
}

// TestRequestsAreHandledInOrder checks that requests are handled in order until one is invalid or
// the stream ends.
func TestRequestsAreHandledInOrder(t *testing.T) {
	probe := &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_ClockProbe{ClockProbe: &mapsyncv1.ClockProbe{Sent: 7}}}
	r, _ := newTestReplicator(t)
	broken := errors.New("broken")
	s := newOutboundStream(r, target, &responseRecorder{})
	if err := s.receive(&requestScript{requests: []*mapsyncv1.SubscribeRequest{probe, probe}, err: broken}); !errors.Is(err, broken) {
		t.Errorf("receive: got %v, want the error of Recv", err)
	}
	if len(s.probes) != 2 {
		t.Errorf("handled requests: got %d, want 2", len(s.probes))
	}
	if err := s.receive(&requestScript{requests: []*mapsyncv1.SubscribeRequest{{}, probe}, err: broken}); !errors.Is(err, errProtocol) {
		t.Errorf("receive an empty request: got %v, want a protocol error", err)
	}
	if _, err := firstRequest(&requestScript{err: broken}, time.Minute); !errors.Is(err, broken) {
		t.Errorf("first request: got %v, want the error of Recv", err)
	}
}
