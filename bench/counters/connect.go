package main

import "mapsync/internal/testcert"

// connect lets nodes replicate with TLS and a gossip key. Each joins those before it: a node waits at its start for those that it
// joins.
func connect(dir string, nodes ...*node) error {
	ca, err := testcert.NewCA(dir, "ca")
	if err != nil {
		return err
	}
	gossip, err := testcert.WriteGossipKey(dir)
	if err != nil {
		return err
	}
	for i, n := range nodes {
		pair, err := ca.Issue(n.name, testcert.Options{})
		if err != nil {
			return err
		}
		n.args = append(n.args, "--gossip-key-file", gossip, "--tls-cert", pair.CertFile, "--tls-key", pair.KeyFile, "--tls-ca", pair.CAFile)
		for _, other := range nodes[:i] {
			n.args = append(n.args, "--join", other.address+":7946")
		}
	}
	return nil
}
