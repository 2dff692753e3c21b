package replicate

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// reconnectPauses runs a stream whose dialler fails after a given time, and returns the pauses
// between the attempts.
func reconnectPauses(t *testing.T, n int, after time.Duration, err error) (pauses []time.Duration, r *Replicator) {
	t.Helper()
	r, _ = newTestReplicator(t)
	ctx, cancel := context.WithCancel(t.Context())
	var ended time.Time
	r.opt.Dial = func(Peer) (*grpc.ClientConn, error) {
		if !ended.IsZero() {
			pauses = append(pauses, time.Since(ended))
		}
		if len(pauses) == n {
			cancel()
		}
		time.Sleep(after) // the duration of the attempt, in the bubble of the caller
		ended = time.Now()
		return nil, err
	}
	newInboundStream(r, peerX(5)).run(ctx)
	return pauses, r
}

// TestReconnectBackoff checks that the pauses double from MinBackoff to MaxBackoff, with a random
// part. A stream that lasted longer than MaxBackoff resets them. A stream that the peer ended at
// its maximum age causes no pause.
func TestReconnectBackoff(t *testing.T) {
	const n, least, most = 200, 100 * time.Millisecond, time.Second
	aged := status.Error(codes.Aborted, "maximum age")
	for name, c := range map[string]struct {
		after       time.Duration
		err         error
		first, last time.Duration // pauses without the random part
		errors      uint64
	}{
		"fails at once":                     {0, errRefusedHere, least, most, n},
		"fails after MaxBackoff":            {most, errRefusedHere, least, most, n},
		"fails later than MaxBackoff":       {most + 1, errRefusedHere, least, least, n},
		"maximum age at once":               {0, aged, least, most, n},
		"maximum age after MaxBackoff":      {most, aged, least, most, n},
		"maximum age later than MaxBackoff": {most + 1, aged, 0, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			pauses, r := reconnectPauses(t, n, c.after, c.err)
			if got := r.Stats().ConnectErrors; got != c.errors {
				t.Errorf("%s: got %d errors, want %d", name, got, c.errors)
			}
			low, high := time.Hour, time.Duration(0)
			for i, pause := range pauses {
				if i < 4 {
					want := min(c.first<<i, c.last)
					if pause < want/2 || want > 0 && pause >= want*3/2 {
						t.Errorf("%s: pause %d: got %s, want 0.5 to 1.5 times %s", name, i, pause, want)
					}
					continue
				}
				low, high = min(low, pause), max(high, pause)
			}
			if low < c.last/2 || low > c.last*6/10 || high < c.last*14/10 || c.last > 0 && high >= c.last*15/10 {
				t.Errorf("%s: pauses: got %s to %s, want 0.5 to 1.5 times %s", name, low, high, c.last)
			}
		})
	}
}

// TestReconnectErrorsAreLogged checks that each error is logged, except for the end by stop.
func TestReconnectErrorsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		r, _ := newTestReplicator(t)
		r.opt.Logger = slog.New(slog.NewTextHandler(&out, nil))
		ctx, cancel := context.WithCancel(t.Context())
		dialled := 0
		r.opt.Dial = func(p Peer) (*grpc.ClientConn, error) {
			if dialled++; dialled == 3 {
				cancel()
			}
			return nil, errRefusedHere
		}
		s := newInboundStream(r, peerX(5))
		s.run(ctx)
		if n := strings.Count(out.String(), "stream from peer ended"); n != 2 || !strings.Contains(out.String(), "peer=x") || dialled != 3 {
			t.Errorf("log lines: got %d after %d attempts: %s, want 2 with peer=x after 3 attempts", n, dialled, out.String())
		}
		if s.err == nil || !errors.Is(s.err, errRefusedHere) || !strings.Contains(s.err.Error(), "dial "+verifyAddr) {
			t.Errorf("error of the stream: got %v, want an error with errRefusedHere and %q", s.err, "dial "+verifyAddr)
		}
		dialled = 0
		if s.run(ctx); dialled != 0 {
			t.Error("run with a done context: got an attempt, want none")
		}
	})
}

// TestInboundStreamStartStop checks that a stream runs until it is stopped, and then wakes the
// replicator.
func TestInboundStreamStartStop(t *testing.T) {
	for name, end := range map[string]func(s *inboundStream){
		"stop":  (*inboundStream).stop,
		"leave": (*inboundStream).peerDeparted,
		"move":  func(s *inboundStream) { s.setAddr("192.0.2.2:1") },
	} {
		synctest.Test(t, func(t *testing.T) {
			r, _ := newTestReplicator(t)
			failDials(r)
			s := newInboundStream(r, peerX(5))
			end(s) // the stream does not run yet
			if s.running() {
				t.Fatalf("%s: stream before start: got running, want not running", name)
			}
			begun := time.Now()
			var wg sync.WaitGroup
			s.start(t.Context(), &wg)
			synctest.Wait()
			if !s.running() {
				t.Fatalf("%s: stream after start: got not running, want running", name)
			}
			time.Sleep(time.Minute)
			wasWoken(r.wake)
			end(s)
			wg.Wait()
			if s.running() || !wasWoken(r.wake) || time.Since(begun) != time.Minute {
				t.Errorf("%s: got running %t after %s, want false after %s, and the replicator woken",
					name, s.running(), time.Since(begun), time.Minute)
			}
			if left := s.departedAt(); (name == "leave") != left.Equal(time.Now()) || (name == "leave") == left.IsZero() {
				t.Errorf("%s: got departure at %s, want the current time for leave, none otherwise", name, left)
			}
			if addr := s.currentPeer().Addr; (name == "move") != (addr == "192.0.2.2:1") {
				t.Errorf("%s: got address %s, want 192.0.2.2:1 for move only", name, addr)
			}
		})
	}
}

// TestSubscriptionsEndWithStream checks that the end of a stream ends the subscriptions and wakes
// the replicator.
func TestSubscriptionsEndWithStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newInboundFixture(t)
		x.stream.since = time.Time{}
		wasWoken(x.r.wake)
		x.stream.maps = nil // maps wake the replicator, too
		x.stream.markDown(errGap)
		if x.stream.up || x.stream.lastIndex != 0 || len(x.stream.byIndex) != 0 || !errors.Is(x.stream.err, errGap) || !x.stream.since.Equal(time.Now()) || !wasWoken(x.r.wake) {
			t.Errorf("stream after its end: got up %t, last index %d, since %s, error %v, "+
				"want false, 0, %s and %v; want no maps by index, and the replicator woken",
				x.stream.up, x.stream.lastIndex, x.stream.since, x.stream.err, time.Now(), errGap)
		}
	})
}

// helloStream is a stream whose peer answers the Hello.
type helloStream struct {
	mapsyncv1.ReplicationService_SubscribeClient
	sent    []*mapsyncv1.SubscribeRequest
	sendErr error
	answer  *mapsyncv1.SubscribeResponse
	err     error
}

func (h *helloStream) Send(m *mapsyncv1.SubscribeRequest) error {
	h.sent = append(h.sent, m)
	return h.sendErr
}

func (h *helloStream) Recv() (*mapsyncv1.SubscribeResponse, error) { return h.answer, h.err }

// TestHelloAndWelcome checks the contents of the Hello and the checks of the Welcome.
func TestHelloAndWelcome(t *testing.T) {
	welcome := func(version uint32) *mapsyncv1.SubscribeResponse {
		return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Welcome{Welcome: &mapsyncv1.Welcome{
			ProtocolVersion: version, Self: &mapsyncv1.Incarnation{Node: "x", Number: 5},
		}}}
	}
	r, _ := newTestReplicator(t)
	r.opt.Addr = func() string { return verifyAddr }
	r.opt.versions = versionRange{1, 2}
	s := &helloStream{answer: welcome(1)}
	w, err := r.exchangeHello(s)
	if err != nil || welcomeSender(w) != peerX(5).owner() {
		t.Fatalf("exchange hello: got %v, %v, want a welcome of %v and no error", w, err, peerX(5).owner())
	}
	h := s.sent[0].GetHello()
	if len(s.sent) != 1 || h.GetProtocolVersion() != 1 || h.GetMaxProtocolVersion() != 2 || h.GetSelf().GetNode() != "b" || h.GetSelf().GetNumber() != 2 ||
		h.GetAddress() != verifyAddr || !h.GetReports() {
		t.Errorf("hello: got %v, want one message: versions 1 to 2, node b, incarnation 2, address %s, reports", h, verifyAddr)
	}
	for want, s := range map[string]*helloStream{
		"send hello": {sendErr: errRefusedHere},
		`negotiate with "x": it supports protocol version 3, "b" supports versions 1 to 2: no common protocol version (upgrade syncd on "b")`: {answer: welcome(3)},
		"protocol versions 0 to 0":                                     {answer: welcome(0)},
		"receive *mapsyncv1.SubscribeResponse_Heartbeat for a welcome": {answer: &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Heartbeat{}}},
		"receive welcome":                                              {err: errRefusedHere},
		`offer protocol versions 1 to 2: rpc error: code = FailedPrecondition desc = "protocol version 1 is not version 9"`: {
			err: status.Error(codes.FailedPrecondition, "protocol version 1 is not version 9"),
		},
	} {
		if w, err := r.exchangeHello(s); err == nil || w != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("exchange hello: want error %q, got: %v", want, err)
		}
	}
}
