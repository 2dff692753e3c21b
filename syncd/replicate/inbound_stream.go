package replicate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
	"mapsync/syncd/table"
)

// errReceiveTimeout is the reason for closing a stream on which no message arrived for
// Options.receiveTimeout.
var errReceiveTimeout = errors.New("no message from peer")

// requestPause is the minimum time between two rounds of requests.
const requestPause = 5 * time.Millisecond

// inboundStream receives the changes of one incarnation of a peer, over one gRPC stream after another.
// It is kept after the peer has left, so that the same incarnation can resume if it comes back.
//
// A stream that has ended leaves the positions in maps, so the next stream resumes. Another
// incarnation of the peer gets another inboundStream, because positions are valid for one
// incarnation.
type inboundStream struct {
	// r does not change.
	r *Replicator
	// peer does not change: another incarnation gets another inboundStream.
	peer table.Owner
	// wake has a capacity of 1. It wakes the goroutine that sends requests.
	wake chan struct{}

	// mu guards the fields up to clock, except for lastContact. It also guards the inboundMaps.
	mu sync.Mutex
	// addr is the address of the peer from membership, host:port.
	addr string
	// cancel ends run; nil unless run is running. It does not wait for the end of run.
	cancel context.CancelFunc
	// up reports that the handshake of the current gRPC stream has succeeded. A peer counts as
	// connected only then.
	up bool
	// since is when the last gRPC stream was established or ended. Initially the time of
	// newInboundStream.
	since time.Time
	// firstSeen is when membership first had this incarnation of the peer. mapSource uses it for a
	// map that was not requested yet.
	firstSeen time.Time
	// departed is when the peer last left; zero: never. forgetInboundStreams removes those that
	// left first.
	departed time.Time
	// supportsOwnerRequests reports that the peer accepts owner requests. It belongs to the last
	// gRPC stream. Without it, this node waits for no answers.
	supportsOwnerRequests bool
	// err is why the last gRPC stream ended; nil while one is established. The status shows it.
	err error
	// maps are the inbound map streams by map name. An element may belong to a map that was removed
	// or replaced, until the next round of requests.
	maps map[string]*inboundMap
	// byIndex are the maps with a subscription on the current gRPC stream, by its number.
	byIndex map[uint32]*inboundMap
	// lastIndex is the highest number of a subscription on the current gRPC stream. Numbers are not
	// reused. The first is 1, so that 0 can mean no subscription.
	lastIndex uint32

	// supportsReports reports that the peer accepts reports on the current gRPC stream.
	supportsReports bool
	// version is the protocol version of the last gRPC stream; 0: there was none.
	version uint32
	// release is the release of the peer on the current gRPC stream.
	release string

	// lastContact is when the last message of the peer arrived, in Unix nanoseconds; 0: never. The
	// receiving goroutine stores it, and other goroutines read it without mu.
	lastContact atomic.Int64
	// clock measures the offset of the peer's clock. mu guards it. It begins again with each gRPC
	// stream.
	clock peerClock

	// The receiving goroutine owns the fields below.

	// batch is the last batch. It points into frame and is valid until the message is handled.
	batch wire.Batch
	// frame is the last message. The next message overwrites it.
	frame wire.ReceivedFrame
	// keys is scratch space for the keys of a group of deltas. Its content is valid during the merge of one group. scratch
	// makes it large enough for the map of the batch.
	keys []byte
	// value is scratch space for one value. Its content is valid during the merge of one delta.
	value []byte
}

// requestSender is the part of a client's stream that sends requests.
type requestSender interface {
	Send(*mapsyncv1.SubscribeRequest) error
}

// newInboundStream returns a stream that is not started.
func newInboundStream(r *Replicator, p Peer) *inboundStream {
	return &inboundStream{
		r: r, peer: p.owner(), addr: p.Addr, since: time.Now(), firstSeen: time.Now(),
		wake:    make(chan struct{}, 1),
		maps:    make(map[string]*inboundMap),
		byIndex: make(map[uint32]*inboundMap),
	}
}

// currentPeer returns the peer with its current address. The address may be outdated as soon as mu
// is released. setAddr then ends the run that uses it.
func (s *inboundStream) currentPeer() Peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Peer{Node: s.peer.Node, Incarnation: s.peer.Incarnation, Addr: s.addr}
}

// setAddr sets a new address and ends the current gRPC stream, so that the next one uses it. The
// positions stay. Run starts the stream again with the new address.
func (s *inboundStream) setAddr(addr string) {
	s.mu.Lock()
	s.addr = addr
	s.mu.Unlock()
	s.stop()
}

// running reports whether run is running. It is still true while run ends after stop.
func (s *inboundStream) running() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cancel != nil
}

// connected reports whether a gRPC stream to the peer is established. A broken connection is
// detected after Options.receiveTimeout at the latest.
func (s *inboundStream) connected() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.up
}

// start runs the stream in a goroutine of wg until ctx is done or stop is called. The caller holds
// Replicator.mu and calls it only if running is false.
func (s *inboundStream) start(ctx context.Context, wg *sync.WaitGroup) {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	s.cancel = cancel
	s.mu.Unlock()
	// cancel becomes nil only after run has returned, so two goroutines never receive on one
	// stream.
	wg.Go(func() {
		s.run(ctx)
		cancel()
		s.mu.Lock()
		s.cancel = nil
		s.mu.Unlock()
		poke(s.r.wake) // it may be needed again by now
	})
}

// stop ends run. It does not wait, and may be called at any time.
func (s *inboundStream) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancel != nil {
		s.cancel()
	}
}

// peerDeparted ends run because the peer has left. The caller holds Replicator.mu. Received records
// stay in the tables, and the positions stay for a return.
func (s *inboundStream) peerDeparted() {
	s.mu.Lock()
	s.departed = time.Now()
	s.mu.Unlock()
	s.stop()
}

// departedAt returns when the peer last left.
func (s *inboundStream) departedAt() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.departed
}

// run keeps a gRPC stream to the peer until ctx is done.
//
// It is the receiving goroutine. Between two gRPC streams it pauses for a time that doubles from
// Options.MinBackoff to Options.MaxBackoff.
func (s *inboundStream) run(ctx context.Context) {
	opt := &s.r.opt
	backoff := opt.MinBackoff
	for ctx.Err() == nil {
		begun := time.Now()
		err := s.runStream(ctx)
		s.markDown(err)
		if ctx.Err() != nil {
			s.withdrawHandovers()
			return
		}
		// A planned end is not an error. A peer that ends streams too early is treated like a failure.
		if status.Code(err) == codes.Aborted && time.Since(begun) > opt.MaxBackoff {
			continue // the peer ends each stream at its maximum age
		}
		s.withdrawHandovers()
		s.r.count.connectErrors.Add(1)
		opt.Logger.Warn("stream from peer ended", slog.String("peer", s.peer.Node), slog.Any("error", err),
			slog.String("hint", "normal if the peer restarts; otherwise open the port of its grpc-listen, or correct its grpc-advertise"))
		// A stream that has worked for some time resets the backoff.
		if time.Since(begun) > opt.MaxBackoff {
			backoff = opt.MinBackoff
		}
		// The random part prevents that all nodes reconnect at the same time.
		pause(ctx, backoff/2+rand.N(backoff))
		backoff = min(2*backoff, opt.MaxBackoff)
	}
}

// pause waits for d or until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// markDown records the end of the gRPC stream. The subscriptions end with it; the positions remain.
// Comparisons in progress end, and callers of Compare get errSubscriptionEnded. Acknowledgements
// begin anew with the next subscription.
func (s *inboundStream) markDown(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.up, s.err, s.since = false, err, time.Now()
	s.lastIndex = 0
	poke(s.r.wake)
	// Positions and request serials remain, so that the next stream resumes.
	clear(s.byIndex)
	for _, in := range s.maps {
		in.reset()
	}
}

// runStream opens a gRPC stream and receives until it ends. It returns why it ended. Each call uses
// a connection of its own and closes it, so that a dead connection is not used again.
func (s *inboundStream) runStream(ctx context.Context) error {
	peer := s.currentPeer()
	conn, err := s.r.opt.Dial(peer)
	if err != nil {
		return fmt.Errorf("dial %s: %w", peer.Addr, err)
	}
	defer func() { _ = conn.Close() }() // it fails only if it is closed already
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// One timer for the whole stream. It also ends a Subscribe that blocks because the peer allows
	// no more streams, and a Send that blocks because the peer does not read.
	timeout := time.AfterFunc(s.r.opt.receiveTimeout, func() { cancel(errReceiveTimeout) })
	defer timeout.Stop()
	err = s.subscribeAndReceive(ctx, cancel, mapsyncv1.NewReplicationServiceClient(conn), peer.Addr, func() {
		timeout.Reset(s.r.opt.receiveTimeout)
	})
	if errors.Is(context.Cause(ctx), errReceiveTimeout) {
		s.r.count.receiveTimeouts.Add(1)
		err = fmt.Errorf("receive for %s: %w", s.r.opt.receiveTimeout, errReceiveTimeout)
	}
	return err
}

// subscribeAndReceive opens a gRPC stream and receives until it ends. It calls onMessage for each
// message, and cancel with the reason for the end. It returns after the requesting goroutine has
// ended. The first error of the two goroutines is the cause of ctx.
func (s *inboundStream) subscribeAndReceive(ctx context.Context, cancel context.CancelCauseFunc, client mapsyncv1.ReplicationServiceClient, addr string, onMessage func()) error {
	stream, err := client.Subscribe(ctx, grpc.ForceCodecV2(s.r.codec))
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", addr, peerError(err))
	}
	onMessage()
	// The requesting goroutine must end before the connection is closed.
	var wg sync.WaitGroup
	defer wg.Wait()
	if err = s.handshake(stream); err == nil {
		wg.Go(func() { cancel(s.sendRequests(ctx, stream)) })
		err = s.receive(stream, func() {
			onMessage()
			s.lastContact.Store(time.Now().UnixNano())
		})
	}
	cancel(err)
	return err
}

// sendRequests sends subscriptions, acknowledgements and other requests until ctx is done.
//
// It is the requesting goroutine, the only one that sends on the stream after the handshake. No
// lock is held during Send, which blocks while the peer does not read. The error ends the gRPC
// stream.
func (s *inboundStream) sendRequests(ctx context.Context, send requestSender) error {
	// The tables wake this goroutine, so that it sends acknowledgements soon.
	subs := make(tableWakeups)
	defer subs.close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var out []*mapsyncv1.SubscribeRequest
	probed := time.Now()
	for ctx.Err() == nil {
		maps := s.r.localMaps()
		subs.update(maps, s.wake)
		s.noteAcknowledged()
		// The order matters: subscriptions first, because the other requests refer to them.
		out = s.appendReports(s.appendAcks(s.appendComparisons(s.appendSubscriptions(out[:0], maps, time.Now()))), time.Now())
		for _, m := range out {
			if err := send.Send(m); err != nil {
				return fmt.Errorf("send request: %w", peerError(err))
			}
		}
		// The clocks drift apart, so the offset is measured as long as the stream lasts.
		if s.clockProbeDue(probed) {
			probed = time.Now()
			if err := s.sendClockProbe(send); err != nil {
				return err
			}
		}
		if len(out) > 0 {
			// The pause combines the acknowledgements of many batches.
			pause(ctx, requestPause)
		}
		timer.Reset(s.idle())
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-timer.C:
		}
	}
	return context.Cause(ctx)
}

// idle returns the time until the next request may be due if nothing wakes the goroutine. It takes
// inboundStream.mu.
func (s *inboundStream) idle() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, in := range s.maps {
		// Something is waiting for a time or for the kernel map.
		if in.index == 0 || in.reporting.due || in.unsubscribeIndex != 0 || in.pendingAcks.n > 0 || !in.repeatFullSyncAt.IsZero() {
			return housekeepingInterval
		}
	}
	// Clock probes become due without an event.
	return min(4*housekeepingInterval, s.r.opt.clockProbeInterval)
}

// tableWakeups cancels the wake-ups of tables. The key is a table to which the requesting goroutine
// has subscribed. Only that goroutine uses the map.
type tableWakeups map[*table.Table]func()

// update subscribes to the tables of the given maps, and cancels the wake-ups of all other tables.
// The table of a map whose access changes stays subscribed.
func (s tableWakeups) update(maps map[string]*localMap, wake chan struct{}) {
	present := make(map[*table.Table]bool, len(maps))
	for _, m := range maps {
		present[m.table] = true
		if s[m.table] == nil {
			s[m.table] = m.table.Subscribe(wake)
		}
	}
	for t, cancel := range s {
		if !present[t] {
			cancel()
			delete(s, t)
		}
	}
}

// close cancels all wake-ups.
func (s tableWakeups) close() {
	for _, cancel := range s {
		cancel()
	}
}
