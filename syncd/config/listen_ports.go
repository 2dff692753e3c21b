package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// Listeners returns the TCP addresses at which a daemon with these settings listens, by setting.
// An empty address is not opened.
func (c *Config) Listeners() []Listener {
	metrics := Listener{"metrics-listen", c.MetricsListen}
	if c.Standalone() {
		return []Listener{metrics}
	}
	return []Listener{{"gossip-listen", c.GossipListen}, {"grpc-listen", c.GRPCListen}, metrics}
}

// Listener is an address HOST:PORT at which syncd listens, with its setting.
type Listener struct{ Setting, Addr string }

// validateListeners returns an error for each two settings that name one port.
func (c *Config) validateListeners() error {
	var errs []error
	list := c.Listeners()
	for i, l := range list {
		for _, other := range list[:i] {
			if l.overlaps(&other) {
				errs = append(errs, fmt.Errorf("%s %q has the port of %s %q: give each its own port", l.Setting, l.Addr, other.Setting, other.Addr))
			}
		}
	}
	return errors.Join(errs...)
}

// overlaps reports whether the kernel allows only one of two listeners: they have the same port, and the same host or all hosts.
func (l *Listener) overlaps(other *Listener) bool {
	host, port, err := net.SplitHostPort(l.Addr)
	otherHost, otherPort, otherErr := net.SplitHostPort(other.Addr)
	if err != nil || otherErr != nil || port != otherPort || port == "0" {
		return false
	}
	return host == otherHost || isWildcard(host) || isWildcard(otherHost)
}

func isWildcard(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "" || err == nil && ip.IsUnspecified()
}
