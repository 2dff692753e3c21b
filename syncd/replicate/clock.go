package replicate

import (
	"errors"
	"fmt"
	"io"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

const (
	// firstProbes are made before any map is subscribed to, so that already the
	// first time stamps are converted rightly.
	firstProbes = 4
	// maxProbes bounds those that wait for their answer.
	maxProbes = 8
	// clockDrift is for how long two clocks may run until they are a nanosecond
	// further apart: 50 parts in a million.
	clockDrift = 20_000 * time.Nanosecond
	// maxClock bounds a clock that a peer may tell, so that arithmetic on it cannot
	// overflow.
	maxClock = 1 << 62
)

// peerClock knows how far a peer's clock is ahead of this node's. It keeps one
// sample: the one whose error has the least bound by now, of all that were taken
// since the stream began. So it stays good while replies wait behind batches.
type peerClock struct {
	known     bool
	offset    time.Duration
	roundTrip time.Duration
	taken     time.Time
	probes    []probe // that wait for their answer, oldest first
	last      uint64  // probe
}

// probe is a question for the peer's clock: by which number it goes, and when it
// was asked.
type probe struct {
	sent uint64
	at   time.Time
}

// reset forgets the samples of an earlier stream: while there was none, a machine
// may have been asleep.
func (c *peerClock) reset() { *c = peerClock{probes: c.probes[:0]} }

// ask notes a probe that is sent now, and returns it; nil if enough are under way.
func (c *peerClock) ask(clock time.Time) *mapsyncv1.SubscribeRequest {
	if len(c.probes) == maxProbes {
		return nil
	}
	c.last = max(c.last+1, uint64(clock.UnixNano()))
	c.probes = append(c.probes, probe{c.last, time.Now()})
	return &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_ClockProbe{
		ClockProbe: &mapsyncv1.ClockProbe{Sent: c.last},
	}}
}

// answered takes in a reply. The peer answers in turn; what it was not asked, or
// cannot be, is a violation of the protocol.
func (c *peerClock) answered(m *mapsyncv1.ClockReply, clock, now time.Time) error {
	if len(c.probes) == 0 || c.probes[0].sent != m.GetProbeSent() {
		return fmt.Errorf("receive answer to unknown clock probe %d: %w", m.GetProbeSent(), errProtocol)
	}
	asked := c.probes[0].at
	c.probes = append(c.probes[:0], c.probes[1:]...)
	if m.GetClock() > maxClock || m.GetReceived() > m.GetClock() {
		return fmt.Errorf("receive clock %d, and %d before it: %w", m.GetClock(), m.GetReceived(), errProtocol)
	}
	// What the peer kept the probe for is not on the way.
	roundTrip := now.Sub(asked) - time.Duration(m.GetClock()-m.GetReceived())
	if roundTrip < 0 {
		return nil // one of the clocks was set meanwhile
	}
	c.sample(time.Duration(int64(m.GetClock())-clock.UnixNano())+roundTrip/2, roundTrip, now)
	return nil
}

// sample keeps a sample if it is better than the one that is there, or contradicts
// it: then a clock was set.
func (c *peerClock) sample(offset, roundTrip time.Duration, now time.Time) {
	old := c.roundTrip/2 + now.Sub(c.taken)/clockDrift
	apart := (offset - c.offset).Abs()
	if c.known && roundTrip/2 > old && apart <= roundTrip/2+old {
		return
	}
	c.known, c.offset, c.roundTrip, c.taken = true, offset, roundTrip, now
}

// clockOffset returns how far the peer's clock is ahead of this node's.
func (l *link) clockOffset() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.clock.offset
}

// synchronise measures the peer's clock before anything else is received.
func (l *link) synchronise(stream mapsyncv1.ReplicationService_SubscribeClient) error {
	l.mu.Lock()
	l.clock.reset()
	l.mu.Unlock()
	for range firstProbes {
		// An error of Send is only that the stream has ended; Recv knows why.
		if err := l.probe(stream); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if err := l.awaitClock(stream); err != nil {
			return err
		}
	}
	return nil
}

// awaitClock receives until the peer's clock comes.
func (l *link) awaitClock(stream mapsyncv1.ReplicationService_SubscribeClient) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("receive clock: %w", peerError(err))
		}
		switch m := m.GetMessage().(type) {
		case *mapsyncv1.SubscribeResponse_Heartbeat:
		case *mapsyncv1.SubscribeResponse_ClockReply:
			return l.takeClock(m.ClockReply)
		default:
			return fmt.Errorf("receive message of type %T for a clock: %w", m, errProtocol)
		}
	}
}

// probe asks for the peer's clock unless it owes many answers.
func (l *link) probe(send requester) error {
	l.mu.Lock()
	m := l.clock.ask(l.r.opt.Now())
	l.mu.Unlock()
	if m == nil {
		return nil
	}
	if err := send.Send(m); err != nil {
		return fmt.Errorf("send clock probe: %w", peerError(err))
	}
	return nil
}

func (l *link) takeClock(m *mapsyncv1.ClockReply) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.clock.answered(m, l.r.opt.Now(), time.Now())
}

// received is a probe that is to be answered.
type received struct {
	sent, at uint64
}

// probed notes a probe of the peer's. The lock is held.
func (s *session) probed(m *mapsyncv1.ClockProbe) error {
	if len(s.probes) == maxProbes {
		return fmt.Errorf("more than %d clock probes: %w", maxProbes, errProtocol)
	}
	s.probes = append(s.probes, received{m.GetSent(), s.clock()})
	poke(s.wake)
	return nil
}

func (s *session) clock() uint64 { return uint64(s.r.opt.Now().UnixNano()) }

// answer tells this node's clock to a peer that has asked. It is called between
// any two batches, since a probe that waits brings a worse measure.
func (s *session) answer() error {
	s.mu.Lock()
	s.answering = append(s.answering[:0], s.probes...)
	s.probes = s.probes[:0]
	s.mu.Unlock()
	for _, p := range s.answering {
		err := s.send.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_ClockReply{
			ClockReply: &mapsyncv1.ClockReply{ProbeSent: p.sent, Received: p.at, Clock: max(p.at, s.clock())},
		}})
		if err != nil {
			return fmt.Errorf("send clock: %w", err)
		}
		s.lastSent = time.Now()
	}
	return nil
}
