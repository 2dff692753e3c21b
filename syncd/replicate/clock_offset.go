package replicate

import (
	"errors"
	"fmt"
	"io"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

const (
	// initialClockProbes is the number of probes before the first subscription, so that the first
	// time stamps are converted correctly.
	initialClockProbes = 4
	// clockMemory is the time after the last message of a peer during which its offset counts without a stream. A broken stream
	// therefore neither ends a clock problem nor changes the node that it names.
	clockMemory = time.Minute
	// maxPendingProbes bounds the probes without an answer.
	maxPendingProbes = 8
	// clockDrift is the time in which two clocks drift apart by at most 1 ns: 50 parts per million.
	clockDrift = 20_000 * time.Nanosecond
	// maxClock bounds the clock of a peer in nanoseconds, so that arithmetic on it cannot overflow.
	maxClock = 1 << 62
)

// peerClock measures the offset of a peer's clock. It keeps one sample since the start of the
// stream: the one with the smallest error bound at present. The offset therefore stays accurate
// while replies wait behind batches. inboundStream.mu guards it.
//
// The goal is the smallest error bound at any moment. A reply that waited behind a large batch has
// a long round trip, and does not replace a good sample before the drift has made that one worse.
type peerClock struct {
	// valid is false until the first sample of the stream.
	valid bool
	// offset is the peer's clock minus Options.TableTime, which no step of this node's clock changes. Zero
	// unless valid.
	offset time.Duration
	// roundTrip is the time between probe and reply of the sample, without the time at the peer. It
	// is never negative. The error of offset is at most roundTrip/2 plus the drift since sampledAt.
	roundTrip time.Duration
	// sampledAt is the time of the sample.
	sampledAt time.Time
	// pending are the probes without an answer, oldest first, at most maxPendingProbes.
	pending []clockProbe
	// lastProbe is the id of the newest probe. Ids increase.
	lastProbe uint64
	// unsynchronised is ClockReply.Unsynchronised of the latest reply.
	unsynchronised bool
	// probeNow makes a probe due before the next interval: this node's clock was set, or an arrival waits for a reply.
	probeNow bool
	// answered is when the latest probe with a reply was sent; zero: this stream has none. The reply comes after all messages that
	// the peer had sent before it received the probe.
	answered time.Time
}

// clockProbe is a probe that was sent and not answered yet. It does not change.
type clockProbe struct {
	// id is higher than that of any earlier probe on the stream. The next reply must have the id of the oldest probe.
	id uint64
	// sentAt is the time of newProbe, with a monotonic reading. It is not after the time at which the message is sent.
	sentAt time.Time
}

// offsetFrom returns the peer's clock minus this node's clock; 0 without a sample. wall is Options.WallOffset.
// The caller holds inboundStream.mu.
func (c *peerClock) offsetFrom(wall int64) time.Duration {
	if !c.valid {
		return 0
	}
	return c.offset - time.Duration(wall)
}

// reset discards the sample of an earlier stream: the machine may have been suspended between the
// streams. The caller holds inboundStream.mu.
func (c *peerClock) reset() { *c = peerClock{pending: c.pending[:0]} }

// newProbe registers a probe that is sent now, and returns its message. It returns nil if
// maxPendingProbes probes have no answer yet. clock is this node's clock; only its uniqueness
// counts. The round trip is measured with time.Now, whose monotonic reading does not change if a
// clock is set. The caller holds inboundStream.mu.
func (c *peerClock) newProbe(clock time.Time) *mapsyncv1.SubscribeRequest {
	if len(c.pending) == maxPendingProbes {
		return nil
	}
	// Ids are unique even if the clock is set back.
	c.lastProbe = max(c.lastProbe+1, uint64(clock.UnixNano()))
	c.pending = append(c.pending, clockProbe{c.lastProbe, time.Now()})
	return &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_ClockProbe{
		ClockProbe: &mapsyncv1.ClockProbe{Sent: c.lastProbe},
	}}
}

// handleReply processes a reply. The peer answers probes in order. A reply to another probe, or
// with an impossible clock, is a protocol violation. clock is Options.TableTime and now is time.Now,
// both at the arrival of the reply. The error wraps errProtocol and ends the stream. The caller holds
// inboundStream.mu.
func (c *peerClock) handleReply(m *mapsyncv1.ClockReply, clock int64, now time.Time) error {
	if len(c.pending) == 0 || c.pending[0].id != m.GetProbeSent() {
		return fmt.Errorf("receive answer to unknown clock probe %d: %w", m.GetProbeSent(), errProtocol)
	}
	asked := c.pending[0].sentAt
	c.answered = asked
	c.pending = append(c.pending[:0], c.pending[1:]...)
	if m.GetClock() > maxClock || m.GetReceived() > m.GetClock() {
		return fmt.Errorf("receive clock reply with clock %d and receive time %d: %w", m.GetClock(), m.GetReceived(), errProtocol)
	}
	c.unsynchronised = m.GetUnsynchronised()
	// The time that the probe waited at the peer is not part of the round trip.
	roundTrip := now.Sub(asked) - time.Duration(m.GetClock()-m.GetReceived())
	if roundTrip < 0 {
		return nil // one of the clocks was set in the meantime
	}
	c.addSample(time.Duration(int64(m.GetClock())-clock)+roundTrip/2, roundTrip, now)
	return nil
}

// addSample replaces the current sample if the new one has a smaller error bound, or if the two
// contradict each other because a clock was set. Two samples contradict each other if their
// intervals, each the offset plus or minus its error, do not overlap.
func (c *peerClock) addSample(offset, roundTrip time.Duration, now time.Time) {
	// The error bound of the old sample has grown by the drift since it was taken.
	old := c.roundTrip/2 + now.Sub(c.sampledAt)/clockDrift
	apart := (offset - c.offset).Abs()
	if c.valid && roundTrip/2 > old && apart <= roundTrip/2+old {
		return
	}
	c.valid, c.offset, c.roundTrip, c.sampledAt = true, offset, roundTrip, now
}

// clockOffset returns the peer's clock minus this node's clock; 0 before the first sample. A merge
// reads it once for each batch. It takes inboundStream.mu.
func (s *inboundStream) clockOffset() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clock.offsetFrom(s.r.opt.WallOffset())
}

// measureClock sends the initial probes one by one, before syncd receives anything else. One by
// one, because a probe that waits behind another has a longer round trip. The receiving goroutine
// calls it during the handshake.
func (s *inboundStream) measureClock(stream mapsyncv1.ReplicationService_SubscribeClient) error {
	s.mu.Lock()
	s.clock.reset()
	s.mu.Unlock()
	for range initialClockProbes {
		// Send only reports that the stream has ended; Recv returns the cause.
		if err := s.sendClockProbe(stream); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if err := s.awaitClockReply(stream); err != nil {
			return err
		}
	}
	return nil
}

// awaitClockReply receives messages until the clock reply arrives. Only heartbeats may come before it.
func (s *inboundStream) awaitClockReply(stream mapsyncv1.ReplicationService_SubscribeClient) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("receive clock reply: %w", peerError(err))
		}
		switch m := m.GetMessage().(type) {
		case *mapsyncv1.SubscribeResponse_Heartbeat:
		case *mapsyncv1.SubscribeResponse_ClockReply:
			return s.handleClockReply(m.ClockReply)
		default:
			return fmt.Errorf("receive message of type %T instead of a clock reply: %w", m, errProtocol)
		}
	}
}

// clockProbeDue reports whether a probe is due after the last one. It takes inboundStream.mu.
func (s *inboundStream) clockProbeDue(last time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	due := s.clock.probeNow || time.Since(last) >= s.r.opt.clockProbeInterval
	s.clock.probeNow = false
	return due
}

// sendClockProbe sends a probe, unless maxPendingProbes probes have no answer yet. The error ends
// the gRPC stream.
func (s *inboundStream) sendClockProbe(send requestSender) error {
	s.mu.Lock()
	m := s.clock.newProbe(s.r.opt.Now())
	s.mu.Unlock()
	if m == nil {
		return nil
	}
	if err := send.Send(m); err != nil {
		return fmt.Errorf("send clock probe: %w", peerError(err))
	}
	return nil
}

// handleClockReply processes a clock reply of the peer.
func (s *inboundStream) handleClockReply(m *mapsyncv1.ClockReply) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clock.handleReply(m, s.r.opt.TableTime(), time.Now())
}

// receivedProbe is a probe of the peer without an answer. It does not change.
type receivedProbe struct {
	// id is chosen by the peer and not checked. The reply returns it as it is.
	id uint64
	// receivedAt is this node's clock at the arrival of the probe, in Unix nanoseconds. The clock of the reply is never
	// below it, even if this node's clock was set back in between.
	receivedAt uint64
}

// handleClockProbe queues a probe of the peer. The caller holds outboundStream.mu. More than
// maxPendingProbes probes in the queue are a violation of the protocol: a peer could otherwise make
// this node keep any number.
func (s *outboundStream) handleClockProbe(m *mapsyncv1.ClockProbe) error {
	if len(s.probes) == maxPendingProbes {
		return fmt.Errorf("more than %d clock probes: %w", maxPendingProbes, errProtocol)
	}
	s.probes = append(s.probes, receivedProbe{m.GetSent(), s.clock()})
	poke(s.wake)
	return nil
}

// clock returns this node's clock in Unix nanoseconds.
func (s *outboundStream) clock() uint64 { return uint64(s.r.opt.Now().UnixNano()) }

// answerProbes answers the queued probes with this node's clock. It is called between any two
// batches, because a probe that waits makes the measurement less accurate. Only the sending
// goroutine calls it. It copies the queue and releases s.mu before it sends.
func (s *outboundStream) answerProbes() error {
	s.mu.Lock()
	s.answeringProbes = append(s.answeringProbes[:0], s.probes...)
	s.probes = s.probes[:0]
	s.mu.Unlock()
	unsynchronised := len(s.answeringProbes) > 0 && s.r.opt.Unsynchronised()
	for _, p := range s.answeringProbes {
		err := s.send.Send(&mapsyncv1.SubscribeResponse{Message: &mapsyncv1.SubscribeResponse_ClockReply{
			ClockReply: &mapsyncv1.ClockReply{ProbeSent: p.id, Received: p.receivedAt, Clock: max(p.receivedAt, s.clock()), Unsynchronised: unsynchronised},
		}})
		if err != nil {
			return fmt.Errorf("send clock reply: %w", err)
		}
		s.lastSent = time.Now()
	}
	return nil
}

// ClockOffset is the clock offset of a live peer. A large offset affects only true conflicts
// between nodes. Records that are ahead by more than Options.MaxClockAhead are refused.
type ClockOffset struct {
	// Node is the name of the peer.
	Node string
	// Offset is the peer's clock minus this node's clock. It is negative if this node's clock is ahead.
	Offset time.Duration
	// Unsynchronised reports that the peer's clock is not synchronised, as its kernel reports it.
	Unsynchronised bool
}

// ClockOffsets returns the offsets of the live peers, in no order. While the stream to a peer is down, its last sample counts
// for clockMemory. A peer without a sample is left out. It takes Replicator.mu and then each inboundStream.mu. The caller owns
// the slice.
func (r *Replicator) ClockOffsets() (list []ClockOffset) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for node := range r.view.Load().live {
		// It is not nil: SetPeers creates the stream together with the view.
		s := r.inboundStreams[node]
		s.mu.Lock()
		recent := time.Since(time.Unix(0, s.lastContact.Load())) < clockMemory
		if s.clock.valid && (s.up || recent) {
			list = append(list, ClockOffset{node, s.clock.offsetFrom(r.opt.WallOffset()), s.clock.unsynchronised})
		}
		s.mu.Unlock()
	}
	return list
}
