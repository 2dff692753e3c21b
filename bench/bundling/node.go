package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"mapsync/docs/examples/bundling/trace"
	"mapsync/internal/netns"
	"mapsync/internal/testcert"
	"mapsync/internal/tool"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
)

// mapName is the name of the tracer's map in the cluster. servicePort is the port of the service under load.
const (
	mapName     = "flows"
	servicePort = 8080
)

// maxSums is the maximum number of sums of a node.
const maxSums = 4096

// cluster is two nodes, each with its own network namespace, on one kernel.
type cluster struct {
	nodes    [2]*node
	observer testcert.Pair
	dir, bpf string // bpf is a BPF filesystem
	example  string // path of the program of the example

	observed    map[string]trace.Sums // by the observer, after the restart
	done        trace.Sums            // in the sums of the first node
	connections uint64                // in the sums of both nodes
}

// node has a tracer, a syncd and a load.
type node struct {
	*netns.NS
	name, address string
	pins          string // of the tracer
	config        config.Config
	hooks         string
	interval      time.Duration // between two drains

	load, tracer, syncd *child
}

// newCluster returns a cluster in which only the loads run. The caller closes it, also after an error.
func newCluster(o *options) (_ *cluster, err error) {
	c := &cluster{example: o.example}
	if c.dir, err = os.MkdirTemp("", "bundling"); err != nil {
		return c, err
	}
	mount := filepath.Join(c.dir, "bpf")
	if err := os.Mkdir(mount, 0o700); err != nil {
		return c, err
	}
	if err := unix.Mount("bpf", mount, "bpf", 0, ""); err != nil {
		return c, fmt.Errorf("mount a BPF filesystem: %w", err)
	}
	c.bpf = mount
	ca, err := testcert.NewCA(c.dir, "ca")
	if err != nil {
		return c, err
	}
	if c.observer, err = ca.Issue("observer", testcert.Options{}); err != nil {
		return c, err
	}
	gossipKey, err := testcert.WriteGossipKey(c.dir)
	if err != nil {
		return c, err
	}
	for i, name := range []string{"a", "b"} {
		if c.nodes[i], err = c.newNode(o, name, fmt.Sprintf("10.77.0.%d", i+1), gossipKey, ca); err != nil {
			return c, err
		}
	}
	a, b := c.nodes[0], c.nodes[1]
	if err := netns.Veth(a.NS, "eth0", b.NS, "eth0"); err != nil {
		return c, err
	}
	for _, n := range c.nodes {
		err := errors.Join(n.Addr("eth0", n.address+"/24"), n.Up("eth0"), n.Sysctl("net.core.somaxconn", "65535"))
		if err != nil {
			return c, err
		}
		if n.load, err = startChild(roleLoad, n.Start, fmt.Sprintf("0.0.0.0:%d", servicePort)); err != nil {
			return c, err
		}
		if _, err := n.load.line(); err != nil {
			return c, err
		}
	}
	return c, nil
}

func (c *cluster) newNode(o *options, name, address, gossipKey string, ca *testcert.CA) (*node, error) {
	pair, err := ca.Issue(name, testcert.Options{})
	if err != nil {
		return nil, err
	}
	n := &node{name: name, address: address, pins: filepath.Join(c.bpf, name), hooks: o.hooks, interval: o.interval, config: config.Default()}
	if err := os.Mkdir(n.pins, 0o700); err != nil {
		return nil, err
	}
	state := filepath.Join(c.dir, name)
	if err := os.Mkdir(state, 0o700); err != nil {
		return nil, err
	}
	s := &n.config
	s.NodeName, s.Maps = name, []string{mapName + "=" + filepath.Join(n.pins, "flows")}
	s.DrainSumsMaps, s.DrainSumsMaxEntries = []string{mapName}, maxSums
	for _, field := range []string{"connections", "messages", "sent", "received"} {
		s.Fields = append(s.Fields, mapName+":"+field+"=sum")
	}
	s.Attach, s.ScanInterval, s.MaxScanInterval = o.attach, o.scanInterval, o.scanInterval
	s.GossipListen, s.GRPCListen, s.MetricsListen = address+":7946", address+":7947", ""
	s.Join, s.ExpectedPeers = []string{"10.77.0.1:7946", "10.77.0.2:7946"}, nil
	s.GossipKeyFile, s.TLSCert, s.TLSKey, s.TLSCA = gossipKey, pair.CertFile, pair.KeyFile, pair.CAFile
	s.Observers, s.SyncTimeout = []string{"observer"}, 2*time.Second
	s.StateDir, s.ControlSocket, s.PinDir = state, filepath.Join(state, "syncd.sock"), filepath.Join(c.bpf, name, "mapsync")
	s.LogLevel = "warn"
	n.NS, err = netns.New(name)
	return n, err
}

// close ends everything.
func (c *cluster) close() (err error) {
	for _, n := range c.nodes {
		if n == nil {
			continue
		}
		_, tracerErr := n.tracer.stop()
		_, syncdErr := n.syncd.stop()
		err = errors.Join(err, tracerErr, syncdErr)
		if n.load != nil {
			err = errors.Join(err, n.load.kill())
		}
		if n.NS != nil {
			err = errors.Join(err, n.Close())
		}
	}
	if c.bpf != "" {
		err = errors.Join(err, unix.Unmount(c.bpf, 0))
	}
	return errors.Join(err, os.RemoveAll(c.dir))
}

// runSyncd runs a daemon with settings in JSON.
func runSyncd(ctx context.Context, settings string) error {
	var c config.Config
	if err := json.Unmarshal([]byte(settings), &c); err != nil {
		return fmt.Errorf("read settings: %w", err)
	}
	level := slog.LevelWarn
	d, err := daemon.New(daemon.Options{Config: c, Version: "bench", Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))})
	if err != nil {
		return err
	}
	return d.Run(ctx)
}

// startTracer starts the tracer with a method, and returns its first line.
func (n *node) startTracer(method string) (first string, err error) {
	args := []string{"-method", method, "-hooks", n.hooks, "-interval", n.interval.String(), "-port", fmt.Sprint(servicePort)}
	if method == "bundle" {
		args = append(args, "-pin", n.pins)
	}
	if n.tracer, err = startChild(roleTrace, n.Start, args...); err != nil {
		return "", err
	}
	line, err := n.tracer.line()
	return strings.TrimSpace(string(line)), errors.Join(err, n.tracer.prefer())
}

// startSyncd starts syncd and waits until it follows the map.
func (n *node) startSyncd(ctx context.Context) error {
	settings, err := json.Marshal(n.config)
	if err != nil {
		return err
	}
	if n.syncd, err = startChild(roleSyncd, n.Start, string(settings)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute) // a busy host emulates the machine slowly
	defer cancel()
	for client := daemon.NewClient(n.config.ControlSocket); ; {
		r, err := client.Ready(ctx)
		if err == nil && r.Ready {
			return n.syncd.prefer()
		}
		if err := tool.Pause(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("wait until syncd %s is ready: %w, missing %q\n%s", n.name, err, r.Missing, n.syncd.log.String())
		}
	}
}

// checkSums fails if syncd misses what was drained.
func (n *node) checkSums(ctx context.Context) error {
	status, err := daemon.NewClient(n.config.ControlSocket).Status(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(status.Maps, func(m daemon.MapStatus) bool { return m.Name == mapName })
	if i < 0 || status.Maps[i].DrainSums == nil {
		return fmt.Errorf("syncd %s has no sums of the map %s", n.name, mapName)
	}
	if s := status.Maps[i].DrainSums; s.Full+s.Unread+s.MissedCalls != 0 {
		return fmt.Errorf("syncd %s misses drained entries: %+v", n.name, *s)
	}
	return nil
}

// stopTracer ends the tracer and returns its report. With the method bundle, the trace continues.
func (n *node) stopTracer(report any) error {
	rest, err := n.tracer.stop()
	n.tracer = nil
	if err != nil {
		return err
	}
	return json.Unmarshal(rest, report)
}

// endTrace removes the pins of the tracer.
func (n *node) endTrace() error {
	c, err := startChild(roleTrace, n.Start, "-pin", n.pins, "-remove")
	if err != nil {
		return err
	}
	return c.cmd.Wait()
}

func (n *node) stopSyncd() error {
	_, err := n.syncd.stop()
	n.syncd = nil
	return err
}

// output runs a command in the node's namespace and returns its output.
func (n *node) output(cmd *exec.Cmd) ([]byte, error) {
	var text strings.Builder
	cmd.Stdout, cmd.Stderr = &text, &text
	if err := n.Start(cmd); err != nil {
		return nil, err
	}
	err := cmd.Wait()
	return []byte(text.String()), err
}
