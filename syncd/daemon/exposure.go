package daemon

import (
	"errors"
	"fmt"

	"mapsync/peers"
	"mapsync/syncd/config"
)

// checkExposure returns an error if peers can reach this node on an address other than loopback
// without encryption, unless the setting insecure allows this.
func checkExposure(c *config.Config) error {
	gossipSecured := c.GossipKeyFile != ""
	var errs []error
	for _, a := range []struct {
		setting, addr string
		secured       bool
	}{
		{"gossip-listen", c.GossipListen, gossipSecured},
		{"gossip-advertise", c.GossipAdvertise, gossipSecured},
		{"grpc-listen", c.GRPCListen, c.TLS()},
		{"grpc-advertise", c.GRPCAdvertise, c.TLS()},
	} {
		if a.addr == "" {
			continue
		}
		if err := peers.CheckExposure(a.addr, a.secured, c.Insecure); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", a.setting, err))
		}
	}
	return errors.Join(errs...)
}
