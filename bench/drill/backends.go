package drill

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// listenBacklog is the capacity of the backends' accept queues, in connections.
const listenBacklog = 65535

// conn is the backend's state of one connection.
type conn struct {
	open       bool
	identified bool // the session number has been received
	got        uint16
	session    uint32
	seq        uint32 // number of the request that is being received
	header     [headerSize]byte
}

// server answers on all backends' addresses from one thread. The file descriptor is the index of a
// connection.
type server struct {
	config *backendsConfig
	pipe   *rolePipe
	poll   *poller
	conns  []conn
	buf    [16 << 10]byte
	count  counts
}

func runBackends(pipe *rolePipe, o *backendsConfig) error {
	if err := raiseFileLimit(o.Sessions); err != nil {
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
		return newEchoServer(pipe, o, poll, listeners).run()
	}
	s := &server{config: o, pipe: pipe, poll: poll}
	return s.run(listeners)
}

// listenAll opens the listeners and returns their descriptors.
func listenAll(poll *poller, o *backendsConfig) (map[int]bool, error) {
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
		case <-s.pipe.commands: // closed: the drill has ended
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

// accept returns -1 if no connection is waiting.
func accept(listener int) (int, error) {
	fd, _, err := unix.Accept4(listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	switch {
	case err == nil:
		return fd, nil
	case wouldBlock(err) || err == unix.ECONNABORTED:
		return -1, nil
	}
	return -1, fmt.Errorf("accept connection: %w", err)
}

func (s *server) read(fd int) {
	for s.conns[fd].open {
		n, err := unix.Read(fd, s.buf[:])
		if err != nil && wouldBlock(err) {
			return
		}
		if err == nil && n == 0 {
			s.conns[fd].open = false
			closeGently(fd) // sends a FIN in answer to the client's FIN
			return
		}
		if err != nil {
			s.close(fd)
			return
		}
		if err := s.consume(fd, s.buf[:n]); err != nil {
			// The reset makes the client count its session as lost.
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
	unix.Close(fd) //nolint:errcheck // an error has no effect on the test
}

// Reasons for which a backend closes a connection.
var (
	errRequest = errors.New("wrong bytes in request")
	errHeader  = errors.New("request names another session or number")
)

// consume takes received bytes and answers every request that they complete. It fails if a byte
// differs from the expected one.
func (s *server) consume(fd int, data []byte) error {
	c := &s.conns[fd]
	for len(data) > 0 {
		if !c.identified {
			n := copy(c.header[c.got:], data)
			c.got += uint16(n)
			data = data[n:]
			if c.got == headerSize && !s.identify(c) {
				return errHeader
			}
			continue
		}
		var want frame
		want.request(s.config.Key, c.session, c.seq)
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

// identify reads the session number from the first header of a connection.
func (s *server) identify(c *conn) bool {
	session := binary.LittleEndian.Uint64(c.header[:])
	if session >= uint64(s.config.Sessions) {
		return false
	}
	c.session, c.identified = uint32(session), true
	var want frame
	want.request(s.config.Key, c.session, c.seq)
	return string(c.header[:]) == string(want[:headerSize])
}

// answer sends the answer to the complete request. One small answer at a time always fits into the
// socket buffer: the client sends no further request before it has received the answer.
func (s *server) answer(fd int, c *conn) error {
	var f frame
	f.answer(s.config.Key, c.session, c.seq)
	c.seq++
	c.got = 0
	s.count.Exchanges++
	n, err := unix.Write(fd, f[:])
	if n != frameSize || err != nil {
		return fmt.Errorf("send answer %d of session %d: %d bytes: %w", c.seq-1, c.session, n, err)
	}
	return nil
}
