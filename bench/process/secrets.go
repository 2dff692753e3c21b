package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"mapsync/internal/testcert"
)

// secrets lets the daemons that this process starts trust each other. They exist only in memory.
type secrets struct {
	ca        *testcert.CA
	gossipKey []byte // content of the file
}

// sharedSecrets returns the secrets of all daemons of this process.
var sharedSecrets = sync.OnceValues(newSecrets)

func newSecrets() (s secrets, err error) {
	dir, err := os.MkdirTemp("", "secrets")
	if err != nil {
		return s, fmt.Errorf("create directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if s.ca, err = testcert.NewCA(dir, "ca"); err != nil {
		return s, err
	}
	file, err := testcert.WriteGossipKey(dir)
	if err != nil {
		return s, err
	}
	s.gossipKey, err = os.ReadFile(file)
	return s, err
}

// secure writes the secrets for the daemon into its directory, and sets mutual TLS and encrypted gossip, unless the daemon has
// certificates.
func (s *Syncd) secure() (err error) {
	if s.Config.TLS() {
		return nil
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("secure syncd %s: %w", s.Config.NodeName, err)
		}
	}()
	shared, err := sharedSecrets()
	if err != nil {
		return err
	}
	ca, err := shared.ca.CopyTo(s.dir)
	if err != nil {
		return err
	}
	pair, err := ca.Issue(s.Config.NodeName, testcert.Options{})
	if err != nil {
		return err
	}
	c := &s.Config
	c.TLSCert, c.TLSKey, c.TLSCA, c.GossipKeyFile = pair.CertFile, pair.KeyFile, pair.CAFile, filepath.Join(s.dir, "gossip.key")
	return os.WriteFile(c.GossipKeyFile, shared.gossipKey, 0o600)
}
