package config

import (
	"net"
	"net/netip"
)

// Standalone reports whether the node replicates with no other node: its settings have neither credentials nor insecure, and
// name no peer, no observer, and no address that other hosts reach. A standalone node opens no port for peers.
func (c *Config) Standalone() bool {
	_, expected := c.Expected()
	return !c.TLS() && !c.Insecure && c.GossipKeyFile == "" && len(c.Join)+len(c.Observers)+expected == 0 &&
		onLoopback(c.GossipListen) && onLoopback(c.GossipAdvertise) && onLoopback(c.GRPCListen) && onLoopback(c.GRPCAdvertise)
}

// onLoopback reports whether addr (HOST:PORT) is not set, or no other host reaches it. A host name except localhost may resolve to
// another address later.
func onLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if addr == "" || err == nil && host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
