package drill

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// The load is a closed loop: what is under way is bounded, so a slow machine
// gets less of it instead of a growing backlog, and the time that an exchange
// takes is the network's and not a queue's.
const (
	maxOpening   = 32 // sessions between their connect and their first answer
	maxInFlight  = 32 // exchanges under way
	duringOpen   = 8  // the same while sessions are still being opened
	agedAfter    = int64(500 * time.Millisecond)
	minInterval  = int64(time.Second)
	firstPort    = 10000
	reportEvery  = 2 * time.Second
	pollInterval = 10 * time.Millisecond
	meanFactor   = 50 // mean latencies that the stall limit grows by
)

type phase uint8

const (
	connecting phase = iota
	ready            // open, nothing under way
	waiting          // a request is out
	dead
)

type verdict uint8

const (
	undecided verdict = iota
	survived
	reset
	stalled
	corrupt
)

// session is one TCP connection and its place in the stream of content.
type session struct {
	started int64 // when the request went out, monotonic ns
	fd      int32
	seq     uint32
	got     uint16 // bytes of the answer so far, all right
	fresh   uint16 // exchanges begun after the cut and completed
	phase   phase
	verdict verdict
	ending  bool // to be closed once nothing is under way
	aged    bool // under way for so long that it no longer counts as in flight
}

// clients drives all sessions of the drill from one thread.
type clients struct {
	order    *clientsOrder
	pipe     *rolePipe
	poll     *poller
	sessions []session
	buf      [4 * frameSize]byte

	opening  int
	inFlight int
	normal   []int32 // ready sessions, in order of their last request
	urgent   []int32 // ready sessions that the cut left undecided
	recent   []sent  // exchanges in order of their start
	interval int64   // between two requests of a session, ns

	begun     int64
	cut       *cutOrder
	undecided int
	decidedAt int64
	judged    bool    // of the cut all is said
	ending    int     // sessions that are to be closed
	latency   float64 // moving mean of an exchange before the cut, ns
	count     counts
}

// sent is an exchange under way, or one that was.
type sent struct {
	id  int32
	seq uint32
}

func runClients(pipe *rolePipe, o *clientsOrder) error {
	if err := raiseFiles(o.Sessions); err != nil {
		return err
	}
	poll, err := newPoller()
	if err != nil {
		return err
	}
	c := &clients{
		order: o, pipe: pipe, poll: poll, begun: monotonic(), undecided: o.Sessions,
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
		case o, ok := <-c.pipe.orders:
			if !ok {
				return nil
			}
			c.obey(&o)
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
			if !c.judged && c.finished() {
				c.judged = true
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

func (c *clients) obey(o *order) {
	switch {
	case o.Cut != nil:
		c.begin(o.Cut)
	case o.Close != nil:
		c.end(o.Close)
	}
}

func (c *clients) pump() error {
	for c.opening < maxOpening && len(c.sessions) < c.order.Sessions {
		if err := c.connect(); err != nil {
			return err
		}
	}
	now := monotonic()
	c.age(now)
	limit := maxInFlight
	if c.count.Opened < c.order.Sessions {
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
			c.ask(id)
		}
	}
	return nil
}

// age takes exchanges that wait for too long out of those in flight, so that
// sessions that hang do not keep the others from being asked.
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

// next takes the session whose turn it is.
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
	from := netip.AddrPortFrom(c.order.Sources[int(id)%len(c.order.Sources)],
		uint16(firstPort+int(id)/len(c.order.Sources)))
	fd, err := tcpSocket(from)
	if err != nil {
		return err
	}
	c.sessions = append(c.sessions, session{fd: int32(fd)})
	c.opening++
	if err := c.poll.add(fd, id, pollEvents); err != nil {
		return err
	}
	if err := unix.Connect(fd, sockaddr(c.order.Service)); err != nil && err != unix.EINPROGRESS {
		return fmt.Errorf("connect session %d: %w", id, err)
	}
	return nil
}

// ask sends the next request of a session.
func (c *clients) ask(id int32) {
	s := &c.sessions[id]
	s.seq++
	s.got, s.aged, s.phase = 0, false, waiting
	now := monotonic()
	if s.seq > 1 {
		c.count.MaxPause = max(c.count.MaxPause, time.Duration(now-s.started))
	}
	s.started = now
	var f frame
	f.request(c.order.Key, uint32(id), s.seq)
	// One small request at a time always fits; anything else is a dead socket.
	if n, err := unix.Write(int(s.fd), f[:]); n != frameSize || err != nil {
		c.lose(id, reset, cmp.Or(err, errEnded))
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
		c.ask(id)
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
		case err != nil && temporary(err):
			return
		case err != nil || n == 0:
			c.lose(id, reset, cmp.Or(err, errEnded))
			return
		case !c.check(id, c.buf[:n]):
			c.lose(id, corrupt, errWrong)
			return
		case int(s.got) == frameSize:
			c.complete(id)
		}
		if n < len(c.buf) {
			return
		}
	}
}

// check compares a piece of the answer with what it has to be.
func (c *clients) check(id int32, piece []byte) bool {
	s := &c.sessions[id]
	if s.phase != waiting || int(s.got)+len(piece) > frameSize {
		return false
	}
	var want frame
	want.answer(c.order.Key, uint32(id), s.seq)
	if string(want[s.got:int(s.got)+len(piece)]) != string(piece) {
		return false
	}
	s.got += uint16(len(piece))
	return true
}
