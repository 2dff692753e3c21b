package replicate

import (
	"errors"
	"slices"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// answers returns the kinds of what a session has answered since the last time.
func (r *recorder) answers(t *testing.T) (kinds []string) {
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
			t.Errorf("answer of type %T", m)
		}
	}
	r.sent = nil
	return kinds
}

// SendMsg takes encoded messages, which these tests do not look at.
func (*recorder) SendMsg(any) error { return nil }

// subscribedTo returns a session with a subscription and what it answers.
func subscribedTo(t *testing.T, r *Replicator, m *mapsyncv1.MapSubscription) (*session, *recorder) {
	t.Helper()
	out := new(recorder)
	s := newSession(r, table.Owner{Node: "x", Incarnation: 3}, out)
	if err := s.subscribe(m); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, f := range slices.Clone(s.feeds) {
			s.remove(f)
		}
	})
	return s, out
}

// Each answer about a map that is not served is given once.
func TestAnswersAboutMapsThatAreNotServed(t *testing.T) {
	r, tb := newReceiver(t)
	fitting := Layout{KeySize: testKeySize, ValueSize: testValueSize}
	s, out := subscribedTo(t, r, subscription(1, testMap, Layout{KeySize: testKeySize + 1, ValueSize: testValueSize}))
	f, m := s.find(1), r.localMaps()[testMap]
	step := func(m *localMap, want ...string) {
		t.Helper()
		if _, err := f.step(m, time.Now()); err != nil {
			t.Fatal(err)
		}
		if got := out.answers(t); !slices.Equal(got, want) {
			t.Errorf("answered %q, want %q", got, want)
		}
	}
	step(nil, "pending")
	step(nil)
	if f.answered.Load().state() != StatePending {
		t.Errorf("state %v", f.answered.Load().state())
	}
	step(m, "refused")
	step(m)
	if f.answered.Load().state() != StateRefused || r.count.mapsRefused.Load() != 1 {
		t.Errorf("state %v, %d refused", f.answered.Load().state(), r.count.mapsRefused.Load())
	}
	step(nil, "pending") // the map was removed: another may fit
	again, err := newLocalMap(testMap, fitting, tb)
	if err != nil {
		t.Fatal(err)
	}
	step(again, "refused")
	if f.serving.Load() {
		t.Error("a refused map is served")
	}
}

// A position is resumed only in the same map of the same incarnation, at a place that its
// order still has.
func TestWhereASubscriptionResumes(t *testing.T) {
	for name, test := range map[string]struct {
		change func(resume *mapsyncv1.Resume)
		expire bool // the delete at position 5 is forgotten
		want   string
	}{
		"same":              {func(*mapsyncv1.Resume) {}, false, "resumed"},
		"head":              {func(m *mapsyncv1.Resume) { m.Position = 5 }, false, "resumed"},
		"beyond the head":   {func(m *mapsyncv1.Resume) { m.Position = 6 }, false, "from 0"},
		"floor":             {func(m *mapsyncv1.Resume) { m.Position = 5 }, true, "resumed"},
		"below the floor":   {func(m *mapsyncv1.Resume) { m.Position = 4 }, true, "from 0"},
		"other incarnation": {func(m *mapsyncv1.Resume) { m.Incarnation++ }, false, "from 0"},
		"other map":         {func(m *mapsyncv1.Resume) { m.Generation++ }, false, "from 0"},
	} {
		r, tb := newReceiver(t)
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
		s, out := subscribedTo(t, r, sub)
		if _, err := s.find(1).step(m, time.Now()); err != nil {
			t.Fatal(err)
		}
		if got := out.answers(t); !slices.Equal(got, []string{test.want}) {
			t.Errorf("%s: answered %q, want %q", name, got, test.want)
		}
	}
}

// A map that is replaced ends its subscriptions, with the reason.
func TestReplacedMapEndsItsSubscriptions(t *testing.T) {
	r, tb := newReceiver(t)
	s, out := subscribedTo(t, r, subscription(1, testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}))
	f := s.find(1)
	if more, err := f.step(r.localMaps()[testMap], time.Now()); !more || err != nil || !f.serving.Load() {
		t.Fatal(more, err)
	}
	out.answers(t)
	other, err := newLocalMap(testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}, tb)
	if err != nil {
		t.Fatal(err)
	}
	if more, err := f.step(other, time.Now()); more || err != nil {
		t.Fatal(more, err)
	}
	if got := out.answers(t); !slices.Equal(got, []string{"END_REASON_REMOVED"}) || s.find(1) != nil || f.serving.Load() {
		t.Errorf("answered %q, feeds %v", got, s.feeds)
	}
}

// An answer that cannot be sent ends the stream.
func TestAnswerThatCannotBeSent(t *testing.T) {
	r, _ := newReceiver(t)
	for name, m := range map[string]*localMap{"pending": nil, "served": r.localMaps()[testMap]} {
		s := newSession(r, table.Owner{Node: "x", Incarnation: 3}, brokenStream{})
		if err := s.subscribe(subscription(1, testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize})); err != nil {
			t.Fatal(err)
		}
		f := s.find(1)
		if _, err := f.step(m, time.Now()); !errors.Is(err, errBroken) {
			t.Errorf("%s: %v", name, err)
		}
		s.remove(f)
	}
}

var errBroken = errors.New("the stream is broken")

// brokenStream sends nothing.
type brokenStream struct{}

func (brokenStream) Send(*mapsyncv1.SubscribeResponse) error { return errBroken }
func (brokenStream) SendMsg(any) error                       { return errBroken }
