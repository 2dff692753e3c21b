package replicate

import (
	"context"
	"errors"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// recorder keeps the answers of a session.
type recorder struct {
	sent []proto.Message
}

func (r *recorder) Send(m *mapsyncv1.SubscribeResponse) error {
	r.sent = append(r.sent, m)
	return nil
}

// subscribed returns a session of a peer with one subscription to the map.
func subscribed(t *testing.T) (*Replicator, *session) {
	t.Helper()
	r, _ := newReceiver(t)
	s := newSession(r, table.Owner{Node: "x", Incarnation: 3}, &recorder{})
	_, s.cancel = context.WithCancelCause(t.Context())
	if err := s.subscribe(subscription(1, testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize})); err != nil {
		t.Fatal(err)
	}
	return r, s
}

func woken(ch chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

// Requests about a subscription that never was end the stream; those about one that has
// ended do not.
func TestRequestsAboutUnknownSubscriptions(t *testing.T) {
	buckets := setBytes(new(table.BucketSet))
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
			return &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Retell{Retell: &mapsyncv1.RetellRequest{Map: index, Buckets: buckets}}}
		},
	} {
		_, s := subscribed(t)
		if err := s.handle(request(2)); !errors.Is(err, errProtocol) {
			t.Errorf("%s: subscription 2 of 1: %v", name, err)
		}
		if err := s.handle(request(1)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		s.remove(s.find(1))
		if err := s.handle(request(1)); err != nil {
			t.Errorf("%s: subscription that has ended: %v", name, err)
		}
	}
	_, s := subscribed(t)
	if err := s.handle(&mapsyncv1.SubscribeRequest{}); !errors.Is(err, errProtocol) {
		t.Errorf("empty request: %v", err)
	}
}

func TestUnsubscribeRemovesTheFeed(t *testing.T) {
	_, s := subscribed(t)
	f := s.find(1)
	woken(s.wake)
	if err := s.unsubscribe(1); err != nil || !f.unwanted.Load() || !woken(s.wake) {
		t.Fatalf("unwanted %v, %v", f.unwanted.Load(), err)
	}
	if more, err := f.step(nil, f.telling.now); more || err != nil || s.find(1) != nil || len(s.feeds) != 0 {
		t.Errorf("more %v, %v, feeds %v", more, err, s.feeds)
	}
}

// One request to send buckets again is under way at a time, and its set has one size.
func TestRequestsToSendAgain(t *testing.T) {
	_, s := subscribed(t)
	set := setBytes(new(table.BucketSet))
	ask := func(b []byte) error { return s.askedAgain(&mapsyncv1.RetellRequest{Map: 1, Buckets: b}) }
	for _, bad := range [][]byte{nil, set[1:], append(slices.Clone(set), 0)} {
		if err := ask(bad); !errors.Is(err, errProtocol) {
			t.Errorf("%d bytes: %v", len(bad), err)
		}
	}
	woken(s.wake)
	if err := ask(set); err != nil || !woken(s.wake) {
		t.Errorf("first request: %v", err)
	}
	if err := ask(set); !errors.Is(err, errProtocol) {
		t.Errorf("second request: %v", err)
	}
	if err := s.asked(&mapsyncv1.CompareRequest{Map: 1}); err != nil || !s.find(1).telling.asked.Load() || !woken(s.wake) {
		t.Errorf("request for the parts of digests: %v", err)
	}
}

// A session ends with its peer, and not before membership has had time to find that.
func TestSessionsEndWithTheirPeer(t *testing.T) {
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
		"unknown":             {none, none, false, false},
		"alive":               {with(3), with(3), false, false},
		"known now":           {none, with(3), false, false},
		"gone":                {with(3), none, false, true},
		"restarted":           {with(3), with(4), false, true},
		"membership is older": {with(2), with(2), false, false},
		"observer":            {with(3), none, true, false},
	} {
		_, s := subscribed(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		s.cancel = cancel
		s.observing.Store(test.observing)
		s.checkPeer(test.old, test.new)
		if got := errors.Is(context.Cause(ctx), errPeerGone); got != test.ends {
			t.Errorf("%s: ends %v, want %v", name, got, test.ends)
		}
		cancel(nil)
	}
}

// Answers about a subscription that this node never made end the stream.
func TestAnswersAboutUnknownSubscriptions(t *testing.T) {
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
			return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Retold{Retold: &mapsyncv1.Retold{Map: index}}}
		},
		"digest": func(index uint32) *mapsyncv1.SubscribeResponse {
			return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Digest{Digest: &mapsyncv1.Digest{Map: index}}}
		},
	} {
		for _, index := range []uint32{0, 2} {
			r, _ := newReceiver(t)
			l, _ := acceptedLink(r, Peer{Node: "x", Incarnation: 1})
			if err := l.take(mustMarshal(t, answer(index))); !errors.Is(err, errProtocol) {
				t.Errorf("%s: subscription %d of 1: %v", name, index, err)
			}
		}
	}
}

// A peer may refuse a map before it serves it, not while.
func TestRefusalOfAMap(t *testing.T) {
	r, _ := newReceiver(t)
	l, in := acceptedLink(r, Peer{Node: "x", Incarnation: 1})
	for _, state := range []State{StateSyncing, StateCaughtUp} {
		in.state = state
		if err := l.refused(in, &mapsyncv1.MapRefused{}); !errors.Is(err, errProtocol) || in.state != state {
			t.Errorf("%v: %v, now %v", state, err, in.state)
		}
	}
	in.state = StateWaiting
	woken(r.wake)
	if err := l.refused(in, &mapsyncv1.MapRefused{Text: "no"}); err != nil || in.state != StateRefused || in.err == nil || !woken(r.wake) {
		t.Errorf("%v, now %v: %v", err, in.state, in.err)
	}
}

// A subscription that the peer has ended is made again, after a pause that grows.
func TestEndedSubscriptionIsMadeAgain(t *testing.T) {
	r, _ := newReceiver(t)
	l, in := acceptedLink(r, Peer{Node: "x", Incarnation: 1})
	woken(l.wake)
	if err := l.ended(in, &mapsyncv1.MapEnded{}); err != nil || in.state != StateWaiting || len(l.byIndex) != 0 || !woken(l.wake) {
		t.Errorf("%v, now %v, %d subscriptions", err, in.state, len(l.byIndex))
	}
	if in.backoff != r.opt.MinBackoff || in.retry.IsZero() {
		t.Errorf("pause %s, want %s", in.backoff, r.opt.MinBackoff)
	}
	first := in.retry
	if err := l.ended(in, &mapsyncv1.MapEnded{}); err != nil || in.backoff != 2*r.opt.MinBackoff || !in.retry.After(first) {
		t.Errorf("%v, pause %s", err, in.backoff)
	}
}

func TestSameSidesOfADifference(t *testing.T) {
	owner := table.Owner{Node: "x", Incarnation: 1}
	base := Held{Value: []byte{1}, Version: 5, Owner: owner}
	other, newer, gone := base, base, base
	other.Owner.Incarnation, newer.Version, gone.Value = 2, 6, nil
	for name, test := range map[string]struct {
		a, b *Held
		same bool
	}{
		"nothing":       {nil, nil, true},
		"one":           {&base, nil, false},
		"the other":     {nil, &base, false},
		"same":          {&base, &Held{Value: []byte{2}, Version: 5, Owner: owner}, true},
		"other owner":   {&base, &other, false},
		"newer":         {&base, &newer, false},
		"deleted":       {&base, &gone, false},
		"both, deleted": {&gone, &Held{Version: 5, Owner: owner}, true},
	} {
		if got := test.a.same(test.b); got != test.same {
			t.Errorf("%s: same %v, want %v", name, got, test.same)
		}
	}
}

func TestNodesInTheOrderOfTheirStart(t *testing.T) {
	a1, b1, b2 := table.Owner{Node: "a", Incarnation: 1}, table.Owner{Node: "b", Incarnation: 1}, table.Owner{Node: "b", Incarnation: 2}
	for i, o := range []table.Owner{a1, b1, b2} {
		for j, p := range []table.Owner{a1, b1, b2} {
			if before(o, p) != (i < j) {
				t.Errorf("%v before %v: %v", o, p, before(o, p))
			}
		}
	}
}

func TestOutboundMessageIsSentOnce(t *testing.T) {
	c := newCodec()
	out := &outbound{}
	if _, err := c.Marshal(out); err == nil {
		t.Error("a message without data was sent")
	}
}

// Before membership has said anything, nothing is in sync.
func TestNothingIsInSyncWithoutMembership(t *testing.T) {
	r, _ := newReceiver(t)
	for name, ask := range map[string]func() (bool, []string){"agreed": r.Agreed, "synced": r.SyncedAll} {
		if ok, missing := ask(); ok || !slices.Equal(missing, []string{"membership"}) {
			t.Errorf("%s: %v, %v", name, ok, missing)
		}
	}
}
