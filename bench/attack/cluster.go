package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mapsync/internal/busy"
	"mapsync/internal/testcert"
	"mapsync/peers"
)

// Ports of every daemon. Each daemon has its own address.
const (
	gossipPort  = "7946"
	grpcPort    = "7947"
	metricsPort = "9746"
)

// Names that attackers use.
const (
	// notAllowedName has a certificate of the cluster's CA and is not in allowed-names.
	notAllowedName = "unknown"
	// unusedName is in allowed-names, and no node uses it.
	unusedName = "lb9"
	// mallory is a malicious member with a valid certificate.
	mallory = "mallory"
)

// gossipKey is the gossip key of the cluster.
var gossipKey = []byte("0123456789abcdef0123456789abcdef")

// cluster consists of three daemons, each with a map, and the CA that issues the attackers'
// certificates.
type cluster struct {
	dir   string
	syncd string
	ca    *testcert.CA
	nodes []*node
	base  [2]byte // of the addresses 127.base.base.n

	noteMu sync.Mutex
	notes  []string // of the present attack
}

// note adds figures of the present attack to its result.
func (c *cluster) note(text string) {
	c.noteMu.Lock()
	defer c.noteMu.Unlock()
	c.notes = append(c.notes, text)
}

// takeNotes returns the figures of the present attack, the last ones if it was made more than once.
func (c *cluster) takeNotes() string {
	c.noteMu.Lock()
	defer c.noteMu.Unlock()
	text := strings.Join(c.notes, "; ")
	c.notes = nil
	return text
}

// sortedList returns words in alphabetical order.
func sortedList(words []string) string {
	slices.Sort(words)
	return strings.Join(words, ", ")
}

// pinFolder is the folder below the directory of a cluster with the pins of all maps.
const pinFolder = "pins"

// mountPins mounts a BPF file system for the pins.
func (c *cluster) mountPins() error {
	dir := filepath.Join(c.dir, pinFolder)
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("create the folder of pins: %w", err)
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount a BPF file system (needs root): %w", err)
	}
	return nil
}

// unmountPins ends the mount of mountPins. It may be called more than once.
func (c *cluster) unmountPins() error {
	err := unix.Unmount(filepath.Join(c.dir, pinFolder), unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount the pins: %w", err)
	}
	return nil
}

// newCluster starts the daemons and waits until all are ready and hold all entries.
func newCluster(ctx context.Context, syncd, dir string) (_ *cluster, err error) {
	compressionBomb() // is built before the time of any attack starts
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
	if err := c.mountPins(); err != nil {
		return nil, err
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
	if err := c.awaitConverged(ctx); err != nil {
		return nil, fmt.Errorf("start the cluster: %w", err)
	}
	for _, n := range c.nodes {
		if n.idle, err = n.sample(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// address returns a loopback address that only this cluster uses. The daemons have the numbers 1 to
// 3; attackers use higher ones.
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

// credentials returns the credentials of a node with this name, issued by the cluster's CA.
func (c *cluster) credentials(name string) (*peers.Credentials, error) {
	pair, err := c.ca.Issue(name, testcert.Options{})
	if err != nil {
		return nil, err
	}
	return peers.NewCredentials(peers.CredentialsOptions{
		CertFile: pair.CertFile, KeyFile: pair.KeyFile, CAFile: pair.CAFile, NodeName: name,
	})
}

// close stops the daemons.
func (c *cluster) close() error {
	var errs []error
	for _, n := range c.nodes {
		errs = append(errs, n.close())
	}
	return errors.Join(append(errs, c.unmountPins())...)
}

// awaitConverged waits until every daemon is ready and every map holds exactly the entries that all
// load balancers wrote under their keys. An error has the live nodes that each daemon sees.
func (c *cluster) awaitConverged(ctx context.Context) error {
	err := eventually(ctx, recovery, func() error {
		var errs []error
		for _, n := range c.nodes {
			errs = append(errs, n.ready(ctx), n.checkContent(c.nodes))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		err = fmt.Errorf("%w; live nodes: %s", err, c.members(ctx))
	}
	return err
}

// members lists the live nodes that each daemon sees.
func (c *cluster) members(ctx context.Context) string {
	var text strings.Builder
	for _, n := range c.nodes {
		fmt.Fprintf(&text, "[%s:", n.name)
		s, err := n.status(ctx)
		if err != nil {
			fmt.Fprintf(&text, " %v", err)
		}
		for i := range s.Peers {
			fmt.Fprintf(&text, " %s", s.Peers[i].Node)
		}
		text.WriteByte(']')
	}
	return text.String()
}

// eventually calls check until it returns nil. After limit, which is longer on a busy machine, it returns the last error of check.
func eventually(ctx context.Context, limit time.Duration, check func() error) error {
	for began := time.Now(); ; {
		err := check()
		if err == nil {
			return nil
		}
		if took := time.Since(began); took > limit && took > busy.Lengthened(limit) {
			return fmt.Errorf("not within %s: %w", took.Round(time.Second), err)
		}
		if !sleep(ctx, 50*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// sleep waits for d. It returns false if the context ends first.
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
