package replicate

import (
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// messenger is the part of a client's stream that responses come from.
type messenger interface {
	RecvMsg(any) error
}

// receive takes in what the peer sends until the stream ends, calling heard for
// each message.
func (l *link) receive(stream messenger, heard func()) error {
	defer l.in.free()
	for {
		if err := stream.RecvMsg(&l.in); err != nil {
			return fmt.Errorf("receive: %w", peerError(err))
		}
		heard()
		if err := l.take(l.in.bytes()); err != nil {
			l.r.count.badMessages.Add(1)
			return err
		}
		l.in.free()
	}
}

// take handles one encoded SubscribeResponse. An error is one of the stream.
func (l *link) take(data []byte) error {
	if b, ok := batchOf(data); ok {
		return l.takeBatch(b)
	}
	var m mapsyncv1.SubscribeResponse
	if err := proto.Unmarshal(data, &m); err != nil {
		return fmt.Errorf("decode response: %w: %w", errMalformed, err)
	}
	switch m := m.GetMessage().(type) {
	case *mapsyncv1.SubscribeResponse_Batch:
		b, err := proto.Marshal(m.Batch)
		if err != nil {
			return fmt.Errorf("decode batch: %w: %w", errMalformed, err)
		}
		return l.takeBatch(b)
	case *mapsyncv1.SubscribeResponse_Heartbeat:
		return nil
	case *mapsyncv1.SubscribeResponse_ClockReply:
		return l.takeClock(m.ClockReply)
	case *mapsyncv1.SubscribeResponse_Digest:
		return l.about(m.Digest.GetMap(), func(in *intake) error { return in.takeDigest(m.Digest, time.Now()) })
	case *mapsyncv1.SubscribeResponse_Retold:
		return l.takeRetold(m.Retold)
	case *mapsyncv1.SubscribeResponse_OwnersSent:
		return l.about(m.OwnersSent.GetMap(), func(in *intake) error { in.takeOwnersSent(m.OwnersSent); return nil })
	case *mapsyncv1.SubscribeResponse_Sources:
		return l.about(m.Sources.GetMap(), func(in *intake) error { in.takeSources(m.Sources); return nil })
	case *mapsyncv1.SubscribeResponse_Accepted:
		return l.about(m.Accepted.GetMap(), func(in *intake) error { return in.accept(m.Accepted) })
	case *mapsyncv1.SubscribeResponse_Pending:
		return l.about(m.Pending.GetMap(), func(in *intake) error {
			in.state, in.err = StatePending, nil
			poke(l.r.wake)
			return nil
		})
	case *mapsyncv1.SubscribeResponse_Refused:
		return l.about(m.Refused.GetMap(), func(in *intake) error { return l.refused(in, m.Refused) })
	case *mapsyncv1.SubscribeResponse_Ended:
		return l.about(m.Ended.GetMap(), func(in *intake) error { return l.ended(in, m.Ended) })
	default:
		return fmt.Errorf("receive message of type %T: %w", m, errProtocol)
	}
}

// about calls fn under the lock with the intake of a subscription, unless that
// was given up meanwhile.
func (l *link) about(index uint32, fn func(*intake) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if index == 0 || index > l.last {
		return fmt.Errorf("receive answer about unknown subscription %d: %w", index, errProtocol)
	}
	if in := l.byIndex[index]; in != nil {
		return fn(in)
	}
	return nil
}

func (l *link) refused(in *intake, m *mapsyncv1.MapRefused) error {
	if in.state == StateSyncing || in.state == StateCaughtUp {
		return fmt.Errorf("map %q refused while it was served: %w", in.m.name, errProtocol)
	}
	// The text is a stranger's: it goes where nothing takes it for more.
	in.state, in.err = StateRefused, fmt.Errorf("refused by %s: %.1024q", l.peer.Node, m.GetText())
	poke(l.r.wake)
	l.r.opt.Logger.Warn("map refused by peer",
		slog.String("peer", l.peer.Node), slog.String("map", in.m.name), slog.Any("error", in.err))
	return nil
}

// ended makes way for a new subscription.
func (l *link) ended(in *intake, m *mapsyncv1.MapEnded) error {
	l.r.opt.Logger.Info("subscription ended by peer", slog.String("peer", l.peer.Node),
		slog.String("map", in.m.name), slog.String("reason", m.GetReason().String()))
	delete(l.byIndex, in.index)
	in.reset()
	// A peer that ends each at once is not to be asked in a tight loop.
	in.backoff = min(max(2*in.backoff, l.r.opt.MinBackoff), 30*time.Second)
	in.retry = time.Now().Add(in.backoff)
	poke(l.wake)
	return nil
}

// takeBatch merges an encoded batch. An error is one of the stream.
func (l *link) takeBatch(data []byte) error {
	b := &l.batch
	if err := b.parse(data); err != nil {
		return err
	}
	if b.origin != l.peer {
		return fmt.Errorf("receive batch of %q of %d: %w", b.origin.Node, b.origin.Incarnation, errProtocol)
	}
	var in *intake
	err := l.about(b.index, func(found *intake) error {
		in = found
		if in.state != StateSyncing && in.state != StateCaughtUp {
			return fmt.Errorf("receive batch of map %q before it was accepted: %w", in.m.name, errProtocol)
		}
		in.job, in.permit = nil, in.requesting.permit
		if !b.retold {
			return nil
		}
		switch in.job = in.comparing.job; {
		case in.job == nil:
			return fmt.Errorf("receive batch of map %q again that was not asked for: %w", in.m.name, errProtocol)
		case b.request:
			return fmt.Errorf("receive batch of map %q that is of a repair and of a request: %w", in.m.name, errProtocol)
		}
		return nil
	})
	if in == nil || err != nil {
		return err
	}
	now := time.Now()
	res, err := in.merge(b)
	l.r.count.outOfRange.Add(res.outOfRange)
	l.r.count.withoutLink.Add(res.withoutLink)
	l.r.count.received.add(b.deltas, len(data))
	l.r.count.accepted.Add(res.accepted)
	l.r.count.refused.Add(res.refused - res.outOfRange - res.withoutLink)
	l.r.count.ahead.Add(res.ahead)
	if err == nil && res.refused > 0 {
		in.logExceptions(now)
	}
	return l.about(b.index, func(in *intake) error {
		if err != nil {
			l.r.count.badMessages.Add(1)
			l.r.opt.Logger.Warn("map of peer set aside", slog.String("peer", l.peer.Node),
				slog.String("map", in.m.name), slog.Any("error", err))
			in.fail(err, now)
			return nil
		}
		in.merged(b, res, now)
		poke(l.wake)
		return nil
	})
}

// requests appends the subscriptions that are to be made and ended, given the
// maps of this node.
func (l *link) requests(out []*mapsyncv1.SubscribeRequest, maps map[string]*localMap, now time.Time) []*mapsyncv1.SubscribeRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, in := range l.intakes {
		if maps[name] == in.m {
			continue
		}
		out = append(unsubscribe(out, in.dropped), unsubscribe(nil, in.index)...)
		delete(l.byIndex, in.index)
		delete(l.intakes, name)
		in.comparing.reset()
	}
	for name, m := range maps {
		in := l.intakes[name]
		if in == nil {
			in = newIntake(l, m)
			l.intakes[name] = in
		}
		if in.comparing.stuck(now, l.r.opt.stall) {
			in.stall(now)
		}
		out = unsubscribe(out, in.dropped)
		in.dropped = 0
		if m.excluded(l.peer.Node) {
			in.state = StateExcluded
			continue
		}
		if in.rewalkDue(now) && (in.state == StateSyncing || in.state == StateCaughtUp) {
			out = unsubscribe(out, in.index)
			delete(l.byIndex, in.index)
			in.reset()
		}
		switch {
		case in.index == 0 && !now.Before(in.retry):
			out = append(out, l.subscribe(in, now))
		case in.index != 0 && in.requesting.sent != in.requesting.serial && l.ownerRequests:
			m := in.ownerRequest()
			m.Map = in.index
			out = append(out, &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Owners{Owners: m}})
		}
	}
	return out
}

// subscribe makes the request for a map. The lock is held.
func (l *link) subscribe(in *intake, now time.Time) *mapsyncv1.SubscribeRequest {
	l.last++
	in.index, in.asked = l.last, in.m.head()+1
	if in.state != StateRefused {
		in.state = StateWaiting
	}
	l.byIndex[in.index] = in
	m := &mapsyncv1.MapSubscription{
		Map: in.index, Name: in.m.name, Layout: in.m.layout.proto(), Schema: in.m.wire,
		TellAll:  in.m.table.Stats().Unversioned > 0,
		Owners:   in.ownerRequest(),
		Expiries: true,
	}
	if m.TellAll {
		p := *in.requesting.permit
		p.all = true
		in.requesting.permit = &p
	}
	if in.generation != 0 && !in.rewalkDue(now) {
		m.Resume = &mapsyncv1.Resume{Incarnation: l.peer.Incarnation, Generation: in.generation, Position: in.position}
		m.Owners.Token = in.requesting.token
	}
	return &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Subscribe{Subscribe: m}}
}

func unsubscribe(out []*mapsyncv1.SubscribeRequest, index uint32) []*mapsyncv1.SubscribeRequest {
	if index == 0 {
		return out
	}
	return append(out, &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Unsubscribe{
		Unsubscribe: &mapsyncv1.MapUnsubscription{Map: index},
	}})
}
