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

	"google.golang.org/grpc/mem"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/schema"
	"mapsync/syncd/table"
)

// requestKinds returns the kinds of the requests that are due now.
func (x *inboundFixture) requestKinds(now time.Time) (kinds []string) {
	for _, m := range x.stream.appendSubscriptions(nil, x.r.localMaps(), now) {
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

// TestSubscriptionRequests checks that a map is subscribed to once, again after a failure or for a
// full sync, and not after it was removed.
func TestSubscriptionRequests(t *testing.T) {
	x := newInboundFixture(t)
	now := time.Now()
	want := func(what string, want ...string) {
		t.Helper()
		if got := x.requestKinds(now); !slices.Equal(got, want) {
			t.Errorf("%s: requests: got %q, want %q", what, got, want)
		}
	}
	want("subscribed")
	x.in.owners.serial = 5
	want("peer without owner requests")
	x.stream.supportsOwnerRequests = true
	want("another request", "owners 5 of 1")
	want("request was sent")
	x.handle(stockBatch(1, 0, 10, 1))
	x.in.repeatFullSyncAt = now.Add(-1)
	x.in.state = StatePending
	want("full sync due, not served")
	for i, state := range []State{StateSyncing, StateCaughtUp} {
		x.in.state, x.in.repeatFullSyncAt = state, now.Add(-1)
		want("full sync due", fmt.Sprintf("unsubscribe %d", i+1), fmt.Sprintf("subscribe %d", i+2))
		if x.in.state != StateWaiting || len(x.stream.byIndex) != 1 || x.stream.byIndex[uint32(i+2)] != x.in {
			t.Errorf("state: got %s, maps by index %v, want %s and this map only, at index %d",
				x.in.state, x.stream.byIndex, StateWaiting, i+2)
		}
	}
	x.in.repeatFullSyncAt = time.Time{}
	x.in.state = StateSyncing
	x.in.fail(errGap, now)
	want("map has failed", "unsubscribe 3")
	if x.in.state != StateFailed {
		t.Errorf("state: got %s, want failed", x.in.state)
	}
	want("before the retry")
	now = now.Add(x.r.opt.MinBackoff)
	x.in.owners.token = 7
	want("at the retry", "subscribe 4 at 10")
	if x.in.state != StateWaiting {
		t.Errorf("state after the retry: got %s, want %s", x.in.state, StateWaiting)
	}
	// A refused map stays refused until it is accepted.
	x.in.index, x.in.state = 0, StateRefused
	clear(x.stream.byIndex)
	want("map was refused", "subscribe 5 at 10")
	if x.in.state != StateRefused {
		t.Errorf("state: got %s, want refused", x.in.state)
	}
	x.r.RemoveMap(testMap)
	x.in.unsubscribeIndex = 3
	l := newTestList(x)
	x.in.comparison.list = l
	want("map was removed", "unsubscribe 3", "unsubscribe 5")
	if len(x.stream.byIndex) != 0 || len(x.stream.maps) != 0 || !listEnded(l) {
		t.Errorf("removed map: got %v, %v, want none", x.stream.byIndex, x.stream.maps)
	}
	want("no maps")
	// A map that the peer may not write is not requested.
	x.r.opt.Access = func(string) Access { return Access{Write: matchOnly()} }
	layout := Layout{KeySize: testKeySize, ValueSize: testValueSize}
	if err := x.r.AddMap(testMap, layout, newTable(t, x.r.opt.Self, false)); err != nil {
		t.Fatalf("add map: got error %v, want nil", err)
	}
	want("excluded")
	if s := x.stream.maps[testMap].state; s != StateExcluded {
		t.Errorf("state: got %s, want excluded", s)
	}
}

// TestSubscriptionContents checks the contents of a subscription.
func TestSubscriptionContents(t *testing.T) {
	r, tb := newTestReplicator(t)
	tb.Update(func(tx *table.Tx) {
		tx.BeginLoad()
		tx.Load(key(1), value(1))
		tx.EndLoad()
	})
	s := newInboundStream(r, Peer{Node: "x", Incarnation: 1})
	m := s.appendSubscriptions(nil, r.localMaps(), time.Now())[0].GetSubscribe()
	in := s.maps[testMap]
	if !m.GetSendAll() || !m.GetExpiries() || m.GetResume() != nil || m.GetName() != testMap || m.GetLayout().GetKeySize() != testKeySize ||
		m.GetLayout().GetValueSize() != testValueSize || m.GetLayout().GetType() != mapsyncv1.MapType_MAP_TYPE_HASH ||
		m.GetOwners().GetSerial() != in.owners.serial || m.GetOwners().GetToken() != 0 {
		t.Errorf("subscription: got %v, want send_all, expiries, no resume, the map's name, layout and serial, and token 0", m)
	}
	if !in.owners.permit.all || in.state != StateWaiting {
		t.Errorf("permit: got all %t in state %s, want true in state %s", in.owners.permit.all, in.state, StateWaiting)
	}
	if (Layout{LRU: true}).proto().GetType() != mapsyncv1.MapType_MAP_TYPE_LRU_HASH {
		t.Error("layout of an LRU map: got another type, want an LRU hash map")
	}
	tb.Update(func(tx *table.Tx) { tx.Adopt(10) })
	in.index, in.generation, in.position, in.owners.token = 0, 4, 9, 7
	m = s.appendSubscriptions(nil, r.localMaps(), time.Now())[0].GetSubscribe()
	if m.GetSendAll() || m.GetResume().GetIncarnation() != 1 || m.GetResume().GetGeneration() != 4 || m.GetResume().GetPosition() != 9 || m.GetOwners().GetToken() != 7 {
		t.Errorf("subscription with a resume: got %v, want incarnation 1, generation 4, position 9, token 7, no send_all", m)
	}
	in.index, in.repeatFullSyncAt = 0, time.Now().Add(-time.Second)
	if m = s.appendSubscriptions(nil, r.localMaps(), time.Now())[0].GetSubscribe(); m.GetResume() != nil || m.GetOwners().GetToken() != 0 {
		t.Errorf("subscription for a full sync: got %v, want no resume and token 0", m)
	}
}

// TestInboundStreamIdleTime checks that the goroutine sleeps for a short time while something is
// due that does not wake it.
func TestInboundStreamIdleTime(t *testing.T) {
	for name, c := range map[string]struct {
		change func(x *inboundFixture)
		short  bool
	}{
		"nothing":                       {func(*inboundFixture) {}, false},
		"not subscribed":                {func(x *inboundFixture) { x.in.index = 0 }, true},
		"a report is due":               {func(x *inboundFixture) { x.in.reporting.due = true }, true},
		"a subscription has to end":     {func(x *inboundFixture) { x.in.unsubscribeIndex = 2 }, true},
		"an acknowledgement is pending": {func(x *inboundFixture) { x.in.pendingAcks.push(1, 1) }, true},
		"a full sync is scheduled":      {func(x *inboundFixture) { x.in.repeatFullSyncAt = time.Now() }, true},
		"a probe is due earlier":        {func(x *inboundFixture) { x.r.opt.clockProbeInterval = housekeepingInterval }, true},
	} {
		x := newInboundFixture(t)
		x.newAck()
		c.change(x)
		if got := x.stream.idle(); (got == housekeepingInterval) != c.short || !c.short && got != 4*housekeepingInterval {
			t.Errorf("%s: idle time: got %s, want short: %t (%s if short, else %s)",
				name, got, c.short, housekeepingInterval, 4*housekeepingInterval)
		}
	}
}

// requestRecorder stores the requests of a stream, and calls fn for each.
type requestRecorder struct {
	sent []*mapsyncv1.SubscribeRequest
	fn   func(*mapsyncv1.SubscribeRequest) error
}

func (r *requestRecorder) Send(m *mapsyncv1.SubscribeRequest) error {
	r.sent = append(r.sent, m)
	return r.fn(m)
}

// TestRequestLoop checks that a stream sends requests until its context is done or a request fails.
// The tables wake it until then.
func TestRequestLoop(t *testing.T) {
	broken := errors.New("broken")
	x := newInboundFixture(t)
	x.in.comparison.requestBuckets = true
	if err := x.stream.sendRequests(t.Context(), &requestRecorder{fn: func(*mapsyncv1.SubscribeRequest) error { return broken }}); !errors.Is(err, broken) {
		t.Errorf("send requests: got %v, want the error of Send", err)
	}
	x = newInboundFixture(t)
	x.r.opt.clockProbeInterval = time.Millisecond
	out := &requestRecorder{fn: func(*mapsyncv1.SubscribeRequest) error { return broken }}
	if err := x.stream.sendRequests(t.Context(), out); !errors.Is(err, broken) || out.sent[0].GetClockProbe() == nil {
		t.Errorf("send a clock probe: got %v, requests %v, want the error of Send, and a clock probe first", err, out.sent)
	}
	x = newInboundFixture(t)
	x.handle(stockBatch(1, 0, 10, 1))
	ctx, cancel := context.WithCancelCause(t.Context())
	out = &requestRecorder{fn: func(m *mapsyncv1.SubscribeRequest) error {
		if m.GetAck() != nil && m.GetAck().GetPosition() == 10 {
			cancel(errPeerGone)
		}
		return nil
	}}
	// The acknowledgement is sent when the table's writer has passed the position: the table wakes
	// the stream.
	time.AfterFunc(20*time.Millisecond, x.writeAll)
	begun := time.Now()
	if err := x.stream.sendRequests(ctx, out); !errors.Is(err, errPeerGone) || time.Since(begun) > 10*time.Second {
		t.Errorf("send requests: got %v, want errPeerGone within 10 s", err)
	}
	wasWoken(x.stream.wake)
	putTable(t, x.tb, 50, 51, 1)
	if wasWoken(x.stream.wake) {
		t.Error("table change after the end: got woken, want not woken")
	}
	// A removed table does not wake the stream. Another table does.
	subs := make(tableWakeups)
	defer subs.close()
	subs.update(x.r.localMaps(), x.stream.wake)
	subs.update(x.r.localMaps(), x.stream.wake)
	if putTable(t, x.tb, 51, 52, 1); !wasWoken(x.stream.wake) || len(subs) != 1 {
		t.Error("table change: got not woken, want woken")
	}
	next := newTable(t, x.r.opt.Self, false)
	x.r.RemoveMap(testMap)
	if err := x.r.AddMap(testMap, Layout{KeySize: testKeySize, ValueSize: testValueSize}, next); err != nil {
		t.Fatalf("add map: got error %v, want nil", err)
	}
	subs.update(x.r.localMaps(), x.stream.wake)
	wasWoken(x.stream.wake)
	if putTable(t, x.tb, 52, 53, 1); wasWoken(x.stream.wake) || len(subs) != 1 {
		t.Error("change of a removed table: got woken, want not woken")
	}
	if putTable(t, next, 1, 2, 1); !wasWoken(x.stream.wake) {
		t.Error("change of the new table: got not woken, want woken")
	}
}

// welcomeStream answers a Hello.
type welcomeStream struct {
	clockStream
	welcome *mapsyncv1.SubscribeResponse
	once    bool
}

func (g *welcomeStream) Recv() (*mapsyncv1.SubscribeResponse, error) {
	if !g.once && g.err == nil {
		g.once = true
		g.sent = g.sent[1:]
		return g.welcome, nil
	}
	return g.clockStream.Recv()
}

// TestHandshake checks that a peer shows its name and incarnation before anything else is received.
func TestHandshake(t *testing.T) {
	welcome := func(change func(*mapsyncv1.Welcome)) *mapsyncv1.SubscribeResponse {
		w := &mapsyncv1.Welcome{ProtocolVersion: supportedVersions.highest, Self: &mapsyncv1.Incarnation{Node: "x", Number: 1}, OwnerRequests: true, Reports: true}
		change(w)
		return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Welcome{Welcome: w}}
	}
	broken := errors.New("broken")
	same := func(*mapsyncv1.Welcome) {}
	for name, c := range map[string]struct {
		stream   *welcomeStream
		want     error
		mistaken string
	}{
		"right":               {&welcomeStream{welcome: welcome(same)}, nil, ""},
		"another version":     {&welcomeStream{welcome: welcome(func(w *mapsyncv1.Welcome) { w.ProtocolVersion = supportedVersions.highest + 1 })}, errProtocol, ""},
		"no welcome":          {&welcomeStream{welcome: &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Heartbeat{}}}, errProtocol, ""},
		"another node":        {&welcomeStream{welcome: welcome(func(w *mapsyncv1.Welcome) { w.Self.Node = "y" })}, errProtocol, ""},
		"another incarnation": {&welcomeStream{welcome: welcome(func(w *mapsyncv1.Welcome) { w.Self.Number = 2 })}, errProtocol, "x"},
		"send fails":          {&welcomeStream{clockStream: clockStream{sendErr: broken}, welcome: welcome(same)}, broken, ""},
		"ended":               {&welcomeStream{clockStream: clockStream{sendErr: io.EOF, err: broken}}, broken, ""},
		"no clock":            {&welcomeStream{clockStream: clockStream{answers: []*mapsyncv1.SubscribeResponse{{}}}, welcome: welcome(same)}, errProtocol, ""},
	} {
		x := newInboundFixture(t)
		x.stream.up, x.stream.since = false, time.Time{}
		mistaken := ""
		x.r.opt.IncarnationMismatch = func(node string) { mistaken = node }
		before := time.Now()
		if err := x.stream.handshake(c.stream); !errors.Is(err, c.want) || mistaken != c.mistaken || x.stream.up != (c.want == nil) {
			t.Errorf("%s: handshake: got %v, mismatch of %q, up %t, want %v, %q, %t", name, err, mistaken, x.stream.up, c.want, c.mistaken, c.want == nil)
		}
		if c.want != nil {
			continue
		}
		if !x.stream.supportsOwnerRequests || !x.stream.supportsReports || x.stream.version != supportedVersions.highest || x.stream.since.Before(before) || x.stream.lastContact.Load() == 0 || x.r.Stats().Connects != 1 {
			t.Errorf("%s: stream: got since %s, %d connects, "+
				"want not before %s and 1; want owner requests, reports, the highest version and a contact",
				name, x.stream.since, x.r.Stats().Connects, before)
		}
		wasWoken(x.r.wake)
		x.stream.markDown(broken)
		if x.stream.up || x.stream.lastIndex != 0 || len(x.stream.byIndex) != 0 || x.in.index != 0 || !errors.Is(x.stream.err, broken) || !wasWoken(x.r.wake) {
			t.Errorf("%s: end of the stream: got up %t, last index %d, "+
				"want false and 0, no indexes left, the error %q, and the replicator woken", name, x.stream.up, x.stream.lastIndex, broken)
		}
	}
}

// frameStream is a stream of encoded messages that ends with an error.
type frameStream struct {
	all [][]byte
	err error
}

func (m *frameStream) RecvMsg(v any) error {
	if len(m.all) == 0 {
		return m.err
	}
	in := v.(*wire.ReceivedFrame)
	data := mem.BufferSlice{mem.SliceBuffer(m.all[0])}
	m.all = m.all[1:]
	return wire.NewCodec().Unmarshal(data, in)
}

// TestReceiveUntilError checks that messages are handled in order until one is invalid.
func TestReceiveUntilError(t *testing.T) {
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		second   []byte
		want     error
		messages int
		bad      uint64
	}{"ends": {nil, broken, 1, 0}, "is wrong": {[]byte{0xff}, wire.ErrMalformed, 2, 1}} {
		x := newInboundFixture(t)
		m := &frameStream{all: [][]byte{mustMarshal(t, stockBatch(1, 0, 10, 1))}, err: broken}
		if c.second != nil {
			m.all = append(m.all, c.second)
		}
		messageCount := 0
		if err := x.stream.receive(m, func() { messageCount++ }); !errors.Is(err, c.want) || messageCount != c.messages || x.r.Stats().BadMessages != c.bad {
			t.Errorf("%s: receive: got %v, %d messages, %d bad messages, want %v, %d, %d", name, err, messageCount, x.r.Stats().BadMessages, c.want, c.messages, c.bad)
		}
		if live(x.tb)[1] != 1 {
			t.Errorf("%s: first message: got not merged, want merged", name)
		}
	}
}

// TestPendingMap checks that a pending map has no error.
func TestPendingMap(t *testing.T) {
	x := newInboundFixture(t)
	x.in.state, x.in.err = StateFailed, errGap
	wasWoken(x.r.wake)
	if err := x.stream.handle(mustMarshal(t, &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Pending{Pending: &mapsyncv1.MapPending{Map: 1}}})); err != nil {
		t.Fatalf("handle message: got error %v, want nil", err)
	}
	if x.in.state != StatePending || x.in.err != nil || !wasWoken(x.r.wake) {
		t.Errorf("pending map: got state %s, error %v, want %s, no error, and the replicator woken",
			x.in.state, x.in.err, StatePending)
	}
}

// TestOptionDefaults checks the documented defaults of the options.
func TestOptionDefaults(t *testing.T) {
	r, err := New(Options{Self: table.Owner{Node: strings.Repeat("n", wire.MaxName)}, Dial: noDial})
	if err != nil {
		t.Fatalf("new replicator: got error %v, want nil", err)
	}
	o := &r.opt
	for name, c := range map[string]struct{ got, want time.Duration }{
		"MaxClockAhead": {o.MaxClockAhead, time.Minute}, "MinBackoff": {o.MinBackoff, 100 * time.Millisecond}, "MaxBackoff": {o.MaxBackoff, time.Second},
		"RepeatFullSyncDelay": {o.RepeatFullSyncDelay, 30 * time.Second}, "UnknownGrace": {o.UnknownGrace, time.Minute}, "MaxStreamAge": {o.MaxStreamAge, time.Hour},
		"heartbeat": {o.heartbeat, time.Second}, "silence": {o.receiveTimeout, 5 * time.Second}, "advance": {o.positionInterval, 100 * time.Millisecond},
		"pace": {o.batchPause, time.Millisecond}, "probe": {o.clockProbeInterval, 5 * time.Second}, "unfit": {o.incompatibleRetry, time.Minute}, "compare": {o.digestInterval, time.Second},
		"audit": {o.auditInterval, time.Minute}, "reroute": {o.rerouteDelay, 2 * time.Second}, "stall": {o.stallTimeout, 10 * time.Second},
	} {
		if c.got != c.want {
			t.Errorf("%s: default: got %s, want %s", name, c.got, c.want)
		}
	}
	if o.Addr() != "" || o.Times() != (schema.Times{}) || o.Now().IsZero() {
		t.Error("defaults of Addr, Times and Now: got other values, want an empty address, no times and a set clock")
	}
	for name, o := range map[string]Options{
		"no name": {Dial: noDial}, "a name too long": {Self: table.Owner{Node: strings.Repeat("n", wire.MaxName+1)}, Dial: noDial}, "no dialler": {Self: target},
	} {
		if _, err := New(o); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: got %v, want ErrOptions", name, err)
		}
	}
	if reflect.ValueOf(r.DialOptions()).Len() == 0 || len(r.ServerOptions()) == 0 {
		t.Error("gRPC options: got none, want some of the client and of the server")
	}
}
