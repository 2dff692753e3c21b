package daemon

import (
	"errors"
	"fmt"

	"mapsync/syncd/config"
)

// checkExposure returns an error if the ports for peers would accept programs without a proof of their identity, unless the
// setting insecure allows this. A loopback address does not protect them: every user of the host reaches it.
func checkExposure(c *config.Config) error {
	if c.Insecure || c.Standalone() {
		return nil
	}
	var errs []error
	if !c.TLS() {
		errs = append(errs, fmt.Errorf("grpc-listen %s: refuse to serve peers without encryption: every program that reaches the port, "+
			"also one of another user of this host, could read and change the replicated maps; "+
			"set tls-cert, tls-key and tls-ca (scripts/make-credentials creates them), or allow this with insecure: true", c.GRPCListen))
	}
	if c.GossipKeyFile == "" {
		errs = append(errs, fmt.Errorf("gossip-listen %s: refuse gossip without encryption: every program that reaches the port, "+
			"also one of another user of this host, could add and remove nodes; "+
			"set gossip-key-file (scripts/make-credentials creates it), or allow this with insecure: true", c.GossipListen))
	}
	return errors.Join(errs...)
}
