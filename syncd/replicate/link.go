package replicate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

var errSilent = errors.New("peer is silent")

// ackPace is the least time between two rounds of acknowledgements.
const ackPace = 5 * time.Millisecond

// link receives one life of a peer's changes, over one stream after another.
// It is kept when its peer goes, to resume where it was should the same life
// come back.
type link struct {
	r    *Replicator
	peer table.Owner
	wake chan struct{} // for the goroutine that sends requests

	mu       sync.Mutex
	addr     string
	cancel   context.CancelFunc // nil unless running
	up       bool
	since    time.Time // of up, or not
	met      time.Time // when this incarnation of the peer was met
	departed time.Time // when the peer left last
	// ownerRequests says that the peer takes them.
	ownerRequests bool
	err           error // why the last stream ended
	intakes       map[string]*intake
	byIndex       map[uint32]*intake // of the stream
	last          uint32             // highest index of the stream

	wantsReports bool // the peer takes reports, on this stream

	contact atomic.Int64 // when the peer's last message came; Unix ns, 0: none yet
	clock   peerClock

	// Of the receiving goroutine.
	batch batch
	in    inbound
	keys  []byte // of a group of deltas
	value []byte
}

// requester is the part of a client's stream that requests are sent on.
type requester interface {
	Send(*mapsyncv1.SubscribeRequest) error
}

func newLink(r *Replicator, p Peer) *link {
	return &link{
		r: r, peer: p.owner(), addr: p.Addr, since: time.Now(), met: time.Now(),
		wake:    make(chan struct{}, 1),
		intakes: make(map[string]*intake),
		byIndex: make(map[uint32]*intake),
	}
}

// current returns the peer as membership has it.
func (l *link) current() Peer {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Peer{Node: l.peer.Node, Incarnation: l.peer.Incarnation, Addr: l.addr}
}

// move makes the link use another address from now on.
func (l *link) move(addr string) {
	l.mu.Lock()
	l.addr = addr
	l.mu.Unlock()
	l.stop()
}

func (l *link) running() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cancel != nil
}

func (l *link) connected() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.up
}

func (l *link) start(ctx context.Context, wg *sync.WaitGroup) {
	ctx, cancel := context.WithCancel(ctx)
	l.mu.Lock()
	l.cancel = cancel
	l.mu.Unlock()
	wg.Go(func() {
		l.run(ctx)
		cancel()
		l.mu.Lock()
		l.cancel = nil
		l.mu.Unlock()
		poke(l.r.wake) // it may be wanted again by now
	})
}

// stop asks the link to end. It may be called at any time.
func (l *link) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cancel != nil {
		l.cancel()
	}
}

// leave asks the link to end because its peer has left.
func (l *link) leave() {
	l.mu.Lock()
	l.departed = time.Now()
	l.mu.Unlock()
	l.stop()
}

// left returns when the peer left.
func (l *link) left() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.departed
}

// run keeps a stream to the peer.
func (l *link) run(ctx context.Context) {
	opt := &l.r.opt
	backoff := opt.MinBackoff
	for ctx.Err() == nil {
		begun := time.Now()
		err := l.connect(ctx)
		l.down(err)
		if ctx.Err() != nil {
			return
		}
		if status.Code(err) == codes.Aborted && time.Since(begun) > opt.MaxBackoff {
			continue // the peer has streams made anew from time to time
		}
		l.r.count.connectErrors.Add(1)
		opt.Logger.Warn("stream from peer ended", slog.String("peer", l.peer.Node), slog.Any("error", err))
		if time.Since(begun) > opt.MaxBackoff {
			backoff = opt.MinBackoff
		}
		pause(ctx, backoff/2+rand.N(backoff))
		backoff = min(2*backoff, opt.MaxBackoff)
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// down notes that the stream is over. Subscriptions end with it; positions stay.
func (l *link) down(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.up, l.err, l.since = false, err, time.Now()
	l.last = 0
	poke(l.r.wake)
	clear(l.byIndex)
	for _, in := range l.intakes {
		in.reset()
	}
}

// connect opens a stream and receives until it ends.
func (l *link) connect(ctx context.Context) error {
	peer := l.current()
	conn, err := l.r.opt.Dial(peer)
	if err != nil {
		return fmt.Errorf("dial %s: %w", peer.Addr, err)
	}
	defer func() { _ = conn.Close() }() // it can only have been closed already
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// One timer for the whole stream: it also ends a Subscribe that waits because the peer
	// allows no streams, and a Send that waits because the peer does not read.
	silence := time.AfterFunc(l.r.opt.silence, func() { cancel(errSilent) })
	defer silence.Stop()
	err = l.follow(ctx, cancel, mapsyncv1.NewReplicationServiceClient(conn), peer.Addr, func() {
		silence.Reset(l.r.opt.silence)
	})
	if errors.Is(context.Cause(ctx), errSilent) {
		l.r.count.silences.Add(1)
		err = fmt.Errorf("receive for %s: %w", l.r.opt.silence, errSilent)
	}
	return err
}

// follow makes a stream and receives until it ends. It calls heard for each message, and cancel
// with the reason for which the stream ended.
func (l *link) follow(ctx context.Context, cancel context.CancelCauseFunc, client mapsyncv1.ReplicationServiceClient, addr string, heard func()) error {
	stream, err := client.Subscribe(ctx, grpc.ForceCodecV2(l.r.codec))
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", addr, peerError(err))
	}
	heard()
	var wg sync.WaitGroup
	defer wg.Wait()
	if err = l.greet(stream); err == nil {
		wg.Go(func() { cancel(l.request(ctx, stream)) })
		err = l.receive(stream, func() {
			heard()
			l.contact.Store(time.Now().UnixNano())
		})
	}
	cancel(err)
	return err
}

// greet exchanges Hello and Welcome, and sees how the peer's clock goes.
func (l *link) greet(stream mapsyncv1.ReplicationService_SubscribeClient) error {
	w, err := l.r.welcome(stream)
	if err != nil {
		return err
	}
	if o := shownBy(w); o != l.peer {
		if o.Node == l.peer.Node {
			l.r.opt.Mistaken(o.Node)
			if err := l.r.proved(Peer{Node: o.Node, Incarnation: o.Incarnation, Addr: l.current().Addr}); err != nil {
				return fmt.Errorf("reach %q of %d: %w", o.Node, o.Incarnation, err)
			}
		}
		return fmt.Errorf("reach %.255q of %d, expected %q of %d: %w",
			o.Node, o.Incarnation, l.peer.Node, l.peer.Incarnation, errProtocol)
	}
	if err := l.synchronise(stream); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.up, l.err, l.since = true, nil, time.Now()
	l.ownerRequests = w.GetOwnerRequests()
	l.wantsReports = w.GetReports()
	l.contact.Store(l.since.UnixNano())
	l.r.count.connects.Add(1)
	l.r.opt.Logger.Info("receiving from peer", slog.String("peer", l.peer.Node), slog.String("addr", l.addr))
	return nil
}

// welcome says hello on a new stream, and returns what the peer shows of itself.
func (r *Replicator) welcome(stream mapsyncv1.ReplicationService_SubscribeClient) (*mapsyncv1.Welcome, error) {
	// An error of Send is only that the stream has ended; Recv knows why.
	err := stream.Send(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Hello{Hello: &mapsyncv1.Hello{
		ProtocolVersion: protocolVersion, Self: incarnation(r.opt.Self), Address: r.opt.Addr(), Reports: true,
	}}})
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("send hello: %w", peerError(err))
	}
	m, err := stream.Recv()
	if err != nil {
		return nil, fmt.Errorf("receive welcome: %w", peerError(err))
	}
	w := m.GetWelcome()
	if w == nil || w.GetProtocolVersion() != protocolVersion {
		return nil, fmt.Errorf("receive %T of version %d for a welcome of version %d: %w",
			m.GetMessage(), w.GetProtocolVersion(), protocolVersion, errProtocol)
	}
	return w, nil
}

// shownBy returns the name and incarnation that a welcome shows.
func shownBy(w *mapsyncv1.Welcome) table.Owner {
	return table.Owner{Node: w.GetSelf().GetNode(), Incarnation: w.GetSelf().GetNumber()}
}

// request sends subscriptions and acknowledgements until the context is done.
func (l *link) request(ctx context.Context, send requester) error {
	subs := make(subscriptions)
	defer subs.close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var out []*mapsyncv1.SubscribeRequest
	probed := time.Now()
	for ctx.Err() == nil {
		maps := l.r.localMaps()
		subs.follow(maps, l.wake)
		out = l.reports(l.acks(l.comparisons(l.requests(out[:0], maps, time.Now()))), time.Now())
		for _, m := range out {
			if err := send.Send(m); err != nil {
				return fmt.Errorf("send request: %w", peerError(err))
			}
		}
		if time.Since(probed) >= l.r.opt.probe {
			probed = time.Now()
			if err := l.probe(send); err != nil {
				return err
			}
		}
		if len(out) > 0 {
			pause(ctx, ackPace)
		}
		timer.Reset(l.idle())
		select {
		case <-ctx.Done():
		case <-l.wake:
		case <-timer.C:
		}
	}
	return context.Cause(ctx)
}

// idle returns for how long there is nothing to request if nothing wakes the link.
func (l *link) idle() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, in := range l.intakes {
		if in.index == 0 || in.reporting.due || in.dropped != 0 || in.pending.n > 0 || !in.rewalk.IsZero() {
			return housekeeping
		}
	}
	return min(4*housekeeping, l.r.opt.probe)
}

// subscriptions are the wake-ups of tables.
type subscriptions map[*table.Table]func()

// follow makes them those of the given maps.
func (s subscriptions) follow(maps map[string]*localMap, wake chan struct{}) {
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

func (s subscriptions) close() {
	for _, cancel := range s {
		cancel()
	}
}
