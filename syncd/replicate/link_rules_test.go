package replicate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// asked returns the kinds of what a link requests now.
func (x *receiver) asked(now time.Time) (kinds []string) {
	for _, m := range x.l.requests(nil, x.r.localMaps(), now) {
		switch m := m.GetMessage().(type) {
		case *mapsyncv1.SubscribeRequest_Subscribe:
			kind := fmt.Sprintf("subscribe %d", m.Subscribe.GetMap())
			if m.Subscribe.GetResume() != nil {
				kind += fmt.Sprintf(" at %d", m.Subscribe.GetResume().GetPosition())
			}
			kinds = append(kinds, kind)
		case *mapsyncv1.SubscribeRequest_Unsubscribe:
			kinds = append(kinds, fmt.Sprintf("unsubscribe %d", m.Unsubscribe.GetMap()))
		case *mapsyncv1.SubscribeRequest_Owners:
			kinds = append(kinds, fmt.Sprintf("owners %d of %d", m.Owners.GetSerial(), m.Owners.GetMap()))
		}
	}
	return kinds
}

// TestRequestsOfALink: a map is subscribed to once, again after it has failed or is to be sent anew, and
// no longer when it has gone.
func TestRequestsOfALink(t *testing.T) {
	x := newStreamless(t)
	now := time.Now()
	want := func(what string, want ...string) {
		t.Helper()
		if got := x.asked(now); !slices.Equal(got, want) {
			t.Errorf("%s: requests %q, want %q", what, got, want)
		}
	}
	want("subscribed")
	x.in.requesting.serial = 5
	want("to a peer that takes no requests")
	x.l.ownerRequests = true
	want("another request", "owners 5 of 1")
	want("it was sent")
	x.take(stockBatch(1, 0, 10, 1))
	x.in.rewalk = now.Add(-1)
	x.in.state = StatePending
	want("to be sent anew, but not served")
	for i, state := range []State{StateSyncing, StateCaughtUp} {
		x.in.state, x.in.rewalk = state, now.Add(-1)
		want("to be sent anew", fmt.Sprintf("unsubscribe %d", i+1), fmt.Sprintf("subscribe %d", i+2))
		if x.in.state != StateWaiting || len(x.l.byIndex) != 1 || x.l.byIndex[uint32(i+2)] != x.in {
			t.Errorf("%s, %v", x.in.state, x.l.byIndex)
		}
	}
	x.in.rewalk = time.Time{}
	x.in.state = StateSyncing
	x.in.fail(errGap, now)
	want("it has failed", "unsubscribe 3")
	if x.in.state != StateFailed {
		t.Errorf("%s", x.in.state)
	}
	want("too soon")
	now = now.Add(x.r.opt.MinBackoff)
	x.in.requesting.token = 7
	want("after a while", "subscribe 4 at 10")
	// Refused maps stay refused until they are accepted.
	x.in.index, x.in.state = 0, StateRefused
	clear(x.l.byIndex)
	want("it was refused", "subscribe 5 at 10")
	if x.in.state != StateRefused {
		t.Errorf("%s", x.in.state)
	}
	x.r.RemoveMap(testMap)
	x.in.dropped = 3
	l := newListing(x)
	x.in.comparing.list = l
	want("it has gone", "unsubscribe 3", "unsubscribe 5")
	if len(x.l.byIndex) != 0 || len(x.l.intakes) != 0 || !ended(l) {
		t.Errorf("%v, %v", x.l.byIndex, x.l.intakes)
	}
	want("nothing is left")
	// One that may not be written is not asked for.
	x.r.opt.Access = func(string) Access { return Access{Write: only()} }
	layout := Layout{KeySize: testKeySize, ValueSize: testValueSize}
	if err := x.r.AddMap(testMap, layout, newTable(t, x.r.opt.Self, false)); err != nil {
		t.Fatal(err)
	}
	want("excluded")
	if s := x.l.intakes[testMap].state; s != StateExcluded {
		t.Errorf("%s", s)
	}
}

// TestSubscriptionOfALink has what the peer needs to know.
func TestSubscriptionOfALink(t *testing.T) {
	r, tb := newReceiver(t)
	tb.Update(func(tx *table.Tx) {
		tx.BeginLoad()
		tx.Load(key(1), value(1))
		tx.EndLoad()
	})
	l := newLink(r, Peer{Node: "x", Incarnation: 1})
	m := l.requests(nil, r.localMaps(), time.Now())[0].GetSubscribe()
	in := l.intakes[testMap]
	if !m.GetTellAll() || !m.GetExpiries() || m.GetResume() != nil || m.GetName() != testMap || m.GetLayout().GetKeySize() != testKeySize ||
		m.GetLayout().GetValueSize() != testValueSize || m.GetLayout().GetType() != mapsyncv1.MapType_MAP_TYPE_HASH ||
		m.GetOwners().GetSerial() != in.requesting.serial || m.GetOwners().GetToken() != 0 {
		t.Errorf("%v", m)
	}
	if !in.requesting.permit.all || in.state != StateWaiting {
		t.Error("the records of all owners are requested and not permitted")
	}
	if (Layout{LRU: true}).proto().GetType() != mapsyncv1.MapType_MAP_TYPE_LRU_HASH {
		t.Error("an LRU map is announced as another")
	}
	tb.Update(func(tx *table.Tx) { tx.Claim(10) })
	in.index, in.generation, in.position, in.requesting.token = 0, 4, 9, 7
	m = l.requests(nil, r.localMaps(), time.Now())[0].GetSubscribe()
	if m.GetTellAll() || m.GetResume().GetIncarnation() != 1 || m.GetResume().GetGeneration() != 4 || m.GetResume().GetPosition() != 9 || m.GetOwners().GetToken() != 7 {
		t.Errorf("%v", m)
	}
	in.index, in.rewalk = 0, time.Now().Add(-time.Second)
	if m = l.requests(nil, r.localMaps(), time.Now())[0].GetSubscribe(); m.GetResume() != nil || m.GetOwners().GetToken() != 0 {
		t.Errorf("sent anew: %v", m)
	}
}

// TestIdleTimeOfALink: short while something is to come that nothing wakes the link for.
func TestIdleTimeOfALink(t *testing.T) {
	for name, c := range map[string]struct {
		change func(x *receiver)
		short  bool
	}{
		"nothing":               {func(*receiver) {}, false},
		"not subscribed":        {func(x *receiver) { x.in.index = 0 }, true},
		"a report":              {func(x *receiver) { x.in.reporting.due = true }, true},
		"an end":                {func(x *receiver) { x.in.dropped = 2 }, true},
		"an acknowledgement":    {func(x *receiver) { x.in.pending.push(1, 1) }, true},
		"a full sync":           {func(x *receiver) { x.in.rewalk = time.Now() }, true},
		"a probe comes earlier": {func(x *receiver) { x.r.opt.probe = housekeeping }, true},
	} {
		x := newStreamless(t)
		x.acked()
		c.change(x)
		if got := x.l.idle(); (got == housekeeping) != c.short || !c.short && got != 4*housekeeping {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// requests collects what a link sends, and calls fn for each.
type requests struct {
	sent []*mapsyncv1.SubscribeRequest
	fn   func(*mapsyncv1.SubscribeRequest) error
}

func (r *requests) Send(m *mapsyncv1.SubscribeRequest) error {
	r.sent = append(r.sent, m)
	return r.fn(m)
}

// TestRequestsUntilTheEnd: a link sends requests until its context is done, or one cannot be sent. It is
// woken by its tables meanwhile, and not after.
func TestRequestsUntilTheEnd(t *testing.T) {
	broken := errors.New("broken")
	x := newStreamless(t)
	x.in.comparing.ask = true
	if err := x.l.request(t.Context(), &requests{fn: func(*mapsyncv1.SubscribeRequest) error { return broken }}); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	x = newStreamless(t)
	x.r.opt.probe = time.Millisecond
	out := &requests{fn: func(*mapsyncv1.SubscribeRequest) error { return broken }}
	if err := x.l.request(t.Context(), out); !errors.Is(err, broken) || out.sent[0].GetClockProbe() == nil {
		t.Errorf("a probe that cannot be sent: %v, %v", err, out.sent)
	}
	x = newStreamless(t)
	x.take(stockBatch(1, 0, 10, 1))
	ctx, cancel := context.WithCancelCause(t.Context())
	out = &requests{fn: func(m *mapsyncv1.SubscribeRequest) error {
		if m.GetAck() != nil && m.GetAck().GetPosition() == 10 {
			cancel(errPeerGone)
		}
		return nil
	}}
	// The acknowledgement comes when the table's writer has been through: that wakes the link.
	time.AfterFunc(20*time.Millisecond, x.write)
	begun := time.Now()
	if err := x.l.request(ctx, out); !errors.Is(err, errPeerGone) || time.Since(begun) > 10*time.Second {
		t.Errorf("%v", err)
	}
	woken(x.l.wake)
	putTable(t, x.tb, 50, 51, 1)
	if woken(x.l.wake) {
		t.Error("a link that has ended is woken")
	}
	// A table that has gone wakes it no longer, another one does.
	subs := make(subscriptions)
	defer subs.close()
	subs.follow(x.r.localMaps(), x.l.wake)
	subs.follow(x.r.localMaps(), x.l.wake)
	if putTable(t, x.tb, 51, 52, 1); !woken(x.l.wake) || len(subs) != 1 {
		t.Error("the link is not woken")
	}
	next := newTable(t, x.r.opt.Self, false)
	x.r.RemoveMap(testMap)
	if err := x.r.AddMap(testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}, next); err != nil {
		t.Fatal(err)
	}
	subs.follow(x.r.localMaps(), x.l.wake)
	woken(x.l.wake)
	if putTable(t, x.tb, 52, 53, 1); woken(x.l.wake) || len(subs) != 1 {
		t.Error("a table that has gone wakes the link")
	}
	if putTable(t, next, 1, 2, 1); !woken(x.l.wake) {
		t.Error("the new table does not wake it")
	}
}

// greeted answers a greeting.
type greeted struct {
	clocked
	welcome *mapsyncv1.SubscribeResponse
	once    bool
}

func (g *greeted) Recv() (*mapsyncv1.SubscribeResponse, error) {
	if !g.once && g.err == nil {
		g.once = true
		g.sent = g.sent[1:]
		return g.welcome, nil
	}
	return g.clocked.Recv()
}

// TestGreetingOfAPeer: a peer shows its name and incarnation before anything is received from it.
func TestGreetingOfAPeer(t *testing.T) {
	welcome := func(change func(*mapsyncv1.Welcome)) *mapsyncv1.SubscribeResponse {
		w := &mapsyncv1.Welcome{ProtocolVersion: protocolVersion, Self: &mapsyncv1.Incarnation{Node: "x", Number: 1}, OwnerRequests: true, Reports: true}
		change(w)
		return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Welcome{Welcome: w}}
	}
	broken := errors.New("broken")
	same := func(*mapsyncv1.Welcome) {}
	for name, c := range map[string]struct {
		stream   *greeted
		want     error
		mistaken string
	}{
		"right":           {&greeted{welcome: welcome(same)}, nil, ""},
		"another version": {&greeted{welcome: welcome(func(w *mapsyncv1.Welcome) { w.ProtocolVersion++ })}, errProtocol, ""},
		"no welcome":      {&greeted{welcome: &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Heartbeat{}}}, errProtocol, ""},
		"another node":    {&greeted{welcome: welcome(func(w *mapsyncv1.Welcome) { w.Self.Node = "y" })}, errProtocol, ""},
		"another life":    {&greeted{welcome: welcome(func(w *mapsyncv1.Welcome) { w.Self.Number = 2 })}, errProtocol, "x"},
		"not sent":        {&greeted{clocked: clocked{sendErr: broken}, welcome: welcome(same)}, broken, ""},
		"ended":           {&greeted{clocked: clocked{sendErr: io.EOF, err: broken}}, broken, ""},
		"no clock":        {&greeted{clocked: clocked{answers: []*mapsyncv1.SubscribeResponse{{}}}, welcome: welcome(same)}, errProtocol, ""},
	} {
		x := newStreamless(t)
		x.l.up, x.l.since = false, time.Time{}
		mistaken := ""
		x.r.opt.Mistaken = func(node string) { mistaken = node }
		before := time.Now()
		if err := x.l.greet(c.stream); !errors.Is(err, c.want) || mistaken != c.mistaken || x.l.up != (c.want == nil) {
			t.Errorf("%s: %v, mistaken for %q, up %t", name, err, mistaken, x.l.up)
		}
		if c.want != nil {
			continue
		}
		if !x.l.ownerRequests || !x.l.wantsReports || x.l.since.Before(before) || x.l.contact.Load() == 0 || x.r.Stats().Connects != 1 {
			t.Errorf("%s: %+v, %d connects", name, x.l.since, x.r.Stats().Connects)
		}
		woken(x.r.wake)
		x.l.down(broken)
		if x.l.up || x.l.last != 0 || len(x.l.byIndex) != 0 || x.in.index != 0 || !errors.Is(x.l.err, broken) || !woken(x.r.wake) {
			t.Errorf("%s: after its end up %t, last %d", name, x.l.up, x.l.last)
		}
	}
}

// messages is a stream of encoded messages that ends with an error.
type messages struct {
	all [][]byte
	err error
}

func (m *messages) RecvMsg(v any) error {
	if len(m.all) == 0 {
		return m.err
	}
	in := v.(*inbound)
	in.free()
	in.buf = seal(m.all[0], &m.all[0])
	m.all = m.all[1:]
	return nil
}

// TestMessagesOfAStream are taken in one after the other, until one is wrong.
func TestMessagesOfAStream(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		second []byte
		want   error
		heard  int
		bad    uint64
	}{"ends": {nil, broken, 1, 0}, "is wrong": {[]byte{0xff}, errMalformed, 2, 1}} {
		x := newStreamless(t)
		m := &messages{all: [][]byte{mustMarshal(t, stockBatch(1, 0, 10, 1))}, err: broken}
		if c.second != nil {
			m.all = append(m.all, c.second)
		}
		heard := 0
		if err := x.l.receive(m, func() { heard++ }); !errors.Is(err, c.want) || heard != c.heard || x.r.Stats().BadMessages != c.bad {
			t.Errorf("%s: %v, heard %d, %d bad", name, err, heard, x.r.Stats().BadMessages)
		}
		if live(x.tb)[1] != 1 {
			t.Errorf("%s: the first message is lost", name)
		}
	}
}

// TestMapThatThePeerDoesNotHave is pending, and no error.
func TestMapThatThePeerDoesNotHave(t *testing.T) {
	x := newStreamless(t)
	x.in.state, x.in.err = StateFailed, errGap
	woken(x.r.wake)
	if err := x.l.take(mustMarshal(t, &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Pending{Pending: &mapsyncv1.MapPending{Map: 1}}})); err != nil {
		t.Fatal(err)
	}
	if x.in.state != StatePending || x.in.err != nil || !woken(x.r.wake) {
		t.Errorf("%s, %v", x.in.state, x.in.err)
	}
}

// TestDefaults of the options, as their documentation has them.
func TestDefaults(t *testing.T) {
	r, err := New(Options{Self: table.Owner{Node: strings.Repeat("n", maxNodeName)}, Dial: noDial})
	if err != nil {
		t.Fatal(err)
	}
	o := &r.opt
	for name, c := range map[string]struct{ got, want time.Duration }{
		"MaxClockAhead": {o.MaxClockAhead, time.Minute}, "MinBackoff": {o.MinBackoff, 100 * time.Millisecond}, "MaxBackoff": {o.MaxBackoff, time.Second},
		"RewalkDelay": {o.RewalkDelay, 30 * time.Second}, "UnknownGrace": {o.UnknownGrace, time.Minute}, "MaxStreamAge": {o.MaxStreamAge, time.Hour},
		"heartbeat": {o.heartbeat, time.Second}, "silence": {o.silence, 5 * time.Second}, "advance": {o.advance, 100 * time.Millisecond},
		"pace": {o.pace, time.Millisecond}, "probe": {o.probe, 5 * time.Second}, "unfit": {o.unfit, time.Minute}, "compare": {o.compare, time.Second},
		"audit": {o.audit, time.Minute}, "reroute": {o.reroute, 2 * time.Second}, "stall": {o.stall, 10 * time.Second},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s, want %s", name, c.got, c.want)
		}
	}
	if o.Addr() != "" || o.Times() != (schema.Times{}) || o.Now().IsZero() {
		t.Error("other defaults")
	}
	for name, o := range map[string]Options{
		"no name": {Dial: noDial}, "a name too long": {Self: table.Owner{Node: strings.Repeat("n", maxNodeName+1)}, Dial: noDial}, "no dialler": {Self: target},
	} {
		if _, err := New(o); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if reflect.ValueOf(r.DialOptions()).Len() == 0 || len(r.ServerOptions()) == 0 {
		t.Error("no gRPC options")
	}
}
