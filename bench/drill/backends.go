package drill

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// listenBacklog is what the backends' accept queues hold at most.
const listenBacklog = 65535

// conn is one connection as a backend sees it.
type conn struct {
	open    bool
	named   bool // session is known
	got     uint16
	session uint32
	seq     uint32 // of the request being received
	header  [headerSize]byte
}

// server answers on all backends' addresses from one thread. Connections are
// found by their file descriptor.
type server struct {
	order *backendsOrder
	pipe  *rolePipe
	poll  *poller
	conns []conn
	buf   [16 << 10]byte
	count counts
}

func runBackends(pipe *rolePipe, o *backendsOrder) error {
	if err := raiseFiles(o.Sessions); err != nil {
		return err
	}
	poll, err := newPoller()
	if err != nil {
		return err
	}
	listeners, err := listenAll(poll, o)
	if err != nil {
		return err
	}
	pipe.send(report{Ready: true})
	if o.Pattern != "" {
		return newWitness(pipe, o, poll, listeners).run()
	}
	s := &server{order: o, pipe: pipe, poll: poll}
	return s.run(listeners)
}

// listenAll opens the listeners and returns their descriptors.
func listenAll(poll *poller, o *backendsOrder) (map[int]bool, error) {
	listeners := make(map[int]bool)
	for _, addr := range o.Listen {
		fd, err := tcpSocket(addr)
		if err != nil {
			return nil, err
		}
		if err := unix.Listen(fd, listenBacklog); err != nil {
			return nil, fmt.Errorf("listen on %s: %w", addr, err)
		}
		if err := poll.add(fd, int32(fd), unix.EPOLLIN); err != nil {
			return nil, err
		}
		listeners[fd] = true
	}
	return listeners, nil
}

func (s *server) run(listeners map[int]bool) error {
	nextReport := time.Now().Add(reportEvery)
	for {
		select {
		case <-s.pipe.orders: // closed: the drill is over
			return nil
		default:
		}
		events, err := s.poll.wait(reportEvery / 10)
		if err != nil {
			return err
		}
		for i := range events {
			fd := int(events[i].Fd)
			if !listeners[fd] {
				s.read(fd)
			} else if err := s.accept(fd); err != nil {
				return err
			}
		}
		if now := time.Now(); now.After(nextReport) {
			nextReport = now.Add(reportEvery)
			snapshot := s.count
			s.pipe.send(report{Counts: &snapshot})
		}
	}
}

func (s *server) accept(listener int) error {
	for range len(s.poll.events) {
		fd, err := accept(listener)
		if err != nil || fd < 0 {
			return err
		}
		for fd >= len(s.conns) {
			s.conns = append(s.conns, conn{})
		}
		s.conns[fd] = conn{open: true, seq: 1}
		s.count.Opened++
		if err := s.poll.add(fd, int32(fd), unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLET); err != nil {
			return err
		}
	}
	return nil
}

// accept returns -1 when no connection waits.
func accept(listener int) (int, error) {
	fd, _, err := unix.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	switch {
	case err == nil:
		return fd, nil
	case temporary(err) || err == unix.ECONNABORTED:
		return -1, nil
	}
	return -1, fmt.Errorf("accept connection: %w", err)
}

func (s *server) read(fd int) {
	for s.conns[fd].open {
		n, err := unix.Read(fd, s.buf[:])
		if err != nil && temporary(err) {
			return
		}
		if err == nil && n == 0 {
			s.conns[fd].open = false
			closeGently(fd) // the client's FIN is answered by one
			return
		}
		if err != nil {
			s.close(fd)
			return
		}
		if err := s.feed(fd, s.buf[:n]); err != nil {
			// A reset tells the client, whose session is then lost.
			s.count.Corrupt++
			s.count.FirstLoss = cmp.Or(s.count.FirstLoss, err.Error())
			s.close(fd)
			return
		}
		if n < len(s.buf) {
			return
		}
	}
}

func (s *server) close(fd int) {
	s.conns[fd].open = false
	unix.Close(fd) //nolint:errcheck // nobody waits for what it could say
}

// What a backend ends a connection of.
var (
	errRequest = errors.New("wrong bytes in request")
	errHeader  = errors.New("request names another session or number")
)

// feed takes what came in and answers every request that it completes. It
// fails when a byte is not what it has to be.
func (s *server) feed(fd int, data []byte) error {
	c := &s.conns[fd]
	for len(data) > 0 {
		if !c.named {
			n := copy(c.header[c.got:], data)
			c.got += uint16(n)
			data = data[n:]
			if c.got == headerSize && !s.name(c) {
				return errHeader
			}
			continue
		}
		var want frame
		want.request(s.order.Key, c.session, c.seq)
		n := min(len(data), frameSize-int(c.got))
		if string(data[:n]) != string(want[c.got:int(c.got)+n]) {
			return errRequest
		}
		c.got += uint16(n)
		data = data[n:]
		if c.got == frameSize {
			if err := s.answer(fd, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// name learns from the first header whose connection this is.
func (s *server) name(c *conn) bool {
	session := binary.LittleEndian.Uint64(c.header[:])
	if session >= uint64(s.order.Sessions) {
		return false
	}
	c.session, c.named = uint32(session), true
	var want frame
	want.request(s.order.Key, c.session, c.seq)
	return string(c.header[:]) == string(want[:headerSize])
}

// answer sends the answer to the request that is complete. One small answer at
// a time always fits: the client asks no more before it has it.
func (s *server) answer(fd int, c *conn) error {
	var f frame
	f.answer(s.order.Key, c.session, c.seq)
	c.seq++
	c.got = 0
	s.count.Exchanges++
	n, err := unix.Write(fd, f[:])
	if n != frameSize || err != nil {
		return fmt.Errorf("send answer %d of session %d: %d bytes: %w", c.seq-1, c.session, n, err)
	}
	return nil
}
