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

// MaxGossipConnections is the maximum number of open incoming gossip connections.
const MaxGossipConnections = 64

// Limits for gossip from senders that are not yet authenticated. memberlist reads up to 20 MiB from
// each of any number of connections before it decrypts them. A membership of 1,000 nodes takes about
// 150 KiB.
const (
	gossipPending    = MaxGossipConnections
	gossipPerAddr    = 16
	gossipBytes      = 1 << 20
	gossipSharedSize = 8 << 20
	// gossipLifetimeFactor is the maximum duration of an exchange, as a multiple of memberlist's time
	// limit.
	gossipLifetimeFactor = 2
)

// transport is memberlist's transport with three additions: the end of a context ends dials and
// connections, incoming connections are bounded, and bytes are counted. memberlist's own transport cannot be interrupted.
// An unresponsive peer could delay a shutdown indefinitely.
type transport struct {
	*memberlist.NetTransport
	ctx     context.Context
	limiter *Limiter
	keyring *memberlist.Keyring // nil: gossip is not encrypted
	label   string              // the name of the cluster
	// encrypted is called for each packet that a node without a gossip key takes for an encrypted one.
	encrypted func(from net.Addr)
	meter     Meter
	streams   chan net.Conn
	packets   chan *memberlist.Packet
	// closing ends deliveries to memberlist. drained ends the wait for connections that NetTransport
	// still accepts.
	closing, drained chan struct{}
	closeOnce        sync.Once
	wg               sync.WaitGroup
}

// newTransport bounds the connections and packets that inner accepts for a Cluster. Shutdown ends its goroutines.
func newTransport(ctx context.Context, inner *memberlist.NetTransport, c *Cluster) *transport {
	t := &transport{
		NetTransport: inner, ctx: ctx, limiter: c.limiter, keyring: c.keyring, label: c.opts.Cluster,
		encrypted: func(from net.Addr) { c.reportKeyMismatch(peerEncrypted, hostOf(from.String())) },
		streams:   make(chan net.Conn), packets: make(chan *memberlist.Packet), closing: make(chan struct{}), drained: make(chan struct{}),
	}
	t.wg.Go(t.acceptStreams)
	t.wg.Go(t.filterPackets)
	return t
}

// gossipLimits returns the limits of a gossip listener. timeout is memberlist's time limit for one
// message.
func gossipLimits(timeout time.Duration) Limits {
	return Limits{
		Name: "gossip", Pending: gossipPending, PendingPerAddr: gossipPerAddr,
		Bytes: gossipBytes, SharedBytes: gossipSharedSize, MaxLifetime: gossipLifetimeFactor * timeout,
	}
}

// acceptStreams forwards accepted connections with their limits to memberlist.
func (t *transport) acceptStreams() {
	for {
		select {
		case conn := <-t.NetTransport.StreamCh():
			limited := t.limiter.add(t.meter.Conn(conn))
			select {
			case t.streams <- t.filterConn(limited, limited, false):
			case <-t.closing:
				_ = limited.Close()
			}
		case <-t.drained:
			return
		}
	}
}

// filterPackets forwards the packets that memberlist may decode.
func (t *transport) filterPackets() {
	for {
		select {
		case p := <-t.NetTransport.PacketCh():
			t.meter.datagram(false, p.From.String(), len(p.Buf))
			if !t.acceptsPacket(p) {
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

// WriteTo implements memberlist.Transport.
func (t *transport) WriteTo(b []byte, addr string) (time.Time, error) {
	return t.WriteToAddress(b, memberlist.Address{Addr: addr})
}

// WriteToAddress implements memberlist.NodeAwareTransport.
func (t *transport) WriteToAddress(b []byte, a memberlist.Address) (time.Time, error) {
	at, err := t.NetTransport.WriteToAddress(b, a)
	if err == nil {
		t.meter.datagram(true, a.Addr, len(b))
	}
	return at, err
}

// Shutdown implements memberlist.Transport.
func (t *transport) Shutdown() error {
	var err error
	t.closeOnce.Do(func() {
		close(t.closing)
		err = t.NetTransport.Shutdown() // waits until all accepted connections are taken
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
	conn = t.meter.Conn(conn)
	stop := context.AfterFunc(t.ctx, func() { _ = conn.Close() })
	// Gossip may contain any address as a node's address, so the data from dialled connections is
	// bounded too.
	return t.filterConn(&dialedConn{conn, stop}, io.LimitReader(conn, gossipBytes), true), nil
}

// dialedConn is a connection that the end of a context closes.
type dialedConn struct {
	net.Conn
	stop func() bool // detaches the connection from the context
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
