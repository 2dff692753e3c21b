package replicate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

var (
	// errProtocol is wrapped by the errors about messages that violate the protocol.
	errProtocol = errors.New("protocol violation")
	// errPeerGone ends the stream of a peer that has left or has restarted.
	errPeerGone = errors.New("peer has left")
	// errReplaced ends a stream in favour of a newer one.
	errReplaced = errors.New("replaced by a newer stream")
)

// maxStreams bounds the streams with one limit key, including those that observe.
const maxStreams = 16

// service implements the Subscribe RPC.
type service struct {
	// The embedded server answers calls of later versions of the service with Unimplemented. It has no state.
	mapsyncv1.UnimplementedReplicationServiceServer
	// r does not change. Its streams outlive a call of Subscribe, see Replicator.wg.
	r *Replicator
}

// responseSender is the part of a server's stream that sends responses.
type responseSender interface {
	Send(*mapsyncv1.SubscribeResponse) error
	SendMsg(any) error
}

// outboundStream is one gRPC stream to a peer. It has two goroutines: the receiving goroutine
// handles the peer's requests, and the sending goroutine sends. They may run longer than the gRPC
// handler, until the end of the stream has reached them.
//
// A peer that restarts, or whose connection breaks, opens another stream. The old one ends when the
// new one has its first subscription, or when this node detects its end.
type outboundStream struct {
	// r, target, caller and version do not change once the stream is registered.
	r *Replicator
	// target is the peer. Its name is authenticated. Its incarnation is as the peer states it.
	target table.Owner
	// caller holds the roles with which the stream began.
	caller Caller
	// version is the version of the protocol. It is one that this node supports.
	version uint32
	// clusterErr is not nil if the caller belongs to another cluster. It does not change. Only an observer may go on then.
	clusterErr error
	// identify authenticates the caller again by the current settings. Reauthorise calls it.
	identify func() (Caller, error)
	// remote is the address of the caller, without the port. For the log and the status only.
	remote string
	// send is the gRPC stream. Only the sending goroutine uses it. gRPC allows one sender and one
	// receiver at a time.
	send responseSender
	// wake has a capacity of 1. It wakes the sending goroutine.
	wake chan struct{}
	// startedAt is when the stream began. It does not change.
	startedAt time.Time

	// done is closed when the stream is cancelled. The stream may remain registered for some time.
	// registerStream sets done, cancel and release.
	done <-chan struct{}
	// cancel ends the stream with a reason. The first reason counts.
	cancel context.CancelCauseFunc
	// release detaches the stream from the context of Run. unregisterStream calls it.
	release func() bool

	// sendsReports reports that the peer sends reports. It does not change.
	sendsReports bool

	// observing reports that the peer observes. The first subscription sets it. It does not change
	// afterwards.
	observing atomic.Bool
	// subscribed reports that the peer has subscribed to a map. A peer that only verifies this node
	// does not subscribe.
	subscribed atomic.Bool

	// mu guards the fields up to probes.
	mu sync.Mutex
	// endedAt is when the last subscription to a map of this node ended, by map name; nil: none.
	endedAt map[string]time.Time
	// maps are the outbound map streams, at most 2*MaxMaps, in the order of their index.
	maps []*outboundMap
	// lastIndex is the highest number of a subscription. Numbers increase. 0: none so far.
	lastIndex uint32
	// probes are the clock probes without an answer, at most maxPendingProbes, oldest first. The
	// receiving goroutine appends to it, and the sending goroutine answers and removes.
	probes []receivedProbe

	// The sending goroutine owns the fields below.

	// round are the maps of the current round. It is a copy of maps, so that Send needs no lock.
	round []*outboundMap
	// answeringProbes are the clock probes that are being answered.
	answeringProbes []receivedProbe
	// lastSent is when the last message was sent. A heartbeat is due after Options.heartbeat from
	// then.
	lastSent time.Time
	// count counts the batches sent. It is safe for concurrent use.
	count traffic
}

// Subscribe serves one peer until the stream ends. It returns a gRPC status.
//
// The first request must be a Hello and arrive within receiveTimeout: the caller holds a stream
// without being checked until then. The goroutines of the stream are in Replicator.wg, and may end
// after Subscribe has returned.
func (v *service) Subscribe(stream mapsyncv1.ReplicationService_SubscribeServer) error {
	r := v.r
	hello, err := firstRequest(stream, r.opt.receiveTimeout)
	if err != nil {
		r.noteUnreadable(err, remoteAddr(stream.Context()))
		return err
	}
	peer, err := r.checkHello(stream.Context(), hello.GetHello())
	if err != nil {
		r.count.badRequests.Add(1)
		r.opt.Logger.Warn("stream refused", slog.Any("error", err), problemRefused, slog.String("hint", hintRefused))
		return err
	}
	s := newOutboundStream(r, peer.node, stream)
	s.caller, s.version, s.remote = peer.caller, peer.version, remoteAddr(stream.Context())
	s.identify = func() (Caller, error) { return r.identify(stream.Context(), peer.node.Node) }
	s.sendsReports = hello.GetHello().GetReports()
	s.clusterErr = r.checkCluster(hello.GetHello().GetCluster())
	// Only a caller with the replica role can be a node of the cluster.
	if peer.caller.Replica && s.clusterErr == nil {
		r.handleIntroduction(peer.node, hello.GetHello().GetAddress())
	}
	ctx, err := r.registerStream(stream.Context(), s)
	if err != nil {
		return err
	}
	defer r.unregisterStream(s)
	// The age limit makes both sides authenticate each other again.
	age := time.AfterFunc(s.lifetime(), func() { s.cancel(errMaxAge) })
	defer age.Stop()
	r.wg.Go(func() { s.cancel(s.receive(stream)) })
	r.wg.Go(func() { s.cancel(s.run(ctx)) })
	// Only the return of this function unblocks a Send or Recv.
	<-ctx.Done()
	return s.endStatus(context.Cause(ctx))
}

// firstRequest returns the first request if it arrives within limit. If not, the return of the
// handler ends the pending Recv. The error is a gRPC status.
func firstRequest(stream mapsyncv1.ReplicationService_SubscribeServer, limit time.Duration) (*mapsyncv1.SubscribeRequest, error) {
	type result struct {
		// Exactly one of req and err is not nil.
		req *mapsyncv1.SubscribeRequest
		err error // a gRPC status, or io.EOF
	}
	// The channel has room for the result, so that the goroutine ends even if the timer was first.
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

// newOutboundStream returns a stream that is not registered yet. The peer has all roles and this
// node's highest protocol version until the caller sets others. Its goroutines are not started.
func newOutboundStream(r *Replicator, target table.Owner, send responseSender) *outboundStream {
	return &outboundStream{
		r: r, target: target, send: send, caller: anyCaller, version: r.opt.versions.highest,
		wake:      make(chan struct{}, 1),
		startedAt: time.Now(),
	}
}

// registerStream registers a stream and returns its context. The error is a gRPC status.
//
// The stream ends with ctx, with its cancel, and with the context of Run. The caller must call
// unregisterStream. It takes Replicator.mu.
func (r *Replicator) registerStream(ctx context.Context, s *outboundStream) (context.Context, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ctx == nil || r.ctx.Err() != nil {
		return nil, status.Error(codes.Unavailable, "replication is not running")
	}
	// The new stream is not registered yet, so it does not count.
	r.evictStream(s.limitKey())
	ctx, s.cancel = context.WithCancelCause(ctx)
	s.done = ctx.Done()
	// The context of the stream ends with the stream, that of Run ends with the daemon.
	s.release = context.AfterFunc(r.ctx, func() { s.cancel(context.Canceled) })
	r.outboundStreams[s] = struct{}{}
	// unregisterStream calls Done.
	r.wg.Add(1)
	return ctx, nil
}

// replaceStreams ends the other streams of the peer that do not observe. A replica has one stream:
// a new one replaces an old one whose end this node has not detected. Two streams to one replica
// would send each record twice, and acknowledgements of the old one would hold back tombstones. It
// takes Replicator.mu, so the caller must not hold s.mu.
func (r *Replicator) replaceStreams(s *outboundStream) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for o := range r.outboundStreams {
		if o != s && o.target.Node == s.target.Node && !o.observing.Load() {
			o.cancel(errReplaced)
		}
	}
}

// unregisterStream removes a stream that has ended. The goroutines of the stream may still run, and
// hold places in wg of their own.
func (r *Replicator) unregisterStream(s *outboundStream) {
	s.release()
	r.mu.Lock()
	delete(r.outboundStreams, s)
	r.mu.Unlock()
	r.wg.Done()
}

// checkPeer ends the stream if the peer has left or has restarted. A peer that membership does not
// have yet, and an observer, keep their streams. The caller holds Replicator.mu. The end of the
// stream is asynchronous.
func (s *outboundStream) checkPeer(old, v *view) {
	if s.observing.Load() {
		return
	}
	// A peer that connects before gossip has it is in neither view, and keeps its stream.
	p, live := v.live[s.target.Node]
	_, was := old.live[s.target.Node]
	if (!live && was) || p.Incarnation > s.target.Incarnation {
		s.cancel(errPeerGone)
	}
}

// noteUnreadable counts and logs a request that is too large or malformed. gRPC itself ends such a
// stream at once, so the error of the stream may not contain the reason. It ignores all other
// errors, which are ends of streams.
func (r *Replicator) noteUnreadable(err error, remote string) {
	if code := status.Code(err); code == codes.ResourceExhausted || code == codes.Internal {
		r.count.badRequests.Add(1)
		r.opt.Logger.Warn("stream refused: unreadable request", slog.String("remote", remote), slog.Any("error", err), problemRefused,
			slog.String("hint", "use the same version of syncd there; if it is another program, block it in the firewall"))
	}
}

// endStatus logs why a stream has ended, and returns the gRPC status for the peer.
//
// The code distinguishes a planned end (Aborted), a denied caller (PermissionDenied), a faulty one
// (InvalidArgument), and all other ends (Unavailable). After Aborted, a peer whose stream was not
// short reconnects without a pause.
func (s *outboundStream) endStatus(err error) error {
	log := s.r.opt.Logger.With(slog.String("peer", s.target.Node))
	switch {
	case errors.Is(err, errMaxAge):
		// A planned end: the peer resumes at once.
		log.Debug("stream to peer reached its maximum age", slog.Any("error", err))
		return status.Error(codes.Aborted, err.Error())
	case status.Code(err) == codes.PermissionDenied:
		// Reauthorise or checkRole has ended the stream.
		s.r.count.badRequests.Add(1)
		log.Warn("stream refused", slog.Any("error", err), problemRefused, slog.String("hint", hintRefused))
		return err
	case errors.Is(err, errProtocol):
		s.r.count.badRequests.Add(1)
		log.Warn("stream to peer ended", slog.Any("error", err), slog.String("hint", hintVersions))
		return status.Error(codes.InvalidArgument, err.Error())
	}
	// Verification opens streams without subscriptions. They end after the Welcome.
	if !s.subscribed.Load() {
		log.Debug("stream without subscriptions ended", slog.Any("error", err))
	} else {
		log.Info("stream to peer ended", slog.Any("error", err))
	}
	return status.Error(codes.Unavailable, err.Error())
}

// receive handles the peer's requests until the stream ends. It is the receiving goroutine. An
// error ends the stream, after which the peer resumes on another one.
func (s *outboundStream) receive(stream mapsyncv1.ReplicationService_SubscribeServer) error {
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

// handle handles one request. Its errors wrap errProtocol or are gRPC statuses. A request only
// changes the state of a map stream, and the sending goroutine acts on it.
func (s *outboundStream) handle(req *mapsyncv1.SubscribeRequest) error {
	if m, ok := req.GetMessage().(*mapsyncv1.SubscribeRequest_Subscribe); ok {
		return s.subscribe(m.Subscribe)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// All other requests refer to a subscription of this stream, or to the stream itself.
	switch m := req.GetMessage().(type) {
	case *mapsyncv1.SubscribeRequest_Unsubscribe:
		return s.unsubscribe(m.Unsubscribe.GetMap())
	case *mapsyncv1.SubscribeRequest_Ack:
		return s.handleAck(m.Ack)
	case *mapsyncv1.SubscribeRequest_Owners:
		return s.handleOwnerRequest(m.Owners)
	case *mapsyncv1.SubscribeRequest_Compare:
		return s.handleCompareRequest(m.Compare)
	case *mapsyncv1.SubscribeRequest_Resend:
		return s.handleResendRequest(m.Resend)
	case *mapsyncv1.SubscribeRequest_Report:
		return s.handleReport(m.Report)
	case *mapsyncv1.SubscribeRequest_ClockProbe:
		return s.handleClockProbe(m.ClockProbe)
	default:
		return fmt.Errorf("request of type %T: %w", m, errProtocol)
	}
}
