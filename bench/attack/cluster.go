package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"

	"mapsync/internal/testcert"
	"mapsync/peers"
)

// Ports of every daemon: each has an address of its own.
const (
	gossipPort  = "7946"
	grpcPort    = "7947"
	metricsPort = "9746"
)

// Names of those who attack.
const (
	// stranger has a certificate of the cluster's CA and is not among allowed-names.
	stranger = "stranger"
	// outsideName is among allowed-names, and no node has it.
	outsideName = "lb9"
	// mallory is a member with a valid certificate, and has bad intent.
	mallory = "mallory"
)

// gossipKey is the one of the cluster.
var gossipKey = []byte("0123456789abcdef0123456789abcdef")

// cluster is three daemons, each with a map, and the credentials of attackers.
type cluster struct {
	dir   string
	syncd string
	ca    *testcert.CA
	nodes []*node
	base  [2]byte // of addresses: 127.base.base.n
}

// newCluster starts the daemons and waits until all are ready and hold all entries.
func newCluster(ctx context.Context, syncd, dir string) (_ *cluster, err error) {
	bomb() // before any attack's time begins
	if err := prepare(); err != nil {
		return nil, err
	}
	pid := os.Getpid()
	c := &cluster{dir: dir, syncd: syncd, base: [2]byte{byte(1 + pid/250%250), byte(pid % 250)}}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	if c.ca, err = testcert.NewCA(dir, "ca"); err != nil {
		return nil, err
	}
	key := []byte(base64.StdEncoding.EncodeToString(gossipKey) + "\n")
	if err := os.WriteFile(filepath.Join(dir, "gossip.key"), key, 0o600); err != nil {
		return nil, fmt.Errorf("write gossip key: %w", err)
	}
	for i := range 3 {
		n, err := newNode(c, i+1)
		if err != nil {
			return nil, err
		}
		c.nodes = append(c.nodes, n)
	}
	for _, n := range c.nodes {
		if err := n.start(ctx); err != nil {
			return nil, err
		}
	}
	if err := c.settled(ctx, time.Minute); err != nil {
		return nil, fmt.Errorf("start the cluster: %w", err)
	}
	for _, n := range c.nodes {
		if n.idle, err = n.sample(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// address returns a loopback address of this cluster's own. Those of the daemons are 1
// to 3; attackers use higher ones.
func (c *cluster) address(n int) string {
	return fmt.Sprintf("127.%d.%d.%d", c.base[0], c.base[1], n)
}

// names returns the names of the daemons.
func (c *cluster) names() []string {
	names := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		names[i] = n.name
	}
	return names
}

// credentials returns those of a node of this name, issued by the cluster's CA.
func (c *cluster) credentials(name string) (*peers.Credentials, error) {
	pair, err := c.ca.Issue(name, testcert.Options{})
	if err != nil {
		return nil, err
	}
	return peers.NewCredentials(peers.CredentialsOptions{
		CertFile: pair.CertFile, KeyFile: pair.KeyFile, CAFile: pair.CAFile, NodeName: name,
	})
}

// close ends the daemons.
func (c *cluster) close() error {
	var errs []error
	for _, n := range c.nodes {
		errs = append(errs, n.close())
	}
	return errors.Join(errs...)
}

// settled waits until every daemon is ready and every map holds what all load balancers
// wrote, and nothing else of theirs.
func (c *cluster) settled(ctx context.Context, limit time.Duration) error {
	return eventually(ctx, limit, func() error {
		var errs []error
		for _, n := range c.nodes {
			errs = append(errs, n.ready(ctx), n.holds(c.nodes))
		}
		return errors.Join(errs...)
	})
}

// eventually calls check until it returns nil, and returns its last error when the time
// is over.
func eventually(ctx context.Context, limit time.Duration, check func() error) error {
	for end := time.Now().Add(limit); ; {
		err := check()
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("not within %s: %w", limit, err)
		}
		if !sleep(ctx, 50*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// sleep waits, and reports false when the context ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func newMap(name string) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: name, Type: ebpf.Hash, KeySize: keySize, ValueSize: valueSize, MaxEntries: maxEntries,
	})
	if err != nil {
		return nil, fmt.Errorf("create map %s: %w", name, err)
	}
	return m, nil
}
