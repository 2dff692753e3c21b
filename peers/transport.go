package peers

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// MaxGossipConnections is how many incoming connections gossip has open at most.
const MaxGossipConnections = 64

// What gossip accepts before it knows the sender. The library reads up to 20 MiB
// of each of any number of connections before it decrypts them. A membership of
// 1,000 nodes takes about 150 KiB.
const (
	gossipPending    = MaxGossipConnections
	gossipPerAddr    = 16
	gossipBytes      = 1 << 20
	gossipSharedSize = 8 << 20
	// gossipLife is how many of the library's time limits an exchange may take.
	gossipLife = 2
)

// transport is memberlist's transport with dials and conversations that end
// with a context, and with incoming connections bounded: the library's own
// cannot be interrupted, and would hold up a shutdown for as long as a silent
// peer likes.
type transport struct {
	*memberlist.NetTransport
	ctx     context.Context
	limiter *Limiter
	ring    *memberlist.Keyring // nil: gossip is not encrypted
	streams chan net.Conn
	packets chan *memberlist.Packet
	// closing ends deliveries to the library, drained the wait for what inner
	// still accepts.
	closing, drained chan struct{}
	closeOnce        sync.Once
	wg               sync.WaitGroup
}

// newTransport bounds what inner accepts, in goroutines that Shutdown ends.
func newTransport(ctx context.Context, inner *memberlist.NetTransport, limiter *Limiter, ring *memberlist.Keyring) *transport {
	t := &transport{
		NetTransport: inner, ctx: ctx, limiter: limiter, ring: ring,
		streams: make(chan net.Conn), packets: make(chan *memberlist.Packet), closing: make(chan struct{}), drained: make(chan struct{}),
	}
	t.wg.Go(t.bound)
	t.wg.Go(t.filter)
	return t
}

// gossipLimits returns the bounds of a gossip listener, given the library's time
// limit for one message.
func gossipLimits(timeout time.Duration) Limits {
	return Limits{
		Name: "gossip", Pending: gossipPending, PendingPerAddr: gossipPerAddr,
		Bytes: gossipBytes, SharedBytes: gossipSharedSize, Life: gossipLife * timeout,
	}
}

// bound hands accepted connections on, with their limits.
func (t *transport) bound() {
	for {
		select {
		case conn := <-t.NetTransport.StreamCh():
			limited := t.limiter.add(conn)
			select {
			case t.streams <- newGuardedConn(limited, limited, t.ring, t.limiter):
			case <-t.closing:
				_ = limited.Close()
			}
		case <-t.drained:
			return
		}
	}
}

// filter hands packets on that the library may decode.
func (t *transport) filter() {
	for {
		select {
		case p := <-t.NetTransport.PacketCh():
			if !t.accepts(p) {
				continue
			}
			select {
			case t.packets <- p:
			case <-t.closing:
			}
		case <-t.drained:
			return
		}
	}
}

// PacketCh implements memberlist.Transport.
func (t *transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements memberlist.Transport.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

// Shutdown implements memberlist.Transport.
func (t *transport) Shutdown() error {
	var err error
	t.closeOnce.Do(func() {
		close(t.closing)
		err = t.NetTransport.Shutdown() // waits until what it accepted is taken
		close(t.drained)
		t.wg.Wait()
	})
	return err
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
	// Gossip can name any address as a node's: what answers there is bounded, too.
	return newGuardedConn(&dialedConn{conn, stop}, io.LimitReader(conn, gossipBytes), t.ring, t.limiter), nil
}

// dialedConn is a connection that the end of a context closes.
type dialedConn struct {
	net.Conn
	stop func() bool // ends the wait for that
}

// Close implements net.Conn.
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
