package daemon

import (
	"encoding/base64"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"

	"mapsync/peers"
)

// readableByOthers reports whether users other than the owner and the group of a file can read it. syncd
// usually runs with the group of its files.
func readableByOthers(info fs.FileInfo) bool { return info.Mode().Perm()&0o004 != 0 }

// maxGossipKeyFile is the maximum size of the gossip key file in bytes.
const maxGossipKeyFile = 64 << 10

// readGossipKeys reads one base64 key per line. It skips empty lines and lines that begin with #.
// It returns nil if path is empty.
func readGossipKeys(path string, log *slog.Logger) ([][]byte, error) {
	if path == "" {
		log.Warn("gossip is not encrypted, gossip-key-file is not set",
			"hint", "set gossip-key-file on all nodes and restart syncd")
		return nil, nil
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read gossip keys: %w", err)
	case info.Mode().Perm()&0o022 != 0:
		return nil, fmt.Errorf("gossip key file %s can be written by others (mode %04o): chmod 600 it", path, info.Mode().Perm())
	case readableByOthers(info):
		log.Warn("gossip key file is readable by other users", "file", path, "mode", info.Mode().Perm().String(), "hint", "chmod 600 it")
	}
	data, err := readRegularFile(path, maxGossipKeyFile, 0)
	if err != nil {
		return nil, fmt.Errorf("read gossip keys: %w", err)
	}
	keys, err := parseGossipKeys(path, string(data))
	if err == nil && len(keys) == 0 {
		err = fmt.Errorf("%s holds no gossip key: write one with `head -c 32 /dev/urandom | base64`", path)
	}
	return keys, err
}

// parseGossipKeys returns the keys in the text of the file path.
func parseGossipKeys(path, text string) (keys [][]byte, err error) {
	for n, line := range strings.Split(text, "\n") {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		key, err := base64.StdEncoding.DecodeString(line)
		if err == nil {
			err = peers.CheckGossipKey(key)
		}
		if err != nil {
			return nil, fmt.Errorf("gossip key in %s, line %d: %w; write one with `head -c 32 /dev/urandom | base64`", path, n+1, err)
		}
		keys = append(keys, key)
	}
	return keys, nil
}
