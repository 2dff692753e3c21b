package main

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
)

// peers answer the data of channels. Each has a socket of its own.
type peers struct {
	sockets   []*net.UDPConn
	permitted *net.UDPConn // sends to clients that have only a permission for it
	corrupt   atomic.Uint64

	mu     sync.Mutex
	relays map[uint32]netip.AddrPort // by channel: the relay address from which its first data came
	moved  int                       // data of a channel from another relay address
}

const firstPeerPort = 9000

func newPeers(n *network, count int) (*peers, error) {
	p := &peers{relays: make(map[uint32]netip.AddrPort)}
	err := n.peers.Do(func() error {
		for i := range count + 1 {
			to := netip.AddrPortFrom(peerAddr, uint16(firstPeerPort+i))
			if i == count {
				to = netip.AddrPortFrom(permittedAddr, firstPeerPort)
			}
			c, err := listen(to)
			if err != nil {
				return err
			}
			p.sockets = append(p.sockets, c)
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	p.permitted = p.sockets[count]
	for _, c := range p.sockets[:count] {
		go p.answer(c)
	}
	return p, nil
}

// listen opens a socket with room for the data of all channels at once.
func listen(a netip.AddrPort) (*net.UDPConn, error) {
	c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(a))
	if err != nil {
		return nil, err
	}
	const room = 4 << 20
	if err := c.SetReadBuffer(room); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// address returns the address of peer i.
func (p *peers) address(i int) *net.UDPAddr { return p.sockets[i].LocalAddr().(*net.UDPAddr) }

func (p *peers) answer(c *net.UDPConn) {
	b := make([]byte, 2048)
	for {
		n, from, err := c.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		got, err := readPayload(b[:n])
		if err != nil || got.answer {
			p.corrupt.Add(1)
			continue
		}
		p.check(got.channel, from)
		if got.number == 0 {
			continue // the channel is perhaps not bound: the server would relay the answer
		}
		got.answer = true
		_, _ = c.WriteToUDPAddrPort(got.bytes(), from) // a lost answer is a lost channel
	}
}

// check counts data that arrives from another relay address than before.
func (p *peers) check(channel uint32, relay netip.AddrPort) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first, known := p.relays[channel]
	if !known {
		p.relays[channel] = relay
	} else if first != relay {
		p.moved++
	}
}

func (p *peers) movedRelays() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.moved
}

func (p *peers) close() error {
	var errs []error
	for _, c := range p.sockets {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
