package replicate

import (
	"context"
	"fmt"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

// run sends until the context is done or the stream fails. It takes its feeds
// in turn, a batch at a time, so that a map with much to say does not silence
// the others.
func (s *session) run(ctx context.Context) error {
	defer s.closeFeeds()
	err := s.send.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_Welcome{
		Welcome: &mapsyncv1.Welcome{ProtocolVersion: protocolVersion, Self: incarnation(s.r.opt.Self), OwnerRequests: true, Reports: true},
	}})
	if err != nil {
		return fmt.Errorf("send welcome: %w", err)
	}
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
		timer.Reset(s.idle(begun))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
			continue
		case <-s.wake:
		}
		if err := s.answer(); err != nil {
			return err
		}
		// Many small changes make one batch rather than many: what comes within
		// the pace of the last round waits for the next.
		if rest := s.r.opt.pace - time.Since(begun); rest > 0 {
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

// sendRound gives each feed one turn, and the peer a sign of life if none had
// anything to say. It reports whether a feed has more.
func (s *session) sendRound(now time.Time) (more bool, err error) {
	maps := s.r.localMaps()
	s.mu.Lock()
	s.round = append(s.round[:0], s.feeds...)
	s.mu.Unlock()
	for _, f := range s.round {
		if err := s.answer(); err != nil {
			return false, err
		}
		again, err := f.step(maps[f.name], now)
		if err != nil {
			return false, err
		}
		more = more || again
	}
	if err := s.answer(); err != nil {
		return false, err
	}
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

// idle returns for how long the session may sleep if nothing happens.
func (s *session) idle(now time.Time) time.Duration {
	pause := min(s.r.opt.heartbeat, s.r.opt.compare)
	for _, f := range s.round {
		switch {
		case f.behind() || f.telling.wanted():
			return s.r.opt.advance
		case f.comparable():
			pause = min(pause, max(f.telling.dueAt(f.cursor.Position(), s.r.opt.compare).Sub(now), s.r.opt.advance))
		}
	}
	return pause
}

func (s *session) closeFeeds() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.feeds {
		f.close()
	}
	s.feeds = nil
}
