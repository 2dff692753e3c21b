package server

import (
	"errors"
	"iter"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/pion/stun/v3"

	"mapsync/docs/examples/turn/message"
)

// conn is the socket between clients and pion's server. It reports the requests that succeed, and
// feeds the server requests of its own, by which the server rebuilds allocations. Only the read loop of
// the server calls ReadFrom, handles the request, and calls WriteTo with the response, in this order.
// Other goroutines call WriteTo with data.
type conn struct {
	net.PacketConn
	succeeded func(request, response *stun.Message, client netip.AddrPort)
	// rebuild returns the requests to feed. The server has handled a request, and its response is set,
	// when the request after it is taken.
	rebuild func() iter.Seq[*fedRequest]

	// The other fields belong to the read loop.
	started bool                       // rebuild was called
	next    func() (*fedRequest, bool) // nil: nothing is fed
	fed     *fedRequest                // in progress
	request *stun.Message              // of a client, in progress
	from    netip.AddrPort             // its client
	held    []byte                     // first datagram in standby; handled after the rebuild
	heldBy  net.Addr
}

// fedRequest is a request that the server receives from this process.
type fedRequest struct {
	message   *stun.Message
	client    netip.AddrPort
	relayPort uint16        // for an allocation
	response  *stun.Message // nil: the server has not answered
}

// activate starts the rebuild, unless it was started before. Without it, the first datagram of a client
// does the same.
func (c *conn) activate() error {
	return c.SetReadDeadline(time.Now()) // ends the read in progress, or the next one
}

// ReadFrom returns the next request that is fed, or else the next datagram of a client.
func (c *conn) ReadFrom(p []byte) (int, net.Addr, error) {
	c.request = nil
	for {
		if r := c.nextFed(); r != nil {
			return copy(p, r.message.Raw), net.UDPAddrFromAddrPort(r.client), nil
		}
		if c.held != nil {
			n := copy(p, c.held)
			c.held = nil
			c.observe(p[:n], c.heldBy)
			return n, c.heldBy, nil
		}
		n, from, err := c.PacketConn.ReadFrom(p)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if err := c.SetReadDeadline(time.Time{}); err != nil {
				return 0, nil, err
			}
			c.start()
		case err != nil:
			return 0, nil, err
		case !c.started:
			c.held, c.heldBy = append([]byte{}, p[:n]...), from
			c.start()
		default:
			c.observe(p[:n], from)
			return n, from, nil
		}
	}
}

// start starts the rebuild, unless it was started before.
func (c *conn) start() {
	if !c.started {
		c.started = true
		c.next, _ = iter.Pull(c.rebuild())
	}
}

func (c *conn) nextFed() *fedRequest {
	c.fed = nil
	if c.next == nil {
		return nil
	}
	r, ok := c.next()
	if !ok {
		c.next = nil
		return nil
	}
	c.fed = r
	return r
}

// observe keeps the request of a client for its response.
func (c *conn) observe(p []byte, from net.Addr) {
	if !stun.IsMessage(p) {
		return
	}
	m := &stun.Message{Raw: append([]byte{}, p...)}
	if m.Decode() == nil && m.Type.Class == stun.ClassRequest {
		c.request, c.from = m, message.AddrPort(from)
	}
}

// WriteTo sends a datagram to a client, except for the response to a request that was fed.
func (c *conn) WriteTo(p []byte, to net.Addr) (int, error) {
	response := responseIn(p)
	if response == nil {
		return c.PacketConn.WriteTo(p, to)
	}
	if c.fed != nil && c.fed.message.TransactionID == response.TransactionID {
		c.fed.response = response
		c.report(c.fed.message, response, c.fed.client)
		return len(p), nil
	}
	if c.request != nil && c.request.TransactionID == response.TransactionID {
		c.report(c.request, response, c.from)
	}
	return c.PacketConn.WriteTo(p, to)
}

func (c *conn) report(request, response *stun.Message, client netip.AddrPort) {
	if response.Type.Class == stun.ClassSuccessResponse {
		c.succeeded(request, response, client)
	}
}

// responseIn returns the response in a datagram, or nil if it is data or an indication. Bit 8 of the
// message type is set in responses only.
func responseIn(p []byte) *stun.Message {
	if len(p) < 2 || p[0]&0xc1 != 0x01 {
		return nil
	}
	m := &stun.Message{Raw: append([]byte{}, p...)}
	if m.Decode() != nil {
		return nil
	}
	return m
}

// fedPort returns the port of the relay address for the request in progress. 0: any.
func (c *conn) fedPort() int {
	if c.fed == nil {
		return 0
	}
	return int(c.fed.relayPort)
}
