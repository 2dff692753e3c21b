package replicate

import (
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/protobuf/proto"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/replicate/wire"
)

// maxSpareOwners is the number of owners that a batch with fewer deltas may have.
const maxSpareOwners = 64

// messageReceiver is the part of a client's stream that receives responses.
type messageReceiver interface {
	RecvMsg(any) error
}

// receive handles the messages of the peer until the gRPC stream ends. It calls onMessage for
// each message.
//
// Only the receiving goroutine calls it, without a lock. Its error ends the gRPC stream. run then
// opens another one, on which each map resumes at its position. onMessage also runs for a message
// that handle refuses: any message shows that the peer is alive.
func (s *inboundStream) receive(stream messageReceiver, onMessage func()) error {
	defer s.frame.Free()
	for {
		if err := stream.RecvMsg(&s.frame); err != nil {
			return fmt.Errorf("receive: %w", peerError(err))
		}
		onMessage()
		if err := s.handle(s.frame.Bytes()); err != nil {
			s.r.count.badMessages.Add(1)
			return err
		}
		// handle does not keep the message.
		s.frame.Free()
	}
}

// handle handles one encoded SubscribeResponse. It returns only errors that end the stream: the
// message does not parse, or violates the protocol. An error of one map ends only the subscription
// to that map. data is valid during the call.
//
// Messages about a map take inboundStream.mu. A batch is merged without it, because a merge takes long.
func (s *inboundStream) handle(data []byte) error {
	// The fast path decodes a message that is one batch without an allocation.
	if b, ok := wire.BatchPayload(data); ok {
		return s.handleBatch(b)
	}
	// The other messages are rare, so the stock decoder with its allocations suffices.
	var m mapsyncv1.SubscribeResponse
	if err := proto.Unmarshal(data, &m); err != nil {
		return fmt.Errorf("decode response: %w: %w", wire.ErrMalformed, err)
	}
	switch m := m.GetMessage().(type) {
	case *mapsyncv1.SubscribeResponse_Batch:
		// A stock encoder may write a batch in another form. It is encoded again and takes the same path.
		b, err := proto.Marshal(m.Batch)
		if err != nil {
			return fmt.Errorf("decode batch: %w: %w", wire.ErrMalformed, err)
		}
		return s.handleBatch(b)
	// A heartbeat only resets the timer of runStream, as any message does.
	case *mapsyncv1.SubscribeResponse_Heartbeat:
		return nil
	case *mapsyncv1.SubscribeResponse_ClockReply:
		return s.handleClockReply(m.ClockReply)
	case *mapsyncv1.SubscribeResponse_Digest:
		return s.withSubscription(m.Digest.GetMap(), func(in *inboundMap) error { return in.handleDigest(m.Digest, time.Now()) })
	case *mapsyncv1.SubscribeResponse_Resent:
		return s.handleResent(m.Resent)
	case *mapsyncv1.SubscribeResponse_OwnersSent:
		return s.withSubscription(m.OwnersSent.GetMap(), func(in *inboundMap) error { in.handleOwnersSent(m.OwnersSent); return nil })
	case *mapsyncv1.SubscribeResponse_Sources:
		return s.withSubscription(m.Sources.GetMap(), func(in *inboundMap) error { return in.handleSources(m.Sources) })
	case *mapsyncv1.SubscribeResponse_Handover:
		return s.withSubscription(m.Handover.GetMap(), func(in *inboundMap) error { return in.handleHandover(m.Handover.GetHandover(), time.Now()) })
	case *mapsyncv1.SubscribeResponse_Accepted:
		return s.withSubscription(m.Accepted.GetMap(), func(in *inboundMap) error { return in.handleAccepted(m.Accepted) })
	// The peer does not have the map. That is not an error, and readiness does not wait for it. The
	// roles change, because such a peer cannot be the fallback sender.
	case *mapsyncv1.SubscribeResponse_Pending:
		return s.withSubscription(m.Pending.GetMap(), func(in *inboundMap) error {
			// A sender ends a subscription that it has served with MapEnded.
			if in.served() {
				return fmt.Errorf("map %q pending while it was served: %w", in.m.name, errProtocol)
			}
			in.state, in.err = StatePending, nil
			poke(s.r.wake)
			return nil
		})
	case *mapsyncv1.SubscribeResponse_Refused:
		return s.withSubscription(m.Refused.GetMap(), func(in *inboundMap) error { return s.handleRefused(in, m.Refused) })
	case *mapsyncv1.SubscribeResponse_Ended:
		return s.withSubscription(m.Ended.GetMap(), func(in *inboundMap) error { return s.handleEnded(in, m.Ended) })
	default:
		return fmt.Errorf("receive message of type %T: %w", m, errProtocol)
	}
}

// withSubscription calls fn with the map of a subscription while it holds the lock. It does nothing
// if this node has ended the subscription in the meantime. The error is that of fn, or wraps
// errProtocol if this node has never used the number on this stream. Both end the stream. fn must
// not block.
func (s *inboundStream) withSubscription(index uint32, fn func(*inboundMap) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	// Numbers up to lastIndex were assigned on this stream. A higher one is a violation of the protocol.
	if index == 0 || index > s.lastIndex {
		return fmt.Errorf("receive answer about unknown subscription %d: %w", index, errProtocol)
	}
	// The subscription may have ended while the message was on its way.
	if in := s.byIndex[index]; in != nil {
		return fn(in)
	}
	return nil
}

// handleRefused records that the peer refused a map. The subscription remains: the peer serves it
// when its map changes. The caller holds inboundStream.mu. Readiness does not wait for a refused map.
func (s *inboundStream) handleRefused(in *inboundMap, m *mapsyncv1.MapRefused) error {
	// A sender ends a subscription that it has served with MapEnded.
	if in.served() {
		return fmt.Errorf("map %q refused while it was served: %w", in.m.name, errProtocol)
	}
	// The peer chooses the text, so it is quoted and truncated.
	in.state, in.err = StateRefused, fmt.Errorf("refused by %s: %.1024q", s.peer.Node, m.GetText())
	poke(s.r.wake)
	s.r.opt.Logger.Warn("map refused by peer",
		slog.String("peer", s.peer.Node), slog.String("map", in.m.name), slog.Any("error", in.err), slog.String("hint", hintLayout))
	return nil
}

// handleEnded prepares a new subscription after the peer has ended the present one: it has removed
// or replaced the map, or has forgotten deletes that this node did not receive. The next
// subscription offers the position again. If the peer cannot resume there, it answers with a full
// sync. The caller holds inboundStream.mu.
func (s *inboundStream) handleEnded(in *inboundMap, m *mapsyncv1.MapEnded) error {
	s.r.opt.Logger.Info("subscription ended by peer", slog.String("peer", s.peer.Node),
		slog.String("map", in.m.name), slog.String("reason", m.GetReason().String()))
	delete(s.byIndex, in.index)
	in.reset()
	// The pause prevents a busy loop with a peer that ends each subscription at once.
	in.retryAt = in.nextRetry(time.Now())
	poke(s.wake)
	return nil
}

// handleBatch merges an encoded batch. It returns only errors that end the stream: the batch is
// malformed, is not from this incarnation of the peer, or was not requested. If the merge fails,
// only the subscription of the map ends. It is requested again after a growing pause, from the last
// good position.
//
// The receiving goroutine calls it, without a lock. It takes inboundStream.mu before and after the merge. The
// batch points into data.
func (s *inboundStream) handleBatch(data []byte) error {
	b := &s.batch
	if err := b.Parse(data); err != nil {
		return err
	}
	// A merge looks at each owner with the table locked, which costs far more than its bytes. An encoder
	// adds an owner with its first delta.
	if n := len(b.Owners); n > max(b.DeltaCount, maxSpareOwners) {
		return fmt.Errorf("receive batch with %d owners of %d deltas: %w", n, b.DeltaCount, errProtocol)
	}
	// A stream carries the changes of one incarnation only.
	if b.Origin != s.peer {
		return fmt.Errorf("receive batch of %q of %d: %w", b.Origin.Node, b.Origin.Incarnation, errProtocol)
	}
	var in *inboundMap
	err := s.withSubscription(b.Index, func(found *inboundMap) error {
		in = found
		if in.state != StateSyncing && in.state != StateCaughtUp {
			return fmt.Errorf("receive batch of map %q before it was accepted: %w", in.m.name, errProtocol)
		}
		// The merge runs without the lock, so it uses the permit of this moment. A batch that was
		// sent under an earlier request may still have orphaned records: the permit includes them
		// until the peer has confirmed the newest request.
		in.resend, in.permit = nil, in.owners.permit
		if !b.Resent {
			return nil
		}
		switch in.resend = in.comparison.resend; {
		case in.resend == nil:
			return fmt.Errorf("receive unrequested resent batch of map %q: %w", in.m.name, errProtocol)
		case b.Requested:
			return fmt.Errorf("receive batch of map %q marked both resent and requested: %w", in.m.name, errProtocol)
		}
		return nil
	})
	if in == nil || err != nil {
		return err
	}
	// The table's lock is held during the merge, inboundStream.mu is not. Other goroutines may end the
	// subscription meanwhile; its batch is merged in any case.
	now := time.Now()
	// A batch that is merged after the end of its subscription does not advance the position. It
	// arrives again after the resume, and merging it twice changes nothing.
	res, err := in.merge(b)
	s.r.count.outOfRange.Add(res.outOfRange)
	s.r.count.withoutInterface.Add(res.withoutInterface)
	s.r.count.received.add(b.DeltaCount, len(data))
	s.r.count.accepted.Add(res.accepted)
	// Each refused delta counts in exactly one of three counters: see counters.
	s.r.count.refused.Add(res.refused - res.outOfRange - res.withoutInterface)
	s.r.count.ahead.Add(res.ahead)
	if err == nil && res.refused > 0 {
		in.logExceptions(now)
	}
	// withSubscription finds the map only if the subscription still exists.
	return s.withSubscription(b.Index, func(in *inboundMap) error {
		if err != nil {
			s.r.count.badMessages.Add(1)
			s.r.opt.Logger.Warn("map stream from peer failed, retrying", slog.String("peer", s.peer.Node),
				slog.String("map", in.m.name), slog.Any("error", err), slog.String("hint", hintVersions))
			in.fail(err, now)
			return nil
		}
		in.handleMerged(b, res, now)
		poke(s.wake)
		return nil
	})
}

// appendSubscriptions appends the requests that begin and end subscriptions, so that they match the
// maps of this node. Only the requesting goroutine calls it, before the other append methods. It
// takes inboundStream.mu. maps is the present result of Replicator.localMaps.
func (s *inboundStream) appendSubscriptions(out []*mapsyncv1.SubscribeRequest, maps map[string]*localMap, now time.Time) []*mapsyncv1.SubscribeRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	// End the subscriptions of maps that were removed or replaced.
	for name, in := range s.maps {
		// Another localMap of the same name is another map, or the same map with other access. Both
		// need a new subscription.
		if maps[name] == in.m {
			continue
		}
		out = append(unsubscribe(out, in.unsubscribeIndex), unsubscribe(nil, in.index)...)
		delete(s.byIndex, in.index)
		delete(s.maps, name)
		in.comparison.reset()
	}
	// Begin the subscriptions that are missing, and send changed owner requests.
	for name, m := range maps {
		in := s.maps[name]
		if in == nil {
			in = newInboundMap(s, m)
			s.maps[name] = in
		}
		// A stalled resend blocks further repairs, so the subscription begins again.
		if in.comparison.stalled(now, s.r.opt.stallTimeout) {
			in.failStalled(now)
		}
		out = unsubscribe(out, in.unsubscribeIndex)
		in.unsubscribeIndex = 0
		// write-from does not list the peer. This node refuses all of its records, so it does not
		// request the map.
		if m.excluded(s.peer.Node) {
			if in.state != StateExcluded {
				in.state = StateExcluded
				poke(s.r.wake) // the roles change
			}
			continue
		}
		// A full sync needs a new subscription, because only the first message chooses the position.
		// One that has not ended goes on, however long it takes.
		if in.repeatFullSyncDue(now) && in.served() && in.exceptions.syncComplete {
			out = unsubscribe(out, in.index)
			delete(s.byIndex, in.index)
			// The position stays. accept replaces it when the full sync begins.
			in.reset()
		}
		switch {
		// The pause after a failure has passed. idle wakes this goroutine while a map has no
		// subscription.
		case in.index == 0 && !now.Before(in.retryAt) && in.allowSweep(now):
			out = append(out, s.subscriptionRequest(in, now))
		// A peer of an older release accepts no owner requests.
		case in.index != 0 && in.owners.sentSerial != in.owners.serial && s.supportsOwnerRequests:
			m := in.ownerRequestMessage()
			m.Map = in.index
			out = append(out, &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Owners{Owners: m}})
		}
	}
	return out
}

// subscriptionRequest returns the request for a map and assigns the next number to it. The peer
// answers with MapAccepted, MapPending or MapRefused. The request resumes at the position, unless
// nothing was received yet or a full sync is due. The caller holds inboundStream.mu.
func (s *inboundStream) subscriptionRequest(in *inboundMap, now time.Time) *mapsyncv1.SubscribeRequest {
	// sweepBefore of a full sync starts here: records that are merged later may be newer than
	// the full sync.
	s.lastIndex++
	in.index, in.nextSweepBefore, in.nextAcknowledged = s.lastIndex, in.m.head()+1, in.acknowledged
	// A refused map stays refused in the status until the peer accepts the map.
	if in.state != StateRefused {
		in.state = StateWaiting
	}
	s.byIndex[in.index] = in
	m := &mapsyncv1.MapSubscription{
		Map: in.index, Name: in.m.name, Layout: in.m.layout.proto(), Schema: in.m.wireSchema,
		SendAll:  in.m.table.Stats().Unversioned > 0,
		Owners:   in.ownerRequestMessage(),
		Expiries: true, Unsent: true,
	}
	// The table has unadopted entries. An owner may be unreachable, so all peers send the records
	// of all owners until the first end of the stream. The permit is copied, because merges read
	// the old one without a lock.
	if m.SendAll {
		p := *in.owners.permit
		p.all = true
		in.owners.permit = &p
	}
	// A full sync that is due leaves out the resume.
	if in.generation != 0 && !in.repeatFullSyncDue(now) {
		m.Resume = &mapsyncv1.Resume{Incarnation: s.peer.Incarnation, Generation: in.generation, Position: in.position}
		m.Owners.Token = in.owners.token
	}
	return &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Subscribe{Subscribe: m}}
}

// unsubscribe appends the message that ends a subscription. It appends nothing for index 0.
func unsubscribe(out []*mapsyncv1.SubscribeRequest, index uint32) []*mapsyncv1.SubscribeRequest {
	if index == 0 {
		return out
	}
	return append(out, &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Unsubscribe{
		Unsubscribe: &mapsyncv1.MapUnsubscription{Map: index},
	}})
}
