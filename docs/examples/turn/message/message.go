// Package message builds and reads the STUN messages of a TURN client, as far as the server rebuilds its
// state with them.
package message

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/pion/stun/v3"
)

// Credentials sign requests. The zero value does not sign.
type Credentials struct {
	Username, Password string
	Realm, Nonce       string
}

// Request returns a request with these attributes, signed by c. Its transaction id is random.
func (c *Credentials) Request(method stun.Method, attributes ...stun.Setter) (*stun.Message, error) {
	setters := append([]stun.Setter{stun.TransactionID, stun.NewType(method, stun.ClassRequest)}, attributes...)
	if c.Nonce != "" {
		setters = append(setters, stun.NewUsername(c.Username), stun.NewRealm(c.Realm), stun.NewNonce(c.Nonce),
			stun.NewLongTermIntegrity(c.Username, c.Realm, c.Password))
	}
	m, err := stun.Build(append(setters, stun.Fingerprint)...)
	if err != nil {
		return nil, fmt.Errorf("build %s request: %w", method, err)
	}
	return m, nil
}

// Challenge takes realm and nonce from a response that requests credentials or another nonce. It
// reports whether m is such a response.
func (c *Credentials) Challenge(m *stun.Message) bool {
	var code stun.ErrorCodeAttribute
	if code.GetFrom(m) != nil || code.Code != stun.CodeUnauthorized && code.Code != stun.CodeStaleNonce {
		return false
	}
	var realm stun.Realm
	var nonce stun.Nonce
	if realm.GetFrom(m) != nil || nonce.GetFrom(m) != nil {
		return false
	}
	c.Realm, c.Nonce = realm.String(), nonce.String()
	return true
}

// Transport requests an allocation for UDP.
func Transport() stun.Setter {
	return stun.RawAttribute{Type: stun.AttrRequestedTransport, Value: []byte{17, 0, 0, 0}}
}

// Lifetime requests a lifetime, in whole seconds. Parts of a second count as a second.
func Lifetime(d time.Duration) stun.Setter {
	seconds := uint32((d + time.Second - 1) / time.Second)
	return stun.RawAttribute{Type: stun.AttrLifetime, Value: binary.BigEndian.AppendUint32(nil, seconds)}
}

// Channel is the number of a channel.
func Channel(number uint16) stun.Setter {
	return stun.RawAttribute{Type: stun.AttrChannelNumber, Value: binary.BigEndian.AppendUint32(nil, uint32(number)<<16)}
}

// Peer is the address of a peer.
type Peer netip.AddrPort

// AddTo adds the address to m.
func (p Peer) AddTo(m *stun.Message) error {
	a := netip.AddrPort(p)
	return stun.XORMappedAddress{IP: a.Addr().AsSlice(), Port: int(a.Port())}.AddToAs(m, stun.AttrXORPeerAddress)
}

// LifetimeOf returns the lifetime in a response.
func LifetimeOf(m *stun.Message) (time.Duration, bool) {
	v, err := m.Get(stun.AttrLifetime)
	if err != nil || len(v) != 4 {
		return 0, false
	}
	return time.Duration(binary.BigEndian.Uint32(v)) * time.Second, true
}

// ChannelOf returns the number of the channel in a request.
func ChannelOf(m *stun.Message) (uint16, bool) {
	v, err := m.Get(stun.AttrChannelNumber)
	if err != nil || len(v) != 4 {
		return 0, false
	}
	return binary.BigEndian.Uint16(v), true
}

// PeersOf returns the IPv4 addresses of the peers in a request.
func PeersOf(m *stun.Message) (peers []netip.AddrPort) {
	_ = m.ForEach(stun.AttrXORPeerAddress, func(m *stun.Message) error { // stops at a malformed address
		a, err := addressOf(m, stun.AttrXORPeerAddress)
		if err == nil {
			peers = append(peers, a)
		}
		return err
	})
	return peers
}

// RelayOf returns the relay address in a response.
func RelayOf(m *stun.Message) (netip.AddrPort, bool) {
	a, err := addressOf(m, stun.AttrXORRelayedAddress)
	return a, err == nil
}

func addressOf(m *stun.Message, kind stun.AttrType) (netip.AddrPort, error) {
	var a stun.XORMappedAddress
	if err := a.GetFromAs(m, kind); err != nil {
		return netip.AddrPort{}, err
	}
	ip, ok := netip.AddrFromSlice(a.IP)
	if !ok || !ip.Unmap().Is4() {
		return netip.AddrPort{}, fmt.Errorf("%s is not an IPv4 address", a.IP)
	}
	return netip.AddrPortFrom(ip.Unmap(), uint16(a.Port)), nil
}

// AddrPort returns the IPv4 address and port of a UDP address, or the zero value.
func AddrPort(a net.Addr) netip.AddrPort {
	u, ok := a.(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	p := u.AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}
