package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/goccy/go-yaml"
	"golang.org/x/sys/unix"

	"mapsync/internal/testcert"
	"mapsync/syncd/daemon"
)

// Sizes of the map under attack: key and value in bytes, capacity in entries.
const (
	keySize    = 16
	valueSize  = 32
	maxEntries = 4096
)

const (
	// mapName is the name of the map in the daemons' configuration.
	mapName = "ct"
	// entriesEach is the number of entries that each load balancer holds.
	entriesEach = 200
	// descriptors is the descriptor limit of each daemon, as under an init system that sets a low
	// one.
	descriptors = 2048
	// answerLimit is the longest time that a daemon may take to answer an operator: three times the default of --timeout, because
	// other tests may use the CPUs meanwhile.
	answerLimit = 15 * time.Second
)

// node is a daemon, its map, and the load balancer that writes to the map.
type node struct {
	name, addr, dir string
	number          int
	c               *cluster
	m               *ebpf.Map
	written         map[[keySize]byte][valueSize]byte
	version         uint64
	fresh           atomic.Pointer[freshEntries] // of the present attack; nil: none

	process atomic.Pointer[os.Process] // of the last start; the monitor reads it during a restart
	exited  chan struct{}
	client  *daemon.Client
	http    *http.Client
	logFile string
	idle    sample
}

// newNode creates the map and the daemon's files, and writes the first entries.
func newNode(c *cluster, number int) (_ *node, err error) {
	n := &node{
		name: fmt.Sprintf("lb%d", number), addr: c.address(number), number: number, c: c,
		written: make(map[[keySize]byte][valueSize]byte),
		http:    &http.Client{Timeout: answerLimit, Transport: &http.Transport{DisableKeepAlives: true}},
	}
	n.dir = filepath.Join(c.dir, n.name)
	n.logFile = filepath.Join(n.dir, "log")
	n.client = daemon.NewClient(n.socket())
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		return nil, fmt.Errorf("make directory of %s: %w", n.name, err)
	}
	if n.m, err = newMap(n.name); err != nil {
		return nil, err
	}
	if err := n.m.Pin(filepath.Join(c.dir, pinFolder, n.name)); err != nil {
		return nil, errors.Join(fmt.Errorf("pin the map of %s: %w", n.name, err), n.m.Close())
	}
	for flow := range uint32(entriesEach) {
		if err := n.write(flow); err != nil {
			return nil, errors.Join(err, n.m.Close())
		}
	}
	return n, n.configure()
}

func (n *node) socket() string { return filepath.Join(n.dir, "syncd.sock") }

// entryKey returns the key of a load balancer's flow.
func entryKey(owner, flow uint32) (key [keySize]byte) {
	binary.BigEndian.PutUint32(key[:], owner)
	binary.BigEndian.PutUint32(key[4:], flow)
	key[keySize-1] = 1
	return key
}

// write sets one of this node's own flows to a new value, as its load balancer does.
func (n *node) write(flow uint32) error {
	key, value := n.nextEntry(flow)
	n.written[key] = value
	return n.update(key, value)
}

// nextEntry returns the entry of a flow with a new value.
func (n *node) nextEntry(flow uint32) (key [keySize]byte, value [valueSize]byte) {
	n.version++
	binary.BigEndian.PutUint64(value[:], n.version)
	value[valueSize-1] = byte(n.number)
	return entryKey(uint32(n.number), flow), value
}

func (n *node) update(key [keySize]byte, value [valueSize]byte) error {
	if err := n.m.Update(key, value, ebpf.UpdateAny); err != nil {
		return fmt.Errorf("write an entry of %s: %w", n.name, err)
	}
	return nil
}

// remove deletes one of this node's own flows, as its load balancer does.
func (n *node) remove(flow uint32) error {
	key := entryKey(uint32(n.number), flow)
	if err := n.m.Delete(key); err != nil {
		return fmt.Errorf("delete an entry of %s: %w", n.name, err)
	}
	delete(n.written, key)
	return nil
}

// configure writes the daemon's settings.
func (n *node) configure() error { return n.configureWith(nil) }

// configureWith writes the daemon's settings, with other values of some.
func (n *node) configureWith(other map[string]any) error {
	pair, err := n.c.ca.Issue(n.name, testcert.Options{})
	if err != nil {
		return err
	}
	info, err := n.m.Info()
	if err != nil {
		return fmt.Errorf("get the id of the map: %w", err)
	}
	id, _ := info.ID()
	var join []string
	for i := range 3 {
		join = append(join, n.c.address(i+1)+":"+gossipPort)
	}
	settings := map[string]any{
		"node-name": n.name, "map": []string{fmt.Sprintf("%s=id:%d", mapName, id)}, "attach": "none",
		"gossip-listen": n.addr + ":" + gossipPort, "gossip-key-file": filepath.Join(n.c.dir, "gossip.key"), "join": join,
		"grpc-listen": n.addr + ":" + grpcPort, "metrics-listen": n.addr + ":" + metricsPort,
		"tls-cert": pair.CertFile, "tls-key": pair.KeyFile, "tls-ca": pair.CAFile,
		"control-socket": n.socket(), "state-dir": filepath.Join(n.dir, "state"), "pin-dir": filepath.Join(n.c.dir, pinFolder, "mapsync"),
		"scan-interval": "500ms", "scan-budget": 50, "dead-time": "2s",
	}
	maps.Copy(settings, defences(n.c))
	maps.Copy(settings, other)
	text, err := yaml.Marshal(settings)
	if err != nil {
		return fmt.Errorf("encode settings of %s: %w", n.name, err)
	}
	if err := os.WriteFile(filepath.Join(n.dir, "syncd.yaml"), text, 0o600); err != nil {
		return fmt.Errorf("write settings of %s: %w", n.name, err)
	}
	return nil
}

// start starts the daemon. Its log goes to a file.
func (n *node) start(ctx context.Context) error {
	log, err := os.OpenFile(n.logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open log of %s: %w", n.name, err)
	}
	defer log.Close() // the daemon has its own descriptor of the file
	cmd := exec.Command(n.c.syncd, "run", "--config", filepath.Join(n.dir, "syncd.yaml"))
	cmd.Stderr = log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", n.name, err)
	}
	ended := make(chan struct{})
	n.exited = ended
	n.process.Store(cmd.Process)
	go func() {
		_ = cmd.Wait() // checkAfter detects the exit
		close(ended)
	}()
	err = eventually(ctx, 20*time.Second, func() error {
		if n.hasExited() {
			text, _ := os.ReadFile(n.logFile)
			return fmt.Errorf("%s ended: %s", n.name, tail(text))
		}
		_, err := n.status(ctx)
		return err
	})
	if err != nil {
		return err
	}
	// A Go program raises its soft limit to the hard one as it starts.
	limit := unix.Rlimit{Cur: descriptors, Max: descriptors}
	if err := unix.Prlimit(cmd.Process.Pid, unix.RLIMIT_NOFILE, &limit, nil); err != nil {
		return fmt.Errorf("limit the descriptors of %s: %w", n.name, err)
	}
	return nil
}

// restart kills the daemon and starts it again. Its map persists.
func (n *node) restart(ctx context.Context) error {
	n.stop()
	return n.start(ctx)
}

func (n *node) stop() {
	if process := n.process.Load(); process != nil {
		_ = process.Kill() // the daemon may have exited already
		<-n.exited
	}
}

func (n *node) hasExited() bool {
	select {
	case <-n.exited:
		return true
	default:
		return false
	}
}

func (n *node) close() error {
	n.stop()
	return n.m.Close()
}

func tail(text []byte) string {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return string(lines[len(lines)-1])
}

// status requests the status of the daemon on its control socket.
func (n *node) status(ctx context.Context) (daemon.Status, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	s, err := n.client.Status(ctx)
	if err != nil {
		return s, fmt.Errorf("status of %s: %w", n.name, err)
	}
	return s, nil
}

// readyz requests the readiness of the daemon by HTTP. A flood of connections may end that of the request. As the
// checks of an orchestrator do, it repeats such a request.
func (n *node) readyz() error {
	status, text, err := n.getReadyz()
	for repeats := 0; err != nil && !os.IsTimeout(err) && repeats < 2; repeats++ {
		status, text, err = n.getReadyz()
	}
	if err == nil && status != http.StatusOK {
		err = errors.New(strings.TrimSpace(text))
	}
	if err != nil {
		return fmt.Errorf("readyz of %s: %w", n.name, err)
	}
	return nil
}

func (n *node) getReadyz() (status int, text string, err error) {
	response, err := n.http.Get("http://" + n.addr + ":" + metricsPort + "/readyz")
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

// ready returns an error unless the daemon is ready and replicates with both peers.
func (n *node) ready(ctx context.Context) error {
	s, err := n.status(ctx)
	if err != nil {
		return err
	}
	if !s.Ready {
		return fmt.Errorf("%s is not ready: %s", n.name, strings.Join(s.NotReady, "; "))
	}
	streams := make(map[string]bool)
	for _, p := range s.Peers {
		streams[p.Node] = p.Receiving && p.Sending
	}
	for _, o := range n.c.nodes {
		if o != n && !streams[o.name] {
			return fmt.Errorf("%s has no streams from and to %s", n.name, o.name)
		}
	}
	return nil
}
