package daemon_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"mapsync/internal/injector"
	"mapsync/internal/poll"
	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if os.Getenv(daemon.HiddenStage) != "" {
		os.Exit(m.Run())
	}
	if err := rlimit.RemoveMemlock(); err != nil {
		panic(err)
	}
	if os.Getenv(joinerVariable) != "" {
		runJoiner()
		return
	}
	if pin := os.Getenv(controlVariable); pin != "" {
		if err := runControlPlane(pin); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

// node is a daemon on loopback. Feeds inject its events.
type node struct {
	t       *testing.T
	dir     string
	pin     string // pin of its map, if twoNodes or manyRecords created it
	config  config.Config
	attach  capture.Attach // none by default
	wall    func() time.Time
	unsync  func() bool // its kernel reports an unsynchronised clock
	capture *capture.Capture
	client  *daemon.Client
	log     logBuffer
	stop    func()

	nextMu sync.Mutex
	next   func() (config.Config, error) // loads the settings of a reload
}

// reload makes the node reload the settings next.
func (n *node) reload(next config.Config) (daemon.Reloaded, error) {
	n.t.Helper()
	done, err := n.reloadFrom(func() (config.Config, error) { return next, next.Validate() })
	if err == nil {
		n.config = next
	}
	return done, err
}

// reloadFrom makes the node reload the settings that load returns.
func (n *node) reloadFrom(load func() (config.Config, error)) (daemon.Reloaded, error) {
	n.t.Helper()
	n.nextMu.Lock()
	n.next = load
	n.nextMu.Unlock()
	return n.client.Reload(n.t.Context())
}

// logBuffer collects a log that a test reads while the log grows.
type logBuffer struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logBuffer) contains(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), s)
}

// loopback returns the address of a node. Each process has its own addresses, because these tests
// may run in several processes of this machine.
func loopback(number int) string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 1+pid/250%250, pid%250, number)
}

// output writes to the output of a test until the test ends. Timers of memberlist may log after
// its shutdown.
type output struct {
	mu sync.Mutex
	w  io.Writer // nil once the test has ended
}

func outputOf(t *testing.T) *output {
	o := &output{w: t.Output()}
	t.Cleanup(func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.w = nil
	})
	return o
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.w == nil {
		return len(p), nil
	}
	return o.w.Write(p)
}

// newNode returns a node with settings. Nodes with different numbers have different addresses.
func newNode(t *testing.T, number int, maps ...string) *node {
	t.Helper()
	n := &node{t: t, dir: t.TempDir(), config: config.Default()}
	address := loopback(number)
	n.config.NodeName = fmt.Sprintf("n%d", number)
	n.config.Maps = maps
	n.config.GossipListen, n.config.GRPCListen = address+":7946", address+":7947"
	n.config.MetricsListen = address + ":9746"
	n.config.Join = []string{loopback(1) + ":7946", loopback(2) + ":7946"}
	n.config.PinDir, n.config.Insecure = "", true
	n.config.StateDir, n.config.ControlSocket = n.dir, filepath.Join(n.dir, "syncd.sock")
	n.config.SyncTimeout = 2 * time.Second
	return n
}

func (n *node) start() {
	n.t.Helper()
	d, err := daemon.New(daemon.Options{
		Config: n.config, Version: "test", Wall: n.wall, Unsynchronised: n.unsync,
		Logger: checked(n.t, slog.NewTextHandler(io.MultiWriter(&n.log, outputOf(n.t)), nil)),
		OpenCapture: func(o capture.Options) (*capture.Capture, error) {
			o.Attach = cmp.Or(n.attach, capture.AttachNone)
			c, err := capture.Open(o)
			n.capture = c
			return c, err
		},
		Reload: func() (config.Config, error) {
			n.nextMu.Lock()
			defer n.nextMu.Unlock()
			return n.next()
		},
	})
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	n.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Error(err)
		}
	})
	n.t.Cleanup(n.stop)
	n.client = daemon.NewClient(n.config.ControlSocket)
}

// twoNodes returns two nodes, each with a pinned map of this size.
func twoNodes(t *testing.T, entries uint32) (n1, n2 *node, m1, m2 *ebpf.Map) {
	t.Helper()
	dir := pinDir(t)
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	m1, m2 = pinned(t, one, 8, 8, entries), pinned(t, two, 8, 8, entries)
	n1, n2 = newNode(t, 1, "ct="+one), newNode(t, 2, "ct="+two)
	n1.pin, n2.pin = one, two
	return n1, n2, m1, m2
}

// syncedPair starts two nodes. Both hold 500 entries of the first node.
func syncedPair(t *testing.T) (n1, n2 *node, m1, m2 *ebpf.Map) {
	t.Helper()
	n1, n2, m1, m2 = twoNodes(t, 1000)
	startPair(t, n1, n2)
	n1.write(m1, 0, 500, 7)
	poll.Eventually(t, "the peer's map holds all entries", func() bool { return holds(t, m2, 500, 7) })
	return n1, n2, m1, m2
}

// startPair starts two nodes whose maps exist, and waits until both are ready.
func startPair(t *testing.T, n1, n2 *node) {
	t.Helper()
	n1.start()
	n2.start()
	poll.Eventually(t, "both nodes are ready", func() bool { return n1.status().Ready && n2.status().Ready && len(n1.status().Peers) == 1 })
}

func (n *node) status() daemon.Status {
	n.t.Helper()
	s, err := n.client.Status(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}

// pinned creates a hash map and pins it at path. It replaces a map that is pinned there.
func pinned(t *testing.T, path string, keySize, valueSize, entries uint32) *ebpf.Map {
	t.Helper()
	return pinnedAs(t, path, &ebpf.MapSpec{Name: "ct", Type: ebpf.Hash, KeySize: keySize, ValueSize: valueSize, MaxEntries: entries})
}

func pinnedAs(t *testing.T, path string, spec *ebpf.MapSpec) *ebpf.Map {
	t.Helper()
	m, err := ebpf.NewMap(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Unpin(); _ = m.Close() })
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if err := m.Pin(path); err != nil {
		t.Fatal(err)
	}
	return m
}

// pinDir mounts a BPF file system for the test and returns its directory.
func pinDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatalf("mount a BPF file system (needs root): %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func pair(i, v uint64) (key, value []byte) {
	return binary.LittleEndian.AppendUint64(nil, i), binary.LittleEndian.AppendUint64(nil, v)
}

// write makes n's data plane write the entries [from, to) with value v.
func (n *node) write(m *ebpf.Map, from, to, v uint64) {
	n.t.Helper()
	n.applyEntries(m, int(to-from), func(i int) (key, value []byte) { return pair(from+uint64(i), v) })
}

// applyEntries makes n's data plane write count entries. An entry without a value is deleted.
func (n *node) applyEntries(m *ebpf.Map, count int, entry func(i int) (key, value []byte)) {
	n.t.Helper()
	f, err := injector.Open(m, n.capture.Maps(), injector.Options{Capacity: count})
	if err != nil {
		n.t.Fatal(err)
	}
	defer f.Close()
	for i := range count {
		op := table.OpUpdate
		key, value := entry(i)
		if value == nil {
			op = table.OpDelete
		}
		f.Add(op, table.ContextPacket, key, value)
	}
	if failed, err := f.Run(); err != nil || failed != 0 {
		n.t.Fatalf("write the entries: got %d failed, error %v, want none", failed, err)
	}
}

// writeLoop calls write in a loop until stop is called. stop waits for the last call.
func writeLoop(t *testing.T, write func(v uint64)) (stop func()) {
	ended, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for v := uint64(100); ; v++ {
			select {
			case <-ended:
				return
			default:
				write(v)
			}
		}
	}()
	stop = sync.OnceFunc(func() { close(ended); <-stopped })
	t.Cleanup(stop)
	return stop
}

// holds reports whether the kernel map has exactly the entries [0, count), all with value v.
func holds(t *testing.T, m *ebpf.Map, count int, v uint64) bool {
	t.Helper()
	var key, value []byte
	entries, seen := m.Iterate(), 0
	for entries.Next(&key, &value) {
		if binary.LittleEndian.Uint64(value) != v {
			return false
		}
		seen++
	}
	return entries.Err() == nil && seen == count
}
