package testcert

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
)

// WriteGossipKey writes a new gossip key into the directory, for the setting gossip-key-file. It returns the path.
func WriteGossipKey(dir string) (path string, err error) {
	var key [32]byte
	_, _ = rand.Read(key[:]) // never fails
	path = filepath.Join(dir, "gossip.key")
	if err := os.WriteFile(path, []byte(base64.StdEncoding.EncodeToString(key[:])+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write gossip key: %w", err)
	}
	return path, nil
}
