package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pion/stun/v3"
	"github.com/pion/turn/v4"

	"mapsync/docs/examples/turn/message"
	"mapsync/docs/examples/turn/offload"
	"mapsync/docs/examples/turn/server"
)

// firstChannel is the number of the first channel of pion's client.
const firstChannel = 0x4000

// client is pion's client with one allocation, and a channel to each peer.
type client struct {
	socket      *countingConn
	turn        *turn.Client
	relay       net.PacketConn
	credentials message.Credentials // with the first server's nonce, until another server returns its own
	first       uint32              // channel of the first peer, among those of all clients
	peers       []*net.UDPAddr
	permitted   atomic.Uint64 // datagrams of the permitted peer
	corrupt     atomic.Uint64
	answers     chan payload // of all clients
}

// countingConn counts the data that the client sends and receives on each channel, as seen on the wire.
type countingConn struct {
	*net.UDPConn
	mu             sync.Mutex
	sent, received map[uint16]offload.Counters // by channel; only Up in sent, only Down in received
}

const (
	firstPause   = 10 * time.Millisecond // between two datagrams on a channel that is not bound
	lastPause    = 5 * time.Second
	repeatAfter  = 500 * time.Millisecond // pion repeats a request after this time, then after longer ones
	fullLifetime = 10 * time.Minute
	sharedSecret = "a secret of both servers"
)

func newCountingConn(n *network) (c *countingConn, err error) {
	c = &countingConn{sent: make(map[uint16]offload.Counters), received: make(map[uint16]offload.Counters)}
	err = n.clients.Do(func() (err error) { c.UDPConn, err = listen(netip.AddrPortFrom(clientAddr, 0)); return err })
	return c, err
}

// channelData returns channel and length of the data in a datagram.
func channelData(p []byte) (number uint16, length int, ok bool) {
	if len(p) < 4 || p[0]&0xc0 != 0x40 {
		return 0, 0, false
	}
	return uint16(p[0])<<8 | uint16(p[1]), int(p[2])<<8 | int(p[3]), true
}

// WriteTo implements net.PacketConn.
func (c *countingConn) WriteTo(p []byte, to net.Addr) (int, error) {
	if number, length, ok := channelData(p); ok {
		c.mu.Lock()
		s := c.sent[number]
		s.UpPackets, s.UpBytes = s.UpPackets+1, s.UpBytes+uint64(length)
		c.sent[number] = s
		c.mu.Unlock()
	}
	return c.UDPConn.WriteTo(p, to)
}

// ReadFrom implements net.PacketConn.
func (c *countingConn) ReadFrom(p []byte) (int, net.Addr, error) {
	n, from, err := c.UDPConn.ReadFrom(p)
	if number, length, ok := channelData(p[:n]); ok && err == nil {
		c.mu.Lock()
		r := c.received[number]
		r.DownPackets, r.DownBytes = r.DownPackets+1, r.DownBytes+uint64(length)
		c.received[number] = r
		c.mu.Unlock()
	}
	return n, from, err
}

// counters returns what the client has sent and received on a channel.
func (c *countingConn) counters(number uint16) offload.Counters {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, r := c.sent[number], c.received[number]
	return offload.Counters{UpPackets: s.UpPackets, UpBytes: s.UpBytes, DownPackets: r.DownPackets, DownBytes: r.DownBytes}
}

// newClient creates an allocation. It opens no channel.
func newClient(n *network, name string, first uint32, peers []*net.UDPAddr, answers chan payload) (_ *client, err error) {
	c := &client{first: first, peers: peers, answers: answers}
	if c.socket, err = newCountingConn(n); err != nil {
		return nil, fmt.Errorf("open socket of client %s: %w", name, err)
	}
	password := server.Password([]byte(sharedSecret), name)
	c.credentials = message.Credentials{Username: name, Password: password}
	c.turn, err = turn.NewClient(&turn.ClientConfig{
		TURNServerAddr: service.String(), Username: name, Password: password, Conn: c.socket, RTO: repeatAfter,
	})
	if err == nil {
		err = c.turn.Listen()
	}
	if err == nil {
		c.relay, err = c.turn.Allocate()
	}
	if err == nil {
		err = c.challenge()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("allocate for client %s: %w", name, err), c.close())
	}
	go c.read()
	return c, nil
}

// challenge requests realm and nonce.
func (c *client) challenge() error {
	r, err := c.exchange(stun.MethodRefresh)
	if err == nil && !c.credentials.Challenge(r) {
		err = errors.New("the server returned no nonce")
	}
	return err
}

// read checks the data from peers.
func (c *client) read() {
	b := make([]byte, 2048)
	for {
		n, from, err := c.relay.ReadFrom(b)
		if err != nil {
			return
		}
		got, err := readPayload(b[:n])
		a := message.AddrPort(from)
		switch {
		case err == nil && a.Addr() == permittedAddr:
			c.permitted.Add(1)
		case err != nil || !got.answer || c.peerOf(got.channel) != a:
			c.corrupt.Add(1)
		default:
			c.answers <- got
		}
	}
}

// peerOf returns the address of the peer of one of this client's channels.
func (c *client) peerOf(channel uint32) netip.AddrPort {
	if i := int(channel) - int(c.first); i >= 0 && i < len(c.peers) {
		return message.AddrPort(c.peers[i])
	}
	return netip.AddrPort{}
}

// open opens the channels: pion's client binds one at the first datagram to a peer. Until it is bound, data
// goes in indications. Peers do not answer this data.
func (c *client) open(limit time.Duration) error {
	if err := c.turn.CreatePermission(net.UDPAddrFromAddrPort(netip.AddrPortFrom(permittedAddr, firstPeerPort))); err != nil {
		return fmt.Errorf("create permission: %w", err)
	}
	end := time.Now().Add(limit)
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		waiting := 0
		for i := range c.peers {
			if c.socket.counters(firstChannel+uint16(i)).UpPackets > 0 {
				continue
			}
			if err := c.send(i, 0); err != nil {
				return err
			}
			waiting++
		}
		switch {
		case waiting == 0:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("%d channels of %s are not bound after %s", waiting, c.credentials.Username, limit)
		}
		time.Sleep(pause)
	}
}

// send sends payload number on the channel to peer i.
func (c *client) send(i int, number uint32) error {
	_, err := c.relay.WriteTo(payload{channel: c.first + uint32(i), number: number}.bytes(), c.peers[i])
	if err != nil {
		return fmt.Errorf("send on channel %d of %s: %w", i, c.credentials.Username, err)
	}
	return nil
}

// exchange returns the response to a request.
func (c *client) exchange(method stun.Method, attributes ...stun.Setter) (*stun.Message, error) {
	m, err := c.credentials.Request(method, attributes...)
	if err != nil {
		return nil, err
	}
	r, err := c.turn.PerformTransaction(m, net.UDPAddrFromAddrPort(service), false)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	return r.Msg, nil
}

// request sends a request. A server that does not accept the nonce returns its own one, with which the client
// repeats the request once.
func (c *client) request(method stun.Method, attributes ...stun.Setter) error {
	for attempt := range 2 {
		r, err := c.exchange(method, attributes...)
		switch {
		case err != nil:
			return err
		case r.Type.Class == stun.ClassSuccessResponse:
			return nil
		case attempt == 1 || !c.credentials.Challenge(r):
			return fmt.Errorf("%s: refused: %s", method, r)
		}
	}
	return nil
}

// refresh refreshes the allocation and then all channels. It returns the number of those refreshed.
func (c *client) refresh() (channels int, err error) {
	if err := c.request(stun.MethodRefresh, message.Lifetime(fullLifetime)); err != nil {
		return 0, err
	}
	for i, p := range c.peers {
		err := c.request(stun.MethodChannelBind, message.Channel(firstChannel+uint16(i)), message.Peer(message.AddrPort(p)))
		if err != nil {
			return channels, err
		}
		channels++
	}
	return channels, nil
}

// shorten gives the allocation another lifetime. 0 ends it.
func (c *client) shorten(lifetime time.Duration) error {
	return c.request(stun.MethodRefresh, message.Lifetime(lifetime))
}

// close ends the client. Its last datagram is a request to end the allocation.
func (c *client) close() error {
	if c.relay != nil {
		_ = c.relay.Close() // stops the timers; an error would be that of the request
	}
	if c.turn != nil {
		c.turn.Close()
	}
	return c.socket.Close()
}
