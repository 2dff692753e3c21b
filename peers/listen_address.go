package peers

import (
	"fmt"
	"log"
	"net/netip"

	"github.com/hashicorp/memberlist"
)

// addresses parses the gossip addresses. advertise is the zero value if it follows from the bind
// address.
func (o Options) addresses() (bind, advertise netip.AddrPort, err error) {
	bind, err = parseGossipAddr(o.BindAddr)
	if err != nil {
		return bind, advertise, fmt.Errorf("gossip address: %w", err)
	}
	if o.AdvertiseAddr == "" {
		if bind.Addr().IsUnspecified() {
			return bind, advertise, fmt.Errorf("gossip address %s is a wildcard: set the address to advertise to the other nodes", o.BindAddr)
		}
		return bind, advertise, nil
	}
	advertise, err = parseGossipAddr(o.AdvertiseAddr)
	if err == nil {
		err = checkDialable(o.AdvertiseAddr)
	}
	if err != nil {
		return bind, advertise, fmt.Errorf("advertised gossip address: %w", err)
	}
	return bind, advertise, nil
}

// parseGossipAddr parses an IP:port. It refuses host names, because memberlist silently treats them as
// a wildcard.
func parseGossipAddr(addr string) (netip.AddrPort, error) {
	host, port, err := splitPort(addr)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if host == "" {
		return netip.AddrPortFrom(netip.IPv6Unspecified(), port), nil
	}
	ip, err := netip.ParseAddr(host)
	if err != nil || ip.Zone() != "" {
		return netip.AddrPort{}, fmt.Errorf("address %q has no plain IP address", addr)
	}
	return netip.AddrPortFrom(ip, port), nil
}

// bindAttempts is the number of attempts to find a free port. The port must be free for both TCP and
// UDP, but the kernel guarantees only the first.
const bindAttempts = 10

func listen(bind netip.AddrPort, logger *log.Logger) (*memberlist.NetTransport, error) {
	conf := &memberlist.NetTransportConfig{
		BindAddrs: []string{bind.Addr().String()},
		BindPort:  int(bind.Port()),
		Logger:    logger,
	}
	if bind.Addr() == netip.IPv6Unspecified() {
		// An empty address binds both address families. It also works where IPv6 is disabled.
		conf.BindAddrs[0] = ""
	}
	attempts := 1
	if bind.Port() == 0 {
		attempts = bindAttempts
	}
	var err error
	for range attempts {
		var t *memberlist.NetTransport
		if t, err = memberlist.NewNetTransport(conf); err == nil {
			return t, nil
		}
	}
	return nil, err
}
