package drill

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// complete ends an exchange whose every byte was right.
func (c *clients) complete(id int32) {
	s := &c.sessions[id]
	now := monotonic()
	first := s.seq == 1
	c.leave(s)
	s.phase = ready
	c.count.Exchanges++
	if first {
		c.opened(now)
	}
	switch {
	case c.cut != nil:
		c.prove(id, now)
	case !first:
		c.latency += (float64(now-s.started) - c.latency) / 128
	}
	switch {
	case s.ending:
		c.hangUp(id)
	case c.cut != nil && s.verdict == undecided:
		c.urgent = append(c.urgent, id)
	default:
		c.normal = append(c.normal, id)
	}
}

// opened counts a session whose first answer came. All of them together tell
// what the machine can do: asking every session once in three quarters of the
// time that opening took leaves enough of it to what is under test.
func (c *clients) opened(now int64) {
	c.opening--
	c.count.Opened++
	if c.count.Opened == c.order.Sessions {
		c.count.OpenTime = time.Duration(now - c.begun)
		if c.order.Pause == 0 {
			c.interval = max(minInterval, (now-c.begun)*3/4)
		}
		c.report(report{Opened: true})
	}
}

// begin opens the judgement: every session has to prove itself anew.
func (c *clients) begin(cut *cutOrder) {
	c.cut, c.judged = cut, false
	c.count.Limit = c.order.StallTimeout + meanFactor*time.Duration(c.latency)
	c.count.Survived, c.count.MaxStall, c.undecided, c.decidedAt = 0, 0, 0, 0
	for i := range c.sessions {
		if s := &c.sessions[i]; s.phase != dead {
			s.verdict, s.fresh = undecided, 0
			c.undecided++
		}
	}
	c.urgent, c.normal = append(c.urgent, c.normal...), nil
}

// end closes sessions: at once where nothing is under way, and the others as
// soon as they have their answer.
func (c *clients) end(o *closeOrder) {
	for id := o.From; id < o.To; id++ {
		if s := &c.sessions[id]; s.phase != dead {
			s.ending = true
			c.ending++
		}
	}
	for id := o.From; id < o.To; id++ {
		if c.sessions[id].phase == ready {
			c.hangUp(int32(id))
		}
	}
}

// hangUp closes a session as its number says: by a FIN, or, as everything that
// lingers for no time, by a reset.
func (c *clients) hangUp(id int32) {
	s := &c.sessions[id]
	if id%2 == 0 {
		closeGently(int(s.fd))
	} else {
		unix.Close(int(s.fd)) //nolint:errcheck // it is gone either way
	}
	if s.verdict == undecided {
		c.undecided--
	}
	s.phase = dead
	c.count.Closed++
	c.ended(s)
}

// ended counts a session off that was to be closed, however it ended.
func (c *clients) ended(s *session) {
	if !s.ending {
		return
	}
	s.ending = false
	if c.ending--; c.ending == 0 {
		c.report(report{Closed: true})
	}
}

// prove notes an exchange that ended after the cut.
func (c *clients) prove(id int32, now int64) {
	s := &c.sessions[id]
	stall := time.Duration(now - max(s.started, c.cut.Killed))
	c.count.MaxStall = max(c.count.MaxStall, stall)
	if s.started < c.cut.Dead {
		return
	}
	s.fresh++
	if s.verdict == undecided && int(s.fresh) >= c.order.Fresh {
		c.decide(id, survived)
	}
}

// What a session is lost of when no system call says so.
var (
	errSilent = errors.New("no answer within the limit")
	errWrong  = errors.New("wrong bytes in answer")
	errEnded  = errors.New("connection ended")
)

// leave takes a session out of those being opened or in flight.
func (c *clients) leave(s *session) {
	if s.phase == waiting && s.seq > 1 && !s.aged {
		c.inFlight--
	}
}

// lose ends a session.
func (c *clients) lose(id int32, v verdict, why error) {
	s := &c.sessions[id]
	if c.count.FirstLoss == "" {
		idle := time.Duration(monotonic() - s.started).Round(time.Millisecond)
		c.count.MaxPause = max(c.count.MaxPause, idle)
		c.count.FirstLoss = fmt.Sprintf("session %d, request %d of %s ago: %v", id, s.seq, idle, why)
	}
	c.leave(s)
	s.phase = dead
	unix.Close(int(s.fd)) //nolint:errcheck // the connection is lost already
	c.decide(id, v)
	c.ended(s)
}

// decide counts a session as v. Only a survivor's verdict can change, should
// it be lost after all.
func (c *clients) decide(id int32, v verdict) {
	s := &c.sessions[id]
	switch s.verdict {
	case undecided:
		c.undecided--
	case survived:
		c.count.Survived--
	default:
		return
	}
	s.verdict = v
	switch v {
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

// findStalled gives up sessions that wait for longer than the limit.
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
			c.lose(int32(i), stalled, errSilent)
		}
	}
}

// finished says whether the drill knows enough: every session is decided, and
// the survivors went on for a while after that.
func (c *clients) finished() bool {
	if c.undecided > 0 {
		return false
	}
	now := monotonic()
	if c.decidedAt == 0 {
		c.decidedAt = now
	}
	return c.count.Survived == 0 || now-c.decidedAt >= int64(c.order.Hold)
}
