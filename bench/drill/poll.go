package drill

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// pollEvents are edge-triggered: one registration serves a socket's whole life.
const pollEvents = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET

// poller is an epoll instance. Sockets by the ten thousand cost a process
// nothing here but their entry in the kernel; goroutines would cost 4 KiB each.
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

// add watches fd; its events carry id.
func (p *poller) add(fd int, id int32, events uint32) error {
	if err := unix.EpollCtl(p.fd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: id}); err != nil {
		return fmt.Errorf("watch socket: %w", err)
	}
	return nil
}

// wait returns the events of at most timeout. They are valid until the next call.
func (p *poller) wait(timeout time.Duration) ([]unix.EpollEvent, error) {
	n, err := unix.EpollWait(p.fd, p.events[:], int(timeout.Milliseconds()))
	if err != nil && !errors.Is(err, unix.EINTR) {
		return nil, fmt.Errorf("wait for sockets: %w", err)
	}
	return p.events[:max(n, 0)], nil
}

// tcpSocket makes a non-blocking TCP socket bound to addr. It vanishes without
// a trace when it is closed: nothing lingers, by the ten thousand, in FIN-WAIT.
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

// closeGently closes a socket of tcpSocket, or one that it has accepted, as other
// programs do: by a FIN.
func closeGently(fd int) {
	// Where this fails the end is a reset, as without it.
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
	_ = unix.Close(fd)
}

func sockaddr(addr netip.AddrPort) *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}
}

// temporary says that a socket has no more to give or take for now.
func temporary(err error) bool {
	return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)
}

// raiseFiles lets this process hold n sockets and some files.
func raiseFiles(n int) error {
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
