package drill

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// The load is a closed loop with a limit on the exchanges in flight. On a slow machine the load
// decreases instead of building a backlog. The duration of an exchange is the latency of the
// network, without queueing delay.
const (
	maxOpening   = 32 // sessions between their connect and their first answer
	maxInFlight  = 32 // limit of exchanges in flight
	duringOpen   = 8  // the same limit while sessions are still being opened
	agedAfter    = int64(500 * time.Millisecond)
	minInterval  = int64(time.Second)
	firstPort    = 10000
	reportEvery  = 2 * time.Second
	pollInterval = 10 * time.Millisecond
	meanFactor   = 50 // the stall limit grows by this number of mean latencies
)

type phase uint8

const (
	connecting phase = iota
	ready            // open, no exchange in flight
	waiting          // for the answer to a request
	dead
)

type decision uint8

const (
	undecided decision = iota
	survived
	reset
	stalled
	corrupt
)

// session is one TCP connection and its position in the content stream.
type session struct {
	started  int64 // time at which the last request was sent, CLOCK_MONOTONIC, ns
	fd       int32
	seq      uint32
	got      uint16 // bytes of the answer received so far, all correct
	afterCut uint16 // number of completed exchanges that began after the cut
	phase    phase
	decision decision
	ending   bool // closes after the exchange in flight
	aged     bool // in flight for longer than agedAfter; no longer counted in inFlight
}

// clients drives all sessions of the drill from one thread.
type clients struct {
	config   *clientsConfig
	pipe     *rolePipe
	poll     *poller
	sessions []session
	buf      [4 * frameSize]byte

	opening  int
	inFlight int
	normal   []int32 // ready sessions, ordered by their last request
	urgent   []int32 // ready sessions that are undecided since the cut
	recent   []sent  // exchanges, ordered by their start
	interval int64   // between two requests of a session, ns

	begun        int64
	cut          *cutCommand
	undecided    int
	allDecidedAt int64
	reportedDone bool    // all sessions of the cut are decided and reported
	ending       int     // number of sessions that wait to be closed
	latency      float64 // moving mean of an exchange before the cut, ns
	count        counts
}

// sent is an exchange that is or was in flight.
type sent struct {
	id  int32
	seq uint32
}

func runClients(pipe *rolePipe, o *clientsConfig) error {
	if err := raiseFileLimit(o.Sessions); err != nil {
		return err
	}
	poll, err := newPoller()
	if err != nil {
		return err
	}
	c := &clients{
		config: o, pipe: pipe, poll: poll, begun: monotonic(), undecided: o.Sessions,
		sessions: make([]session, 0, o.Sessions), interval: cmp.Or(int64(o.Pause), minInterval),
	}
	pipe.send(report{Ready: true})
	return c.run()
}

func (c *clients) run() error {
	nextReport := time.Now()
	nextCheck := nextReport
	for {
		select {
		case o, ok := <-c.pipe.commands:
			if !ok {
				return nil
			}
			c.execute(&o)
		default:
		}
		if err := c.pump(); err != nil {
			return err
		}
		events, err := c.poll.wait(pollInterval)
		if err != nil {
			return err
		}
		for i := range events {
			if err := c.handle(events[i].Fd, events[i].Events); err != nil {
				return err
			}
		}
		now := time.Now()
		if now.After(nextReport) {
			nextReport = now.Add(reportEvery)
			c.report(report{})
		}
		if c.cut != nil && now.After(nextCheck) {
			nextCheck = now.Add(reportEvery / 4)
			c.findStalled()
			if !c.reportedDone && c.finished() {
				c.reportedDone = true
				c.report(report{Done: true})
			}
		}
	}
}

func (c *clients) report(r report) {
	snapshot := c.count
	snapshot.Latency = time.Duration(c.latency)
	r.Counts = &snapshot
	c.pipe.send(r)
}

func (c *clients) execute(o *command) {
	switch {
	case o.Cut != nil:
		c.startDecision(o.Cut)
	case o.Close != nil:
		c.closeSessions(o.Close)
	}
}

func (c *clients) pump() error {
	for c.opening < maxOpening && len(c.sessions) < c.config.Sessions {
		if err := c.connect(); err != nil {
			return err
		}
	}
	now := monotonic()
	c.age(now)
	limit := maxInFlight
	if c.count.Opened < c.config.Sessions {
		limit = duringOpen
	}
	for c.inFlight < limit {
		id, ok := c.next(now)
		if !ok {
			return nil
		}
		if c.sessions[id].phase == ready {
			c.inFlight++
			c.recent = append(c.recent, sent{id, c.sessions[id].seq + 1})
			c.sendRequest(id)
		}
	}
	return nil
}

// age removes exchanges that wait for too long from those in flight, so that stalled sessions do
// not block the requests of other sessions.
func (c *clients) age(now int64) {
	done := 0
	for _, r := range c.recent {
		s := &c.sessions[r.id]
		if s.phase == waiting && s.seq == r.seq {
			if now-s.started < agedAfter {
				break
			}
			s.aged = true
			c.inFlight--
		}
		done++
	}
	c.recent = slices.Delete(c.recent, 0, done)
}

// next returns the session that sends the next request.
func (c *clients) next(now int64) (int32, bool) {
	if len(c.urgent) > 0 {
		id := c.urgent[0]
		c.urgent = c.urgent[1:]
		return id, true
	}
	if len(c.normal) == 0 || now-c.sessions[c.normal[0]].started < c.interval {
		return 0, false
	}
	id := c.normal[0]
	c.normal = c.normal[1:]
	return id, true
}

func (c *clients) connect() error {
	id := int32(len(c.sessions))
	from := netip.AddrPortFrom(c.config.Sources[int(id)%len(c.config.Sources)],
		uint16(firstPort+int(id)/len(c.config.Sources)))
	fd, err := tcpSocket(from)
	if err != nil {
		return err
	}
	c.sessions = append(c.sessions, session{fd: int32(fd)})
	c.opening++
	if err := c.poll.add(fd, id, pollEvents); err != nil {
		return err
	}
	if err := unix.Connect(fd, sockaddr(c.config.Service)); err != nil && err != unix.EINPROGRESS {
		return fmt.Errorf("connect session %d: %w", id, err)
	}
	return nil
}

// sendRequest sends the next request of a session.
func (c *clients) sendRequest(id int32) {
	s := &c.sessions[id]
	s.seq++
	s.got, s.aged, s.phase = 0, false, waiting
	now := monotonic()
	if s.seq > 1 {
		c.count.MaxPause = max(c.count.MaxPause, time.Duration(now-s.started))
	}
	s.started = now
	var f frame
	f.request(c.config.Key, uint32(id), s.seq)
	// One small request at a time always fits into the socket buffer. Any other result means a dead
	// socket.
	if n, err := unix.Write(int(s.fd), f[:]); n != frameSize || err != nil {
		c.loseSession(id, reset, cmp.Or(err, errEnded))
	}
}

func (c *clients) handle(id int32, events uint32) error {
	s := &c.sessions[id]
	if s.phase == dead {
		return nil
	}
	if s.phase == connecting {
		code, err := unix.GetsockoptInt(int(s.fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil || code != 0 {
			return fmt.Errorf("open session %d: %w", id, unix.Errno(code))
		}
		if events&unix.EPOLLOUT == 0 {
			return nil
		}
		c.sendRequest(id)
		return nil
	}
	if events&^uint32(unix.EPOLLOUT) != 0 {
		c.read(id)
	}
	return nil
}

func (c *clients) read(id int32) {
	s := &c.sessions[id]
	for s.phase != dead {
		n, err := unix.Read(int(s.fd), c.buf[:])
		switch {
		case err != nil && wouldBlock(err):
			return
		case err != nil || n == 0:
			c.loseSession(id, reset, cmp.Or(err, errEnded))
			return
		case !c.check(id, c.buf[:n]):
			c.loseSession(id, corrupt, errWrongAnswer)
			return
		case int(s.got) == frameSize:
			c.completeExchange(id)
		}
		if n < len(c.buf) {
			return
		}
	}
}

// check compares a piece of the answer with the expected bytes.
func (c *clients) check(id int32, piece []byte) bool {
	s := &c.sessions[id]
	if s.phase != waiting || int(s.got)+len(piece) > frameSize {
		return false
	}
	var want frame
	want.answer(c.config.Key, uint32(id), s.seq)
	if string(want[s.got:int(s.got)+len(piece)]) != string(piece) {
		return false
	}
	s.got += uint16(len(piece))
	return true
}
