package drill

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// pollEvents are edge-triggered: one registration lasts for the lifetime of a socket.
const pollEvents = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET

// poller is an epoll instance. A socket costs a process only its entry in the kernel; a goroutine
// per socket would cost 4 KiB each. The drill has tens of thousands of sockets.
type poller struct {
	fd     int
	events [256]unix.EpollEvent
}

func newPoller() (*poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("create epoll: %w", err)
	}
	return &poller{fd: fd}, nil
}

// add registers fd; its events carry id.
func (p *poller) add(fd int, id int32, events uint32) error {
	if err := unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: id}); err != nil {
		return fmt.Errorf("watch socket: %w", err)
	}
	return nil
}

// wait waits for events for at most timeout. The returned slice is valid until the next call.
func (p *poller) wait(timeout time.Duration) ([]unix.EpollEvent, error) {
	n, err := unix.EpollWait(p.fd, p.events[:], int(timeout.Milliseconds()))
	if err != nil && !errors.Is(err, unix.EINTR) {
		return nil, fmt.Errorf("wait for sockets: %w", err)
	}
	return p.events[:max(n, 0)], nil
}

// tcpSocket makes a non-blocking TCP socket bound to addr. Closing it resets the connection, so
// that tens of thousands of sockets do not remain in FIN-WAIT.
func tcpSocket(addr netip.AddrPort) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open socket: %w", err)
	}
	err = errors.Join(
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1),
		unix.Bind(fd, sockaddr(addr)),
	)
	if err != nil {
		return -1, errors.Join(fmt.Errorf("bind socket to %s: %w", addr, err), unix.Close(fd))
	}
	return fd, nil
}

// closeGently closes a socket of tcpSocket, or one that it has accepted, by a FIN, as other
// programs do.
func closeGently(fd int) {
	// If this fails, the close sends a reset.
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
	_ = unix.Close(fd)
}

func sockaddr(addr netip.AddrPort) *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}
}

// wouldBlock reports whether a system call on a socket failed because it has to wait.
func wouldBlock(err error) bool {
	return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)
}

// raiseFileLimit allows this process to open n sockets and 1024 other files.
func raiseFileLimit(n int) error {
	want := uint64(n) + 1024
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read file limit: %w", err)
	}
	if limit.Cur >= want {
		return nil
	}
	limit = unix.Rlimit{Cur: want, Max: max(limit.Max, want)}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("raise file limit to %d: %w", want, err)
	}
	return nil
}
