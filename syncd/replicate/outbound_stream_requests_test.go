package replicate

import (
	"context"
	"errors"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// responseRecorder stores the answers of a stream.
type responseRecorder struct {
	sent []proto.Message
}

func (r *responseRecorder) Send(m *mapsyncv1.SubscribeResponse) error {
	r.sent = append(r.sent, m)
	return nil
}

// newSubscribedStream returns the stream of a peer with one subscription to the map.
func newSubscribedStream(t *testing.T) (*Replicator, *outboundStream) {
	t.Helper()
	r, _ := newTestReplicator(t)
	s := newOutboundStream(r, table.Owner{Node: "x", Incarnation: 3}, &responseRecorder{})
	_, s.cancel = context.WithCancelCause(t.Context())
	if err := s.subscribe(subscription(1, testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize})); err != nil {
		t.Fatalf("subscribe: got error %v, want nil", err)
	}
	return r, s
}

func wasWoken(ch chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// TestRequestsForUnknownSubscriptions checks that requests about an unknown subscription end the
// stream, and that those about an ended subscription do not.
func TestRequestsForUnknownSubscriptions(t *testing.T) {
	buckets := wire.EncodeBucketSet(new(table.BucketSet))
	for name, request := range map[string]func(index uint32) *mapsyncv1.SubscribeRequest{
		"unsubscribe": func(index uint32) *mapsyncv1.SubscribeRequest {
			return &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Unsubscribe{Unsubscribe: &mapsyncv1.MapUnsubscription{Map: index}}}
		},
		"ack": func(index uint32) *mapsyncv1.SubscribeRequest {
			return &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Ack{Ack: &mapsyncv1.Ack{Map: index}}}
		},
		"compare": func(index uint32) *mapsyncv1.SubscribeRequest {
			return &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Compare{Compare: &mapsyncv1.CompareRequest{Map: index}}}
		},
		"resend": func(index uint32) *mapsyncv1.SubscribeRequest {
			return &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Resend{Resend: &mapsyncv1.ResendRequest{Map: index, Buckets: buckets}}}
		},
	} {
		_, s := newSubscribedStream(t)
		if err := s.handle(request(2)); !errors.Is(err, errProtocol) {
			t.Errorf("%s: subscription 2 of 1: got %v, want a protocol error", name, err)
		}
		if err := s.handle(request(1)); err != nil {
			t.Errorf("%s: got %v, want no error", name, err)
		}
		s.removeMap(s.findMap(1))
		if err := s.handle(request(1)); err != nil {
			t.Errorf("%s: ended subscription: got %v, want no error", name, err)
		}
	}
	_, s := newSubscribedStream(t)
	if err := s.handle(&mapsyncv1.SubscribeRequest{}); !errors.Is(err, errProtocol) {
		t.Errorf("empty request: got %v, want a protocol error", err)
	}
}

// TestUnsubscribeRemovesOutboundMap checks that the sending goroutine removes the map stream after
// an unsubscription.
func TestUnsubscribeRemovesOutboundMap(t *testing.T) {
	_, s := newSubscribedStream(t)
	out := s.findMap(1)
	wasWoken(s.wake)
	if err := s.unsubscribe(1); err != nil || !out.unsubscribed.Load() || !wasWoken(s.wake) {
		t.Fatalf("unsubscribe: got unsubscribed %v, error %v, want true, no error, and the stream woken", out.unsubscribed.Load(), err)
	}
	if more, err := out.step(nil, out.comparison.now); more || err != nil || s.findMap(1) != nil || len(s.maps) != 0 {
		t.Errorf("step: got more %v, error %v, outbound map streams %v, want false, no error and none", more, err, s.maps)
	}
}

// TestResendRequestValidation checks that one resend request at a time is accepted, with a set of
// the right size.
func TestResendRequestValidation(t *testing.T) {
	_, s := newSubscribedStream(t)
	set := wire.EncodeBucketSet(new(table.BucketSet))
	ask := func(b []byte) error { return s.handleResendRequest(&mapsyncv1.ResendRequest{Map: 1, Buckets: b}) }
	for _, bad := range [][]byte{nil, set[1:], append(slices.Clone(set), 0)} {
		if err := ask(bad); !errors.Is(err, errProtocol) {
			t.Errorf("resend request with %d bytes: got %v, want a protocol error", len(bad), err)
		}
	}
	wasWoken(s.wake)
	if err := ask(set); err != nil || !wasWoken(s.wake) {
		t.Errorf("first resend request: got %v, want no error", err)
	}
	if err := ask(set); !errors.Is(err, errProtocol) {
		t.Errorf("second resend request: got %v, want a protocol error", err)
	}
	if err := s.handleCompareRequest(&mapsyncv1.CompareRequest{Map: 1}); err != nil || !s.findMap(1).comparison.bucketsRequested.Load() || !wasWoken(s.wake) {
		t.Errorf("compare request: got %v, want no error", err)
	}
}

// TestOutboundStreamEndsWithPeer checks that a stream ends with its peer, and that a peer unknown
// to membership keeps its stream.
func TestOutboundStreamEndsWithPeer(t *testing.T) {
	self := table.Owner{Node: "b", Incarnation: 2}
	with := func(incarnation uint64) *view {
		return newView(nil, self, []Peer{{Node: "x", Incarnation: incarnation}})
	}
	none := newView(nil, self, nil)
	for name, test := range map[string]struct {
		old, new  *view
		observing bool
		ends      bool
	}{
		"unknown":                               {none, none, false, false},
		"alive":                                 {with(3), with(3), false, false},
		"added to membership":                   {none, with(3), false, false},
		"gone":                                  {with(3), none, false, true},
		"restarted":                             {with(3), with(4), false, true},
		"membership has an earlier incarnation": {with(2), with(2), false, false},
		"observer":                              {with(3), none, true, false},
	} {
		_, s := newSubscribedStream(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		s.cancel = cancel
		s.observing.Store(test.observing)
		s.checkPeer(test.old, test.new)
		if got := errors.Is(context.Cause(ctx), errPeerGone); got != test.ends {
			t.Errorf("%s: stream ends: got %v, want %v", name, got, test.ends)
		}
		cancel(nil)
	}
}

// TestAnswersForUnknownSubscriptions checks that answers about an unknown subscription end the stream.
func TestAnswersForUnknownSubscriptions(t *testing.T) {
	for name, answer := range map[string]func(index uint32) *mapsyncv1.SubscribeResponse{
		"pending": func(index uint32) *mapsyncv1.SubscribeResponse {
			return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Pending{Pending: &mapsyncv1.MapPending{Map: index}}}
		},
		"refused": func(index uint32) *mapsyncv1.SubscribeResponse {
			return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Refused{Refused: &mapsyncv1.MapRefused{Map: index}}}
		},
		"ended": func(index uint32) *mapsyncv1.SubscribeResponse {
			return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Ended{Ended: &mapsyncv1.MapEnded{Map: index}}}
		},
		"accepted": func(index uint32) *mapsyncv1.SubscribeResponse {
			return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Accepted{Accepted: &mapsyncv1.MapAccepted{Map: index}}}
		},
		"end of resend": func(index uint32) *mapsyncv1.SubscribeResponse {
			return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Resent{Resent: &mapsyncv1.Resent{Map: index}}}
		},
		"digest": func(index uint32) *mapsyncv1.SubscribeResponse {
			return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Digest{Digest: &mapsyncv1.Digest{Map: index}}}
		},
	} {
		for _, index := range []uint32{0, 2} {
			r, _ := newTestReplicator(t)
			s, _ := newAcceptedStream(r, Peer{Node: "x", Incarnation: 1})
			if err := s.handle(mustMarshal(t, answer(index))); !errors.Is(err, errProtocol) {
				t.Errorf("%s: subscription %d of 1: got %v, want a protocol error", name, index, err)
			}
		}
	}
}

// TestRefusedMap checks that a peer may refuse a map before it serves the map, not afterwards.
func TestRefusedMap(t *testing.T) {
	r, _ := newTestReplicator(t)
	s, in := newAcceptedStream(r, Peer{Node: "x", Incarnation: 1})
	for _, state := range []State{StateSyncing, StateCaughtUp} {
		in.state = state
		if err := s.handleRefused(in, &mapsyncv1.MapRefused{}); !errors.Is(err, errProtocol) || in.state != state {
			t.Errorf("refusal in state %v: got %v, state %v, want a protocol error and the same state", state, err, in.state)
		}
	}
	in.state = StateWaiting
	wasWoken(r.wake)
	if err := s.handleRefused(in, &mapsyncv1.MapRefused{Text: "no"}); err != nil || in.state != StateRefused || in.err == nil || !wasWoken(r.wake) {
		t.Errorf("refusal: got %v, state %v: %v, want no error, %s with a reason, and the replicator woken",
			err, in.state, in.err, StateRefused)
	}
}

// TestEndedSubscriptionIsRetried checks that a subscription that the peer has ended is requested
// again after a growing pause.
func TestEndedSubscriptionIsRetried(t *testing.T) {
	r, _ := newTestReplicator(t)
	s, in := newAcceptedStream(r, Peer{Node: "x", Incarnation: 1})
	wasWoken(s.wake)
	if err := s.handleEnded(in, &mapsyncv1.MapEnded{}); err != nil || in.state != StateWaiting || len(s.byIndex) != 0 || !wasWoken(s.wake) {
		t.Errorf("ended subscription: got error %v, state %v, %d subscriptions, want no error, %s and none, and the stream woken",
			err, in.state, len(s.byIndex), StateWaiting)
	}
	if in.backoff != r.opt.MinBackoff || in.retryAt.IsZero() {
		t.Errorf("pause: got %s, want %s", in.backoff, r.opt.MinBackoff)
	}
	first := in.retryAt
	if err := s.handleEnded(in, &mapsyncv1.MapEnded{}); err != nil || in.backoff != 2*r.opt.MinBackoff || !in.retryAt.After(first) {
		t.Errorf("second end: got error %v, pause %s, want no error, %s, and a later retry than before",
			err, in.backoff, 2*r.opt.MinBackoff)
	}
}

// TestDiffSideEqual compares sides of a difference.
func TestDiffSideEqual(t *testing.T) {
	owner := table.Owner{Node: "x", Incarnation: 1}
	base := DiffSide{Value: []byte{1}, Version: 5, Owner: owner}
	other, newer, gone := base, base, base
	other.Owner.Incarnation, newer.Version, gone.Value = 2, 6, nil
	for name, test := range map[string]struct {
		a, b *DiffSide
		same bool
	}{
		"nothing":       {nil, nil, true},
		"one":           {&base, nil, false},
		"one side":      {nil, &base, false},
		"same":          {&base, &DiffSide{Value: []byte{2}, Version: 5, Owner: owner}, true},
		"another owner": {&base, &other, false},
		"newer":         {&base, &newer, false},
		"deleted":       {&base, &gone, false},
		"both deleted":  {&gone, &DiffSide{Version: 5, Owner: owner}, true},
	} {
		if got := test.a.equal(test.b); got != test.same {
			t.Errorf("%s: equal: got %v, want %v", name, got, test.same)
		}
	}
}

// TestStartedBefore orders nodes by incarnation and name.
func TestStartedBefore(t *testing.T) {
	a1, b1, b2 := table.Owner{Node: "a", Incarnation: 1}, table.Owner{Node: "b", Incarnation: 1}, table.Owner{Node: "b", Incarnation: 2}
	for i, o := range []table.Owner{a1, b1, b2} {
		for j, p := range []table.Owner{a1, b1, b2} {
			if startedBefore(o, p) != (i < j) {
				t.Errorf("%v started before %v: got %v, want %v", o, p, startedBefore(o, p), i < j)
			}
		}
	}
}

// TestNothingIsInSyncWithoutMembership checks that nothing is in sync before the first SetPeers.
func TestNothingIsInSyncWithoutMembership(t *testing.T) {
	r, _ := newTestReplicator(t)
	for name, ask := range map[string]func() (bool, []string){"agreed": r.InSync, "synced": r.InitialSyncDone} {
		if ok, missing := ask(); ok || !slices.Equal(missing, []string{"membership"}) {
			t.Errorf("%s: got %v, missing %v, want false and membership only", name, ok, missing)
		}
	}
}
