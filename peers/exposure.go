package peers

import (
	"fmt"
	"net/netip"
)

// CheckExposure returns an error if other hosts can reach an unsecured addr (host:port). A listener is
// secured by TLS or by a gossip key. insecure permits an unsecured addr. Loopback addresses and
// "localhost" are always allowed. Any other host name is refused, because it may resolve to another
// address later.
func CheckExposure(addr string, secured, insecure bool) error {
	host, _, err := splitPort(addr)
	if err != nil {
		return err
	}
	if secured || insecure || host == "localhost" {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.Unmap().IsLoopback() {
		return nil
	}
	return fmt.Errorf("refuse to use %s without encryption: any host that reaches it can read and change the replicated maps; "+
		"configure TLS and a gossip key, use a loopback address, or allow it with --insecure", addr)
}
