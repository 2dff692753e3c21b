package main

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"

	"mapsync/internal/testcert"
)

// connect lets nodes replicate with TLS and a gossip key. Each joins those before it: a node waits at its start for those that it
// joins.
func connect(dir string, nodes ...*node) error {
	ca, err := testcert.NewCA(dir, "ca")
	if err != nil {
		return err
	}
	var secret [32]byte
	_, _ = rand.Read(secret[:]) // never fails
	gossip := filepath.Join(dir, "gossip.key")
	if err := os.WriteFile(gossip, []byte(base64.StdEncoding.EncodeToString(secret[:])+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the gossip key: %w", err)
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
