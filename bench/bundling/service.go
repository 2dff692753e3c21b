package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// acceptors is the number of goroutines that accept connections.
const acceptors = 4

// service answers requests, and counts what its sockets do.
type service struct {
	mu   sync.Mutex
	done ends
}

// listen starts a service. It ends with the process.
func listen(address string) (*service, error) {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.Bind(fd, &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}),
		unix.Listen(fd, 65535),
	)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	s := new(service)
	for range acceptors {
		go s.accept(fd)
	}
	return s, nil
}

func (s *service) accept(fd int) {
	for {
		c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNABORTED) {
			continue
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "accept:", err)
			return
		}
		s.add(ends{Connections: 1})
		go s.serve(c)
	}
}

// serve answers the requests of a connection until one end closes it.
func (s *service) serve(fd int) {
	defer unix.Close(fd)
	var message [requestBytes]byte
	var response [responseBytes]byte
	for {
		n, err := readAll(fd, message[:])
		s.add(ends{Received: uint64(n)})
		if err != nil || n < requestBytes {
			return
		}
		last := message[0] == lastRequest
		// The client counts a response that it has received, so that the counters must not lag.
		s.add(ends{Messages: 1, Sent: responseBytes})
		if _, err := unix.Write(fd, response[:]); err != nil {
			fmt.Fprintln(os.Stderr, "send a response:", err)
			return
		}
		if last {
			return
		}
	}
}

func (s *service) add(e ends) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = sum(s.done, e)
}

// total returns what the service has done.
func (s *service) total() ends {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}
