package daemon

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"

	"mapsync/peers"
	"mapsync/syncd/config"
	"mapsync/syncd/replicate"
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

func openCredentials(c *config.Config, log *slog.Logger) (*peers.Credentials, error) {
	options := credentialsOptions(c)
	options.Logger = log
	if !c.TLS() {
		log.Warn("streams are not encrypted, tls-cert is not set", "insecure", c.Insecure)
		return peers.Insecure(options), nil
	}
	return peers.NewCredentials(options)
}

func credentialsOptions(c *config.Config) peers.CredentialsOptions {
	return peers.CredentialsOptions{
		CertFile: c.TLSCert, KeyFile: c.TLSKey, CAFile: c.TLSCA, CRLFile: c.TLSCRL, NodeName: c.NodeName,
		AllowedNames: c.AllowedNames, Observers: c.Observers,
	}
}

// access returns which nodes may read and write a map, according to read-from and write-from.
func (d *Daemon) access(name string) replicate.Access {
	match := func(entries []string) func(string) bool {
		patterns := config.AccessOf(entries, name)
		if patterns == nil {
			return nil
		}
		return func(node string) bool { return peers.MatchName(patterns, node) }
	}
	c := d.accessConfig.Load()
	return replicate.Access{Read: match(c.ReadFrom), Write: match(c.WriteFrom)}
}

// authenticate returns the identity and the rights that the caller of an incoming stream has
// proved.
func (d *Daemon) authenticate(ctx context.Context, node string) (replicate.Caller, error) {
	id, err := d.credentials.Identify(ctx, node)
	return replicate.Caller{Certificate: id.Certificate, Replica: id.Replica, Observer: id.Observer, Until: id.Until}, err
}

// readableByOthers reports whether users other than the owner and the group of a file can read it. syncd
// usually runs with the group of its files.
func readableByOthers(info fs.FileInfo) bool { return info.Mode().Perm()&0o004 != 0 }

// maxGossipKeyFile is the maximum size of the gossip key file in bytes.
const maxGossipKeyFile = 64 << 10

// readGossipKeys reads one base64 key per line. It skips empty lines and lines that begin with #.
// It returns nil if path is empty.
func readGossipKeys(path string, log *slog.Logger) ([][]byte, error) {
	if path == "" {
		log.Warn("gossip is not encrypted, gossip-key-file is not set")
		return nil, nil
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read gossip keys: %w", err)
	case info.Mode().Perm()&0o022 != 0:
		return nil, fmt.Errorf("gossip key file %s can be written by others (mode %04o): chmod 600 it", path, info.Mode().Perm())
	case readableByOthers(info):
		log.Warn("gossip key file is readable by other users", "file", path, "mode", info.Mode().Perm().String())
	}
	data, err := readRegularFile(path, maxGossipKeyFile, 0)
	if err != nil {
		return nil, fmt.Errorf("read gossip keys: %w", err)
	}
	var keys [][]byte
	for n, line := range strings.Split(string(data), "\n") {
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
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s holds no gossip key: write one with `head -c 32 /dev/urandom | base64`", path)
	}
	return keys, nil
}
