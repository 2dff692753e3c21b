package peers

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/hashicorp/memberlist"
)

// transport is memberlist's transport with dials and conversations that end
// with a context: the library's own cannot be interrupted, and would hold up a
// shutdown for as long as a silent peer likes.
type transport struct {
	*memberlist.NetTransport
	ctx context.Context
}

// DialTimeout implements memberlist.Transport.
func (t *transport) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	return t.DialAddressTimeout(memberlist.Address{Addr: addr}, timeout)
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (t *transport) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	dialer := net.Dialer{Timeout: timeout}
	conn, err := dialer.DialContext(t.ctx, "tcp", a.Addr)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(t.ctx, func() { _ = conn.Close() })
	return &dialedConn{Conn: conn, stop: stop}, nil
}

// dialedConn lets go of its context when it is closed.
type dialedConn struct {
	net.Conn
	stop func() bool
}

func (c *dialedConn) Close() error {
	c.stop()
	return c.Conn.Close()
}

// isOwnAddr reports whether ip is an address of this host.
func isOwnAddr(ip netip.Addr) bool {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	for _, addr := range addrs {
		prefix, err := netip.ParsePrefix(addr.String())
		if err == nil && prefix.Addr().Unmap() == ip.Unmap() {
			return true
		}
	}
	return false
}
