package peers

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Sizes of headers in bytes. A TCP header has time stamps, unless a host has disabled them.
const (
	ipv4Header    = 20
	ipv6Header    = 40
	udpHeader     = 8
	tcpHeader     = 20
	tcpTimestamps = 12
	// timestampsOption is TCPI_OPT_TIMESTAMPS of include/uapi/linux/tcp.h.
	timestampsOption = 1
)

// NetworkBytes counts bytes on the network: TCP segments and UDP datagrams with their headers of TCP, UDP and IP,
// without the headers of the link. Repeated segments count each time.
type NetworkBytes struct{ Sent, Received uint64 }

// Meter counts the bytes of connections and datagrams. Its methods are safe for concurrent use. The zero value is ready
// for use.
type Meter struct {
	mu   sync.Mutex
	open map[*meteredConn]struct{}
	// ended has the bytes of closed connections and of datagrams.
	ended NetworkBytes
}

// Bytes returns the bytes so far. They never decrease.
func (m *Meter) Bytes() NetworkBytes {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := m.ended
	for c := range m.open {
		c.update(false)
		sum.Sent += c.bytes.Sent
		sum.Received += c.bytes.Received
	}
	return sum
}

// Conn returns a connection that counts. It returns conn itself if it is not a TCP connection.
func (m *Meter) Conn(conn net.Conn) net.Conn {
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return conn
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return conn
	}
	c := &meteredConn{TCPConn: tcp, raw: raw, meter: m, header: tcpHeader + ipHeader(conn.RemoteAddr().String())}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open == nil {
		m.open = make(map[*meteredConn]struct{})
	}
	m.open[c] = struct{}{}
	return c
}

// Listen listens for TCP connections that a Meter can count. The kernel resets the counters of an MPTCP connection when
// its client resets it.
func Listen(addr string) (net.Listener, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	return config.Listen(context.Background(), "tcp", addr)
}

// Listener returns a listener whose connections count.
func (m *Meter) Listener(inner net.Listener) net.Listener { return meteredListener{inner, m} }

type meteredListener struct {
	net.Listener
	m *Meter
}

// Accept implements net.Listener.
func (l meteredListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.m.Conn(conn), nil
}

// Dial opens a TCP connection that counts, and that ends if sent data is not acknowledged for silence.
func (m *Meter) Dial(ctx context.Context, addr string, silence time.Duration) (net.Conn, error) {
	// As gRPC's own dialer, with the keep-alive times of the host.
	dialer := net.Dialer{KeepAlive: -1, Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) {
			failed = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1),
				unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds())))
		})
		if err == nil {
			err = failed
		}
		return err
	}}
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return m.Conn(conn), nil
}

// datagram counts a UDP datagram of a size without headers, to or from an address.
func (m *Meter) datagram(sent bool, addr string, size int) {
	n := uint64(size + udpHeader + ipHeader(addr))
	m.mu.Lock()
	defer m.mu.Unlock()
	if sent {
		m.ended.Sent += n
	} else {
		m.ended.Received += n
	}
}

// meteredConn is a connection that a Meter counts. The lock of the Meter guards the fields from bytes on.
type meteredConn struct {
	*net.TCPConn
	raw    syscall.RawConn
	meter  *Meter
	header int // of a segment, without time stamps
	bytes  NetworkBytes

	segments NetworkBytes // numbers of segments
	payload  NetworkBytes // bytes without headers
}

// update reads the counters of the kernel (tcp_get_info). With end, data that is still to be sent counts as sent.
func (c *meteredConn) update(end bool) {
	_ = c.raw.Control(func(fd uintptr) { // a closed connection keeps the last ones
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		// After a reset, the counters may be 0.
		if err != nil || info.Bytes_sent < c.payload.Sent || info.Bytes_received < c.payload.Received {
			return
		}
		c.payload = NetworkBytes{info.Bytes_sent, info.Bytes_received}
		header := uint64(c.header)
		if info.Options&timestampsOption != 0 {
			header += tcpTimestamps
		}
		// The kernel's numbers of segments have 32 bits.
		c.segments.Sent += uint64(info.Segs_out - uint32(c.segments.Sent))
		c.segments.Received += uint64(info.Segs_in - uint32(c.segments.Received))
		c.bytes = NetworkBytes{
			Sent:     info.Bytes_sent + header*c.segments.Sent,
			Received: info.Bytes_received + header*c.segments.Received,
		}
		if end {
			left := uint64(info.Notsent_bytes)
			c.bytes.Sent += left + header*(1+left/max(1, uint64(info.Snd_mss)))
		}
	})
}

// Close implements net.Conn.
func (c *meteredConn) Close() error {
	m := c.meter
	m.mu.Lock()
	if _, ok := m.open[c]; ok {
		c.update(true)
		m.ended.Sent += c.bytes.Sent
		m.ended.Received += c.bytes.Received
		delete(m.open, c)
	}
	m.mu.Unlock()
	return c.TCPConn.Close()
}

// ipHeader returns the size of the IP header of a packet to or from an address.
func ipHeader(addr string) int {
	if a, err := netip.ParseAddrPort(addr); err == nil && a.Addr().Unmap().Is6() {
		return ipv6Header
	}
	return ipv4Header
}
