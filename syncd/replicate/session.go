package replicate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

var (
	errProtocol = errors.New("protocol violation")
	errPeerGone = errors.New("peer is gone")
	errReplaced = errors.New("replaced by a newer stream")
)

// maxStreams bounds the streams to one node name, those that observe included.
const maxStreams = 16

// service answers Subscribe.
type service struct {
	mapsyncv1.UnimplementedReplicationServiceServer
	r *Replicator
}

// responder is the part of a server's stream that a session sends on.
type responder interface {
	Send(*mapsyncv1.SubscribeResponse) error
	SendMsg(any) error
}

// session is one stream to a peer. Two goroutines share it: one handles the
// peer's requests, the other sends. They may outlive the gRPC handler for as
// long as the end of the stream takes to reach them.
type session struct {
	r      *Replicator
	target table.Owner
	caller Caller
	// identify returns what the caller has proved, by the settings as they are now.
	identify func() (Caller, error)
	remote   string // address
	send     responder
	wake     chan struct{}
	begun    time.Time

	done    <-chan struct{} // closed when cancelled; the session may be registered for a while longer
	cancel  context.CancelCauseFunc
	release func() bool // lets go of Run's context

	reports bool // the peer sends reports

	// observing says that the other end is nobody's replica.
	observing atomic.Bool
	// joined says that the other end has subscribed to a map: one that wants a proof
	// does not.
	joined atomic.Bool

	mu        sync.Mutex
	feeds     []*feed
	lastIndex uint32
	probes    []received

	// Of the sending goroutine.
	round     []*feed
	answering []received
	lastSent  time.Time
	count     traffic
}

// Subscribe serves one peer until either side has enough.
func (v *service) Subscribe(stream mapsyncv1.ReplicationService_SubscribeServer) error {
	r := v.r
	hello, err := firstRequest(stream, r.opt.silence)
	if err != nil {
		r.noteUnreadable(err, remoteOf(stream.Context()))
		return err
	}
	target, caller, err := r.checkHello(stream.Context(), hello.GetHello())
	if err != nil {
		r.count.badRequests.Add(1)
		r.opt.Logger.Warn("stream refused", slog.Any("error", err))
		return err
	}
	s := newSession(r, target, stream)
	s.caller, s.remote = caller, remoteOf(stream.Context())
	s.identify = func() (Caller, error) { return r.identify(stream.Context(), target.Node) }
	s.reports = hello.GetHello().GetReports()
	if caller.Replica {
		r.introduced(target, hello.GetHello().GetAddress())
	}
	ctx, err := r.enter(stream.Context(), s)
	if err != nil {
		return err
	}
	defer r.leave(s)
	age := time.AfterFunc(s.lifetime(), func() { s.cancel(errAged) })
	defer age.Stop()
	r.wg.Go(func() { s.cancel(s.receive(stream)) })
	r.wg.Go(func() { s.cancel(s.run(ctx)) })
	// Only the return of this function ends a Send or Recv that blocks.
	<-ctx.Done()
	return s.ended(context.Cause(ctx))
}

// firstRequest returns the first request, if it comes in time. When it does
// not, the handler's return ends the Recv that still waits.
func firstRequest(stream mapsyncv1.ReplicationService_SubscribeServer, limit time.Duration) (*mapsyncv1.SubscribeRequest, error) {
	type result struct {
		req *mapsyncv1.SubscribeRequest
		err error
	}
	got := make(chan result, 1)
	go func() {
		req, err := stream.Recv()
		got <- result{req, err}
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case res := <-got:
		return res.req, res.err
	case <-timer.C:
		return nil, status.Errorf(codes.DeadlineExceeded, "no hello in %s", limit)
	}
}

func newSession(r *Replicator, target table.Owner, send responder) *session {
	return &session{
		r: r, target: target, send: send, caller: anyCaller,
		wake:  make(chan struct{}, 1),
		begun: time.Now(),
	}
}

// enter registers a session.
func (r *Replicator) enter(ctx context.Context, s *session) (context.Context, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx == nil || r.ctx.Err() != nil {
		return nil, status.Error(codes.Unavailable, "replication is not running")
	}
	r.makeRoom(s.holder())
	ctx, s.cancel = context.WithCancelCause(ctx)
	s.done = ctx.Done()
	// The stream's context tells when the stream ends, Run's when the daemon does.
	s.release = context.AfterFunc(r.ctx, func() { s.cancel(context.Canceled) })
	r.sessions[s] = struct{}{}
	r.wg.Add(1)
	return ctx, nil
}

const (
	// certificateMargin is how long before the end of a certificate a stream ends.
	certificateMargin = time.Minute
	// minStreamAge is how long a stream lasts at least.
	minStreamAge = 5 * time.Second
)

// lifetime returns when a stream has to be made anew, so that both ends verify
// each other again. A random part keeps streams that began together apart.
func (s *session) lifetime() time.Duration {
	age := s.r.opt.MaxStreamAge
	age -= rand.N(age/10 + 1)
	if s.caller.Until.IsZero() {
		return age
	}
	left := time.Until(s.caller.Until)
	return min(age, max(left-certificateMargin, left/2, minStreamAge))
}

// replace ends the peer's other streams. A replica has one: a newer one takes the
// place of an older one whose end has not been noticed.
func (r *Replicator) replace(s *session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for o := range r.sessions {
		if o != s && o.target.Node == s.target.Node && !o.observing.Load() {
			o.cancel(errReplaced)
		}
	}
}

func (r *Replicator) leave(s *session) {
	s.release()
	r.mu.Lock()
	delete(r.sessions, s)
	r.mu.Unlock()
	r.wg.Done()
}

// checkPeer ends the session if its peer is gone or has started anew. A peer
// that membership does not know yet is given time. Who observes is none.
func (s *session) checkPeer(old, v *view) {
	if s.observing.Load() {
		return
	}
	p, live := v.live[s.target.Node]
	_, was := old.live[s.target.Node]
	if (!live && was) || p.Incarnation > s.target.Incarnation {
		s.cancel(errPeerGone)
	}
}

// noteUnreadable counts and logs a request that is too large or no message. gRPC itself ends the
// stream then, at once, so that the stream's end may not show the reason.
func (r *Replicator) noteUnreadable(err error, remote string) {
	if code := status.Code(err); code == codes.ResourceExhausted || code == codes.Internal {
		r.count.badRequests.Add(1)
		r.opt.Logger.Warn("stream refused: unreadable request", slog.String("remote", remote), slog.Any("error", err))
	}
}

// ended logs why a session is over, and returns that for the peer.
func (s *session) ended(err error) error {
	log := s.r.opt.Logger.With(slog.String("peer", s.target.Node))
	switch {
	case errors.Is(err, errAged):
		log.Debug("stream to peer reached its maximum age", slog.Any("error", err))
		return status.Error(codes.Aborted, err.Error())
	case status.Code(err) == codes.PermissionDenied:
		s.r.count.badRequests.Add(1)
		log.Warn("stream refused", slog.Any("error", err))
		return err
	case errors.Is(err, errProtocol):
		s.r.count.badRequests.Add(1)
		log.Warn("stream to peer ended", slog.Any("error", err))
		return status.Error(codes.InvalidArgument, err.Error())
	}
	if !s.joined.Load() {
		log.Debug("stream without subscriptions ended", slog.Any("error", err))
	} else {
		log.Info("stream to peer ended", slog.Any("error", err))
	}
	return status.Error(codes.Unavailable, err.Error())
}

// receive handles the peer's requests.
func (s *session) receive(stream mapsyncv1.ReplicationService_SubscribeServer) error {
	for {
		req, err := stream.Recv()
		if err != nil {
			s.r.noteUnreadable(err, s.remote)
			return fmt.Errorf("receive request: %w", err)
		}
		if err := s.handle(req); err != nil {
			return err
		}
	}
}

// handle takes in one request. Its errors wrap errProtocol.
func (s *session) handle(req *mapsyncv1.SubscribeRequest) error {
	if m, ok := req.GetMessage().(*mapsyncv1.SubscribeRequest_Subscribe); ok {
		return s.subscribe(m.Subscribe)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch m := req.GetMessage().(type) {
	case *mapsyncv1.SubscribeRequest_Unsubscribe:
		return s.unsubscribe(m.Unsubscribe.GetMap())
	case *mapsyncv1.SubscribeRequest_Ack:
		return s.acknowledge(m.Ack)
	case *mapsyncv1.SubscribeRequest_Owners:
		return s.requestOwners(m.Owners)
	case *mapsyncv1.SubscribeRequest_Compare:
		return s.asked(m.Compare)
	case *mapsyncv1.SubscribeRequest_Retell:
		return s.askedAgain(m.Retell)
	case *mapsyncv1.SubscribeRequest_Report:
		return s.reported(m.Report)
	case *mapsyncv1.SubscribeRequest_ClockProbe:
		return s.probed(m.ClockProbe)
	default:
		return fmt.Errorf("request of type %T: %w", m, errProtocol)
	}
}

// subscribe takes in a subscription. The first one of a replica ends the peer's other
// streams, after the session's lock is released: the replicator's lock is never taken
// under it.
func (s *session) subscribe(m *mapsyncv1.MapSubscription) error {
	first, err := s.addFeed(m)
	if err == nil && first && !m.GetObserve() {
		s.r.replace(s)
	}
	return err
}

// addFeed adds the feed of a subscription, and reports whether it is the session's first.
func (s *session) addFeed(m *mapsyncv1.MapSubscription) (first bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkSubscription(m); err != nil {
		return false, err
	}
	request, err := readOwners(m.GetOwners())
	if err != nil {
		return false, err
	}
	if first = s.lastIndex == 0; first {
		if err := s.admit(m.GetObserve()); err != nil {
			return false, err
		}
		s.observing.Store(m.GetObserve())
		s.joined.Store(true)
	}
	s.lastIndex = m.GetMap()
	s.feeds = append(s.feeds, newFeed(s, m, request))
	poke(s.wake)
	return first, nil
}

// checkSubscription returns an error if a subscription breaks the protocol. The lock is
// held.
func (s *session) checkSubscription(m *mapsyncv1.MapSubscription) error {
	switch {
	case m.GetMap() <= s.lastIndex:
		return fmt.Errorf("subscription %d after %d: %w", m.GetMap(), s.lastIndex, errProtocol)
	case len(s.feeds) >= 2*MaxMaps:
		// Twice, for those that are ended here and not yet taken from the list.
		return fmt.Errorf("more than %d subscriptions: %w", MaxMaps, errProtocol)
	case checkName(m.GetName()) != nil:
		return fmt.Errorf("map name of %d bytes: %w", len(m.GetName()), errProtocol)
	case !m.GetObserve() && s.target.Node == s.r.opt.Self.Node:
		return fmt.Errorf("replicate to node name %q, which is this node's own: %w", s.target.Node, errProtocol)
	case s.lastIndex > 0 && m.GetObserve() != s.observing.Load():
		return fmt.Errorf("subscription to observe among others that are not: %w", errProtocol)
	}
	return nil
}

func (s *session) unsubscribe(index uint32) error {
	if index > s.lastIndex {
		return fmt.Errorf("end of unknown subscription %d: %w", index, errProtocol)
	}
	if f := s.find(index); f != nil {
		f.unwanted.Store(true)
		poke(s.wake)
	}
	return nil
}

func (s *session) acknowledge(a *mapsyncv1.Ack) error {
	if a.GetMap() > s.lastIndex {
		return fmt.Errorf("acknowledgement for unknown subscription %d: %w", a.GetMap(), errProtocol)
	}
	f := s.find(a.GetMap())
	if f == nil {
		return nil // it ended meanwhile
	}
	if sent := f.sent.Load(); a.GetPosition() > sent {
		return fmt.Errorf("acknowledgement of position %d of %q, sent up to %d: %w", a.GetPosition(), f.name, sent, errProtocol)
	}
	// Only the receiving goroutine stores it. The position never decreases: what the
	// kernel map held once, or held something newer for, is not taken back.
	if a.GetPosition() > f.acked.Load() {
		f.acked.Store(a.GetPosition())
	}
	return nil
}

// find returns a feed. The lock is held.
func (s *session) find(index uint32) *feed {
	for _, f := range s.feeds {
		if f.index == index {
			return f
		}
	}
	return nil
}

// remove takes a feed from the list.
func (s *session) remove(f *feed) {
	f.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.feeds = slices.DeleteFunc(s.feeds, func(o *feed) bool { return o == f })
}
