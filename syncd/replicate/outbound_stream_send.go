package replicate

import (
	"context"
	"fmt"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// run sends until ctx is done or the stream fails. It serves the maps in turn, one batch at a time,
// so that a map with many changes does not delay the others.
//
// run is the sending goroutine. It starts without a lock and is the only user of s.send. The error
// is the cause of the end of ctx, or that of a Send. It releases the cursors of all map streams
// before it returns.
func (s *outboundStream) run(ctx context.Context) error {
	defer s.closeMaps()
	// The Welcome comes first, so that the receiver can verify this node before it sends
	// subscriptions.
	err := s.send.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Welcome{
		Welcome: &mapsyncv1.Welcome{ProtocolVersion: s.version, Self: incarnation(s.r.opt.Self), OwnerRequests: true, Reports: true, Release: s.r.opt.Release, Cluster: s.r.opt.Cluster},
	}})
	if err != nil {
		return fmt.Errorf("send welcome: %w", err)
	}
	// gRPC blocks Send while the peer does not read. The changes of that time stay in the tables,
	// and each key is sent once, in its latest state.
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		begun := time.Now()
		more, err := s.sendRound(begun)
		if err != nil {
			return err
		}
		if more {
			continue
		}
		// All maps are at the end. Wait for a change, a request, or the next periodic message.
		timer.Reset(s.idle(begun))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
			continue
		case <-s.wake:
		}
		// A probe that woke this goroutine is answered before the pause, which would make the
		// measurement less accurate.
		if err := s.answerProbes(); err != nil {
			return err
		}
		// The pause combines many small changes into one batch: changes within batchPause of the
		// last round wait for the next round.
		if rest := s.r.opt.batchPause - time.Since(begun); rest > 0 {
			timer.Reset(rest)
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-timer.C:
			}
		}
	}
	return context.Cause(ctx)
}

// sendRound serves each map once, and sends a heartbeat if nothing was sent for the heartbeat
// interval. It reports whether a map has more to send.
//
// Each map gets one step, so a full sync of one map delays the changes of another by one batch. An
// error ends the stream. Errors of a single map are messages to the peer.
func (s *outboundStream) sendRound(now time.Time) (more bool, err error) {
	// The list may change during the round. removeMap removes from s.maps, not from s.round.
	maps := s.r.localMaps()
	s.mu.Lock()
	// Sending without s.mu lets the receiving goroutine handle requests meanwhile.
	s.round = append(s.round[:0], s.maps...)
	s.mu.Unlock()
	// Probes are answered between batches, so that a reply waits for one batch at most.
	for _, out := range s.round {
		if err := s.answerProbes(); err != nil {
			return false, err
		}
		// maps[out.name] is nil if this node does not have the map, or no longer has it.
		again, err := out.step(maps[out.name], now)
		if err != nil {
			return false, err
		}
		more = more || again
	}
	if err := s.answerProbes(); err != nil {
		return false, err
	}
	// Any message proves that this node is alive, so a heartbeat is sent only after a pause.
	if now.Sub(s.lastSent) < s.r.opt.heartbeat {
		return more, nil
	}
	s.lastSent = now
	err = s.send.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Heartbeat{
		Heartbeat: &mapsyncv1.Heartbeat{},
	}})
	if err != nil {
		return false, fmt.Errorf("send heartbeat: %w", err)
	}
	return more, nil
}

// idle returns the time until the next message is due if nothing wakes the goroutine. Tables,
// requests and changes of the membership wake it earlier. The time bounds the heartbeat, so that
// the peer never waits for receiveTimeout.
func (s *outboundStream) idle(now time.Time) time.Duration {
	pause := min(s.r.opt.heartbeat, s.r.opt.digestInterval)
	for _, out := range s.round {
		switch {
		case out.hasUnsentPosition() || out.comparison.pending():
			// A position without deltas is sent after positionInterval.
			return s.r.opt.positionInterval
		// The lower bound prevents a busy loop while a digest is due already.
		case out.canSendDigest():
			pause = min(pause, max(out.comparison.nextDigestTime(out.cursor.Position(), s.r.opt.digestInterval).Sub(now), s.r.opt.positionInterval))
		}
	}
	return pause
}

// closeMaps closes all map streams when the stream ends. The sending goroutine calls it last. It
// takes s.mu, so that status and acknowledgements do not use a map stream that is closed.
func (s *outboundStream) closeMaps() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, out := range s.maps {
		out.close()
	}
	s.maps = nil
}
