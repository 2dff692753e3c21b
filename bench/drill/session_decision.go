package drill

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// completeExchange ends an exchange in which every byte was correct.
func (c *clients) completeExchange(id int32) {
	s := &c.sessions[id]
	now := monotonic()
	first := s.seq == 1
	c.removeInFlight(s)
	s.phase = ready
	c.count.Exchanges++
	if first {
		c.countOpened(now)
	}
	switch {
	case c.cut != nil:
		c.countAfterCut(id, now)
	case !first:
		c.latency += (float64(now-s.started) - c.latency) / 128
	}
	switch {
	case s.ending:
		c.closeSession(id)
	case c.cut != nil && s.decision == undecided:
		c.urgent = append(c.urgent, id)
	default:
		c.normal = append(c.normal, id)
	}
}

// countOpened counts a session whose first answer has arrived. After the last one it sets the
// request interval from the time that opening all sessions took. Each session then sends a request
// once in three quarters of that time, which leaves enough processor time to the programs under
// test.
func (c *clients) countOpened(now int64) {
	c.opening--
	c.count.Opened++
	if c.count.Opened == c.config.Sessions {
		c.count.OpenTime = time.Duration(now - c.begun)
		if c.config.Pause == 0 {
			c.interval = max(minInterval, (now-c.begun)*3/4)
		}
		c.report(report{Opened: true})
	}
}

// startDecision makes every session undecided: each has to complete exchanges after the cut to
// survive.
func (c *clients) startDecision(cut *cutCommand) {
	c.cut, c.reportedDone = cut, false
	c.count.Limit = c.config.StallTimeout + meanFactor*time.Duration(c.latency)
	c.count.Survived, c.count.MaxStall, c.undecided, c.allDecidedAt = 0, 0, 0, 0
	for i := range c.sessions {
		if s := &c.sessions[i]; s.phase != dead {
			s.decision, s.afterCut = undecided, 0
			c.undecided++
		}
	}
	c.urgent, c.normal = append(c.urgent, c.normal...), nil
}

// closeSessions closes sessions: at once if no exchange is in flight, the others as soon as they
// have received their answer.
func (c *clients) closeSessions(o *closeCommand) {
	for id := o.From; id < o.To; id++ {
		if s := &c.sessions[id]; s.phase != dead {
			s.ending = true
			c.ending++
		}
	}
	for id := o.From; id < o.To; id++ {
		if c.sessions[id].phase == ready {
			c.closeSession(int32(id))
		}
	}
}

// closeSession closes a session with an even number by a FIN, and the others by a reset: a socket
// with a linger time of 0 sends a reset.
func (c *clients) closeSession(id int32) {
	s := &c.sessions[id]
	if id%2 == 0 {
		closeGently(int(s.fd))
	} else {
		unix.Close(int(s.fd)) //nolint:errcheck // it is gone either way
	}
	if s.decision == undecided {
		c.undecided--
	}
	s.phase = dead
	c.count.Closed++
	c.countClosed(s)
}

// countClosed counts a session that a close command included, however it ended.
func (c *clients) countClosed(s *session) {
	if !s.ending {
		return
	}
	s.ending = false
	if c.ending--; c.ending == 0 {
		c.report(report{Closed: true})
	}
}

// countAfterCut records an exchange that completed after the cut.
func (c *clients) countAfterCut(id int32, now int64) {
	s := &c.sessions[id]
	stall := time.Duration(now - max(s.started, c.cut.Killed))
	c.count.MaxStall = max(c.count.MaxStall, stall)
	if s.started < c.cut.Dead {
		return
	}
	s.afterCut++
	if s.decision == undecided && int(s.afterCut) >= c.config.Fresh {
		c.decide(id, survived)
	}
}

// Reasons of a lost session without a failed system call.
var (
	errNoAnswer    = errors.New("no answer within the limit")
	errWrongAnswer = errors.New("wrong bytes in answer")
	errEnded       = errors.New("connection ended")
)

// removeInFlight removes a session from those being opened or in flight.
func (c *clients) removeInFlight(s *session) {
	if s.phase == waiting && s.seq > 1 && !s.aged {
		c.inFlight--
	}
}

// loseSession closes a session and counts it as lost.
func (c *clients) loseSession(id int32, d decision, why error) {
	s := &c.sessions[id]
	if c.count.FirstLoss == "" {
		idle := time.Duration(monotonic() - s.started).Round(time.Millisecond)
		c.count.MaxPause = max(c.count.MaxPause, idle)
		c.count.FirstLoss = fmt.Sprintf("session %d, request %d of %s ago: %v", id, s.seq, idle, why)
	}
	c.removeInFlight(s)
	s.phase = dead
	unix.Close(int(s.fd)) //nolint:errcheck // the connection is lost already
	c.decide(id, d)
	c.countClosed(s)
}

// decide records the decision d for a session. Only the decision survived can change later, if the
// session is lost after all.
func (c *clients) decide(id int32, d decision) {
	s := &c.sessions[id]
	switch s.decision {
	case undecided:
		c.undecided--
	case survived:
		c.count.Survived--
	default:
		return
	}
	s.decision = d
	switch d {
	case survived:
		c.count.Survived++
	case reset:
		c.count.Reset++
	case stalled:
		c.count.Stalled++
	case corrupt:
		c.count.Corrupt++
	}
}

// findStalled closes the sessions that have waited for longer than the limit.
func (c *clients) findStalled() {
	now := monotonic()
	for i := range c.sessions {
		s := &c.sessions[i]
		if s.phase != waiting {
			continue
		}
		stall := time.Duration(now - max(s.started, c.cut.Killed))
		if stall > c.count.Limit {
			c.count.MaxStall = max(c.count.MaxStall, stall)
			c.loseSession(int32(i), stalled, errNoAnswer)
		}
	}
}

// finished reports whether every session is decided and the surviving sessions have continued for
// Hold after the last decision.
func (c *clients) finished() bool {
	if c.undecided > 0 {
		return false
	}
	now := monotonic()
	if c.allDecidedAt == 0 {
		c.allDecidedAt = now
	}
	return c.count.Survived == 0 || now-c.allDecidedAt >= int64(c.config.Hold)
}
