package server

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// relayAddresses opens the sockets of relay addresses. An allocation that is rebuilt gets its previous
// port, any other one a port that the kernel selects.
type relayAddresses struct {
	address netip.Addr
	conn    *conn
}

// Validate implements turn.RelayAddressGenerator.
func (r *relayAddresses) Validate() error { return nil }

// AllocatePacketConn implements turn.RelayAddressGenerator.
func (r *relayAddresses) AllocatePacketConn(network string, requestedPort int) (net.PacketConn, net.Addr, error) {
	if port := r.conn.fedPort(); port != 0 {
		requestedPort = port
	}
	c, err := net.ListenUDP(network, net.UDPAddrFromAddrPort(netip.AddrPortFrom(r.address, uint16(requestedPort))))
	if err != nil {
		return nil, nil, fmt.Errorf("open relay address: %w", err)
	}
	return c, c.LocalAddr(), nil
}

// AllocateConn implements turn.RelayAddressGenerator.
func (r *relayAddresses) AllocateConn(string, int) (net.Conn, net.Addr, error) {
	return nil, nil, errors.New("open relay address: TCP is not supported")
}
