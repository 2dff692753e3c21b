package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"mapsync/docs/examples/turn/offload"
	"mapsync/internal/testcert"
)

// node is one server with its maps, and with syncd beside it.
type node struct {
	*place
	dir     string // files
	pins    string // in a BPF file system
	offload *offload.Offload
	server  *process
	syncd   *process // nil: it does not run
	socket  string   // of syncd
}

// setup is the network with its nodes.
type setup struct {
	opts  *options
	net   *network
	dir   string // files of this run
	nodes [2]*node
}

func newSetup(o *options) (_ *setup, err error) {
	s := &setup{opts: o}
	if s.dir, err = os.MkdirTemp("", "turn"); err != nil {
		return nil, err
	}
	if err = unix.Mount("bpf", s.mounted(), "bpf", 0, ""); err != nil {
		return nil, errors.Join(fmt.Errorf("mount a BPF file system: %w", err), os.RemoveAll(s.dir))
	}
	if s.net, err = newNetwork(); err == nil {
		err = s.writeFile("secret", sharedSecret)
	}
	for i := range s.nodes {
		if err == nil {
			s.nodes[i], err = s.newNode(&s.net.nodes[i])
		}
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// mounted returns the directory of the BPF file system: the one of the host is not used.
func (s *setup) mounted() string {
	path := filepath.Join(s.dir, "bpf")
	_ = os.Mkdir(path, 0o700) // the mount reports an error
	return path
}

func (s *setup) path(name string) string { return filepath.Join(s.dir, name) }

func (s *setup) writeFile(name, content string) error {
	if err := os.WriteFile(s.path(name), []byte(content+"\n"), 0o600); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

func (s *setup) newNode(p *place) (*node, error) {
	n := &node{place: p, dir: s.path(p.name), pins: filepath.Join(s.dir, "bpf", p.name)}
	n.socket = filepath.Join(n.dir, "syncd.sock")
	if err := os.Mkdir(n.dir, 0o700); err != nil {
		return nil, err
	}
	var err error
	n.offload, err = offload.Open(n.pins, service)
	return n, err
}

// startServer starts the TURN server of a node. It returns when the server has rebuilt the allocations in
// its maps, or when a standby has started.
func (s *setup) startServer(ctx context.Context, n *node, offloaded, standby bool) (err error) {
	args := []string{
		"-listen", service.String(), "-pin-dir", n.pins, "-secret-file", s.path("secret"),
		fmt.Sprintf("-standby=%t", standby),
	}
	if offloaded {
		args = append(args, "-interface", serverLink)
	}
	if n.server, err = startProcess(n.ns, "server of "+n.name, s.opts.turn, args...); err != nil {
		return err
	}
	text := "msg=rebuilt"
	if standby {
		text = "msg=started"
	}
	_, err = n.server.awaitLog(ctx, text)
	return err
}

// settings is the settings file of syncd. Statistics change in place: only scans find that, if the kernel
// offers no hook on lookups.
const settings = `
node-name: %[1]s
map: [%[2]s]
attach: %[3]s
scan-interval: 1s
max-scan-interval: 1s
scan-budget: 25
expected-peers: [turn1, turn2]
join: ['10.13.0.1:7946', '10.13.0.2:7946']
gossip-listen: %[4]s:7946
gossip-key-file: %[5]s/gossip.key
grpc-listen: %[4]s:7947
tls-cert: %[5]s/%[1]s.cert.pem
tls-key: %[5]s/%[1]s.key.pem
tls-ca: %[5]s/ca.pem
metrics-listen: ''
control-socket: %[6]s/syncd.sock
state-dir: %[6]s
pin-dir: ''
`

// startSyncd starts syncd beside both servers. It returns when both are ready and connected.
func (s *setup) startSyncd(ctx context.Context) error {
	ca, err := testcert.NewCA(s.dir, "ca")
	if err != nil {
		return err
	}
	if _, err := testcert.WriteGossipKey(s.dir); err != nil {
		return err
	}
	for _, n := range s.nodes {
		if _, err := ca.Issue(n.name, testcert.Options{}); err != nil {
			return err
		}
		var maps []string
		for _, name := range offload.Maps() {
			maps = append(maps, filepath.Join(n.pins, name))
		}
		file := n.name + ".yaml"
		if err := s.writeFile(file, fmt.Sprintf(settings, n.name, strings.Join(maps, ", "), s.opts.attach, n.sync, s.dir, n.dir)); err != nil {
			return err
		}
		if n.syncd, err = startProcess(n.ns, "syncd of "+n.name, s.opts.syncd, "run", "--config", s.path(file)); err != nil {
			return err
		}
	}
	for _, n := range s.nodes {
		if err := await(ctx, "syncd of "+n.name+" is ready and connected", func() (bool, error) { return s.connected(ctx, n) }); err != nil {
			return fmt.Errorf("%w: %s", err, n.syncd.errorLines())
		}
	}
	return nil
}

// connected reports whether syncd is ready, and sends to and receives from its peer.
func (s *setup) connected(ctx context.Context, n *node) (bool, error) {
	select {
	case <-n.syncd.done:
		return false, fmt.Errorf("%s has exited", n.syncd.name)
	default:
	}
	text, err := exec.CommandContext(ctx, s.opts.syncd, "status", "--json", "--control-socket", n.socket).Output()
	if len(text) == 0 {
		return false, nil //nolint:nilerr // it has not created the socket yet
	}
	var status struct {
		Ready bool `json:"ready"`
		Peers []struct {
			Receiving bool `json:"receiving"`
			Sending   bool `json:"sending"`
		} `json:"peers"`
	}
	if err := errors.Join(err, json.Unmarshal(text, &status)); err != nil {
		return false, nil //nolint:nilerr // exit status 1: not ready
	}
	return status.Ready && len(status.Peers) == 1 && status.Peers[0].Sending && status.Peers[0].Receiving, nil
}

// fail ends a node as the failure of its machine does.
func (s *setup) fail(i int) error {
	n := s.nodes[i]
	return errors.Join(s.net.cut(i), n.server.end(syscall.SIGKILL), n.syncd.end(syscall.SIGKILL))
}

// takeOver moves the service's address to a node. With a signal, its server rebuilds the allocations at once.
func (s *setup) takeOver(i int, signal bool) error {
	err := s.net.routeTo(i)
	if err == nil && signal {
		err = s.nodes[i].server.signal(syscall.SIGUSR1)
	}
	return err
}

func (s *setup) close() error {
	var errs []error
	for _, n := range s.nodes {
		if n != nil {
			errs = append(errs, n.server.end(syscall.SIGTERM), n.syncd.end(syscall.SIGTERM))
		}
		if n != nil && n.offload != nil {
			errs = append(errs, n.offload.Detach(), n.offload.Close())
		}
	}
	if s.net != nil {
		errs = append(errs, s.net.close())
	}
	return errors.Join(append(errs, unix.Unmount(filepath.Join(s.dir, "bpf"), unix.MNT_DETACH), os.RemoveAll(s.dir))...)
}
