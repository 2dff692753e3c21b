package replicate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

// attempts runs a link whose dialler fails after a time, and returns the pauses between attempts.
func attempts(t *testing.T, n int, after time.Duration, err error) (pauses []time.Duration, r *Replicator) {
	t.Helper()
	r, _ = newReceiver(t)
	ctx, cancel := context.WithCancel(t.Context())
	var ended time.Time
	r.opt.Dial = func(Peer) (*grpc.ClientConn, error) {
		if !ended.IsZero() {
			pauses = append(pauses, time.Since(ended))
		}
		if len(pauses) == n {
			cancel()
		}
		time.Sleep(after)
		ended = time.Now()
		return nil, err
	}
	newLink(r, peerX(5)).run(ctx)
	return pauses, r
}

// TestPausesBetweenStreams double from MinBackoff to MaxBackoff, with a random part. A stream that lasted
// longer than MaxBackoff starts them anew, and one that the peer ended because of its age makes none.
func TestPausesBetweenStreams(t *testing.T) {
	const n, least, most = 200, 100 * time.Millisecond, time.Second
	aged := status.Error(codes.Aborted, "maximum age")
	for name, c := range map[string]struct {
		after       time.Duration
		err         error
		first, last time.Duration // pauses without their random part
		errors      uint64
	}{
		"at once":              {0, errRefusedHere, least, most, n},
		"after the limit":      {most, errRefusedHere, least, most, n},
		"beyond it":            {most + 1, errRefusedHere, least, least, n},
		"aged at once":         {0, aged, least, most, n},
		"aged after the limit": {most, aged, least, most, n},
		"aged beyond it":       {most + 1, aged, 0, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			pauses, r := attempts(t, n, c.after, c.err)
			if got := r.Stats().ConnectErrors; got != c.errors {
				t.Errorf("%s: %d errors, want %d", name, got, c.errors)
			}
			low, high := time.Hour, time.Duration(0)
			for i, pause := range pauses {
				if i < 4 {
					want := min(c.first<<i, c.last)
					if pause < want/2 || want > 0 && pause >= want*3/2 {
						t.Errorf("%s: pause %d is %s, want half of %s to one and a half", name, i, pause, want)
					}
					continue
				}
				low, high = min(low, pause), max(high, pause)
			}
			if low < c.last/2 || low > c.last*6/10 || high < c.last*14/10 || c.last > 0 && high >= c.last*15/10 {
				t.Errorf("%s: pauses from %s to %s, want half of %s to one and a half", name, low, high, c.last)
			}
		})
	}
}

// TestAttemptsAreLogged: each but the one that ends with the link.
func TestAttemptsAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		r, _ := newReceiver(t)
		r.opt.Logger = slog.New(slog.NewTextHandler(&out, nil))
		ctx, cancel := context.WithCancel(t.Context())
		dialled := 0
		r.opt.Dial = func(p Peer) (*grpc.ClientConn, error) {
			if dialled++; dialled == 3 {
				cancel()
			}
			return nil, errRefusedHere
		}
		l := newLink(r, peerX(5))
		l.run(ctx)
		if n := strings.Count(out.String(), "stream from peer ended"); n != 2 || !strings.Contains(out.String(), "peer=x") || dialled != 3 {
			t.Errorf("%d lines after %d attempts: %s", n, dialled, out.String())
		}
		if l.err == nil || !errors.Is(l.err, errRefusedHere) || !strings.Contains(l.err.Error(), "dial "+proofAddr) {
			t.Errorf("the link's error is %v", l.err)
		}
		dialled = 0
		if l.run(ctx); dialled != 0 {
			t.Error("a link whose context is done dials")
		}
	})
}

// TestLinksStartAndStop: a link runs until it is stopped, and wakes its replicator then.
func TestLinksStartAndStop(t *testing.T) {
	for name, end := range map[string]func(l *link){
		"stop":  (*link).stop,
		"leave": (*link).leave,
		"move":  func(l *link) { l.move("192.0.2.2:1") },
	} {
		synctest.Test(t, func(t *testing.T) {
			r, _ := newReceiver(t)
			dials(r)
			l := newLink(r, peerX(5))
			end(l) // it does not run yet
			if l.running() {
				t.Fatalf("%s: a link that was not started runs", name)
			}
			begun := time.Now()
			var wg sync.WaitGroup
			l.start(t.Context(), &wg)
			synctest.Wait()
			if !l.running() {
				t.Fatalf("%s: the link does not run", name)
			}
			time.Sleep(time.Minute)
			woken(r.wake)
			end(l)
			wg.Wait()
			if l.running() || !woken(r.wake) || time.Since(begun) != time.Minute {
				t.Errorf("%s: running %t after %s", name, l.running(), time.Since(begun))
			}
			if left := l.left(); (name == "leave") != left.Equal(time.Now()) || (name == "leave") == left.IsZero() {
				t.Errorf("%s: left at %s", name, left)
			}
			if addr := l.current().Addr; (name == "move") != (addr == "192.0.2.2:1") {
				t.Errorf("%s: the address is %s", name, addr)
			}
		})
	}
}

// TestEndOfALink: subscriptions end with the stream, and the replicator is woken.
func TestEndOfALink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newStreamless(t)
		x.l.since = time.Time{}
		woken(x.r.wake)
		x.l.intakes = nil // they wake the replicator, too
		x.l.down(errGap)
		if x.l.up || x.l.last != 0 || len(x.l.byIndex) != 0 || !errors.Is(x.l.err, errGap) || !x.l.since.Equal(time.Now()) || !woken(x.r.wake) {
			t.Errorf("up %t, last %d, since %s, error %v", x.l.up, x.l.last, x.l.since, x.l.err)
		}
	})
}

// helloStream is a stream whose peer answers the hello.
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

// TestHelloAndWelcome: the hello has this node's version, name and address. The welcome has the same version.
func TestHelloAndWelcome(t *testing.T) {
	welcome := func(version uint32) *mapsyncv1.SubscribeResponse {
		return &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Welcome{Welcome: &mapsyncv1.Welcome{
			ProtocolVersion: version, Self: &mapsyncv1.Incarnation{Node: "x", Number: 5},
		}}}
	}
	r, _ := newReceiver(t)
	r.opt.Addr = func() string { return proofAddr }
	s := &helloStream{answer: welcome(protocolVersion)}
	w, err := r.welcome(s)
	if err != nil || shownBy(w) != peerX(5).owner() {
		t.Fatalf("%v, %v", w, err)
	}
	h := s.sent[0].GetHello()
	if len(s.sent) != 1 || h.GetProtocolVersion() != protocolVersion || h.GetSelf().GetNode() != "b" || h.GetSelf().GetNumber() != 2 ||
		h.GetAddress() != proofAddr || !h.GetReports() {
		t.Errorf("hello %v", h)
	}
	other := uint32(protocolVersion + 1)
	for want, s := range map[string]*helloStream{
		"send hello": {sendErr: errRefusedHere},
		fmt.Sprintf("of version %d for a welcome of version %d", other, protocolVersion): {answer: welcome(other)},
		"receive *mapsyncv1.SubscribeResponse_Heartbeat of version 0":                    {answer: &mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Heartbeat{}}},
		"receive welcome": {err: errRefusedHere},
	} {
		if w, err := r.welcome(s); err == nil || w != nil || !strings.Contains(err.Error(), want) {
			t.Errorf("expected %q, got: %v", want, err)
		}
	}
}
