package replicate

import (
	"errors"
	"slices"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// takeKinds returns the kinds of the answers since the last call.
func (r *responseRecorder) takeKinds(t *testing.T) (kinds []string) {
	t.Helper()
	for _, m := range r.sent {
		switch m := m.(*mapsyncv1.SubscribeResponse).GetMessage().(type) {
		case *mapsyncv1.SubscribeResponse_Pending:
			kinds = append(kinds, "pending")
		case *mapsyncv1.SubscribeResponse_Refused:
			kinds = append(kinds, "refused")
		case *mapsyncv1.SubscribeResponse_Accepted:
			kind := "resumed"
			if m.Accepted.GetReset_() {
				kind = "from 0"
			}
			kinds = append(kinds, kind)
		case *mapsyncv1.SubscribeResponse_Ended:
			kinds = append(kinds, m.Ended.GetReason().String())
		default:
			t.Errorf("answer: got type %T, want an answer to a subscription", m)
		}
	}
	r.sent = nil
	return kinds
}

// SendMsg discards encoded messages, which these tests do not check.
func (*responseRecorder) SendMsg(any) error { return nil }

// newStreamWith returns a stream with a subscription, and the recorder of its answers.
func newStreamWith(t *testing.T, r *Replicator, m *mapsyncv1.MapSubscription) (*outboundStream, *responseRecorder) {
	t.Helper()
	out := new(responseRecorder)
	s := newOutboundStream(r, table.Owner{Node: "x", Incarnation: 3}, out)
	if err := s.subscribe(m); err != nil {
		t.Fatalf("subscribe: got error %v, want nil", err)
	}
	t.Cleanup(func() {
		for _, sent := range slices.Clone(s.maps) {
			s.removeMap(sent)
		}
	})
	return s, out
}

// TestUnservedMapIsAnsweredOnce checks that each answer about a map that is not served is sent once.
func TestUnservedMapIsAnsweredOnce(t *testing.T) {
	r, tb := newTestReplicator(t)
	fitting := Layout{KeySize: testKeySize, ValueSize: testValueSize}
	s, out := newStreamWith(t, r, subscription(1, testMap, Layout{KeySize: testKeySize + 1, ValueSize: testValueSize}))
	sent, m := s.findMap(1), r.localMaps()[testMap]
	step := func(m *localMap, want ...string) {
		t.Helper()
		if _, err := sent.step(m, time.Now()); err != nil {
			t.Fatalf("step: got error %v, want nil", err)
		}
		if got := out.takeKinds(t); !slices.Equal(got, want) {
			t.Errorf("answers: got %q, want %q", got, want)
		}
	}
	step(nil, "pending")
	step(nil)
	if sent.sharedAnswer.Load().state() != StatePending {
		t.Errorf("state: got %v, want pending", sent.sharedAnswer.Load().state())
	}
	step(m, "refused")
	step(m)
	if sent.sharedAnswer.Load().state() != StateRefused || r.count.mapsRefused.Load() != 1 {
		t.Errorf("state: got %v with %d refusals, want refused", sent.sharedAnswer.Load().state(), r.count.mapsRefused.Load())
	}
	step(nil, "pending") // the map was removed: another one may fit
	again, err := newLocalMap(testMap, fitting, tb)
	if err != nil {
		t.Fatalf("new local map: got error %v, want nil", err)
	}
	step(again, "refused")
	if sent.serving.Load() {
		t.Error("refused map: got served, want not served")
	}
}

// TestSubscriptionResume checks that a position is resumed only in the same map of the same
// incarnation, between floor and head.
func TestSubscriptionResume(t *testing.T) {
	for name, test := range map[string]struct {
		change func(resume *mapsyncv1.Resume)
		expire bool // the delete at position 5 is forgotten
		want   string
	}{
		"same":                {func(*mapsyncv1.Resume) {}, false, "resumed"},
		"head":                {func(m *mapsyncv1.Resume) { m.Position = 5 }, false, "resumed"},
		"above the head":      {func(m *mapsyncv1.Resume) { m.Position = 6 }, false, "from 0"},
		"floor":               {func(m *mapsyncv1.Resume) { m.Position = 5 }, true, "resumed"},
		"below the floor":     {func(m *mapsyncv1.Resume) { m.Position = 4 }, true, "from 0"},
		"another incarnation": {func(m *mapsyncv1.Resume) { m.Incarnation++ }, false, "from 0"},
		"another map":         {func(m *mapsyncv1.Resume) { m.Generation++ }, false, "from 0"},
	} {
		r, tb := newTestReplicator(t)
		putTable(t, tb, 0, 4, 7)
		m := r.localMaps()[testMap]
		tb.Update(func(tx *table.Tx) {
			tx.Remote(&table.Delta{Key: key(9), Version: 1, Owner: tx.Intern(table.Owner{Node: "y", Incarnation: 1}), Delete: true}, 0, table.RemoteOptions{})
		})
		if test.expire {
			writer := tb.NewCursor(0)
			write(tb, writer)
			writer.Close()
			tb.Update(func(tx *table.Tx) { tx.Expire(time.Now().Add(24*time.Hour).UnixNano(), 99) })
		}
		resume := &mapsyncv1.Resume{Incarnation: r.opt.Self.Incarnation, Generation: m.generation, Position: 3}
		test.change(resume)
		sub := subscription(1, testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize})
		sub.Resume = resume
		s, out := newStreamWith(t, r, sub)
		if _, err := s.findMap(1).step(m, time.Now()); err != nil {
			t.Fatalf("step: got error %v, want nil", err)
		}
		if got := out.takeKinds(t); !slices.Equal(got, []string{test.want}) {
			t.Errorf("%s: answers: got %q, want %q", name, got, test.want)
		}
		// The first batch does not end the subscription.
		if _, err := s.findMap(1).step(m, time.Now()); err != nil || s.findMap(1) == nil {
			t.Errorf("%s: first batch: got error %v, subscription ended %t, want nil and false", name, err, s.findMap(1) == nil)
		}
	}
}

// TestReplacedMapEndsSubscriptions checks that a replaced map ends its subscriptions with the reason.
func TestReplacedMapEndsSubscriptions(t *testing.T) {
	r, tb := newTestReplicator(t)
	s, out := newStreamWith(t, r, subscription(1, testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}))
	sent := s.findMap(1)
	if more, err := sent.step(r.localMaps()[testMap], time.Now()); !more || err != nil || !sent.serving.Load() {
		t.Fatalf("first step: got more %t, error %v, serving %t, want more to send", more, err, sent.serving.Load())
	}
	out.takeKinds(t)
	other, err := newLocalMap(testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}, tb)
	if err != nil {
		t.Fatalf("new local map: got error %v, want nil", err)
	}
	if more, err := sent.step(other, time.Now()); more || err != nil {
		t.Fatalf("step with the replaced map: got more %t, error %v, want the end", more, err)
	}
	if got := out.takeKinds(t); !slices.Equal(got, []string{"END_REASON_REMOVED"}) || s.findMap(1) != nil || sent.serving.Load() {
		t.Errorf("answers: got %q, outbound map streams %v, want END_REASON_REMOVED, no stream of map 1, not served", got, s.maps)
	}
}

// TestAnswerSendErrorEndsStream checks that an answer that cannot be sent ends the stream.
func TestAnswerSendErrorEndsStream(t *testing.T) {
	r, _ := newTestReplicator(t)
	denied, err := newLocalMap(testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}, r.localMaps()[testMap].table)
	if err != nil {
		t.Fatalf("new local map: got error %v, want nil", err)
	}
	denied.access = Access{Read: matchOnly()}
	for name, m := range map[string]*localMap{"pending": nil, "served": r.localMaps()[testMap], "denied": denied} {
		s := newOutboundStream(r, table.Owner{Node: "x", Incarnation: 3}, brokenStream{})
		if err := s.subscribe(subscription(1, testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize})); err != nil {
			t.Fatalf("subscribe: got error %v, want nil", err)
		}
		out := s.findMap(1)
		if _, err := out.step(m, time.Now()); !errors.Is(err, errBroken) {
			t.Errorf("%s: step: got %v, want the error of Send", name, err)
		}
		s.removeMap(out)
	}
}

var errBroken = errors.New("the stream is broken")

// brokenStream fails to send.
type brokenStream struct{}

func (brokenStream) Send(*mapsyncv1.SubscribeResponse) error { return errBroken }
func (brokenStream) SendMsg(any) error                       { return errBroken }
