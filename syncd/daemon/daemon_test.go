package daemon_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"mapsync/internal/feed"
	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
	"mapsync/syncd/table"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if err := rlimit.RemoveMemlock(); err != nil {
		panic(err)
	}
	if os.Getenv(joinerVariable) != "" {
		runJoiner()
		return
	}
	os.Exit(m.Run())
}

// node is a daemon on loopback whose events come from feeds.
type node struct {
	t       *testing.T
	dir     string
	config  config.Config
	capture *capture.Capture
	client  *daemon.Client
	log     logBuffer
	stop    func()
}

// logBuffer collects a log that a test reads while it grows.
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

// loopback returns a node's address: others of this machine may be running these tests, too.
func loopback(number int) string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d.%d", 1+pid/250%250, pid%250, number)
}

// newNode makes settings for a node; number tells its addresses apart from others'.
func newNode(t *testing.T, number int, maps ...string) *node {
	t.Helper()
	n := &node{t: t, dir: t.TempDir(), config: config.Default()}
	address := loopback(number)
	n.config.NodeName = fmt.Sprintf("n%d", number)
	n.config.Maps = maps
	n.config.GossipListen, n.config.GRPCListen = address+":7946", address+":7947"
	n.config.MetricsListen = address + ":9746"
	n.config.Join = []string{loopback(1) + ":7946", loopback(2) + ":7946"}
	n.config.StateDir, n.config.ControlSocket = n.dir, filepath.Join(n.dir, "syncd.sock")
	n.config.SyncTimeout = 2 * time.Second
	return n
}

func (n *node) start() {
	n.t.Helper()
	d, err := daemon.New(daemon.Options{
		Config: n.config, Version: "test",
		Logger: slog.New(slog.NewTextHandler(io.MultiWriter(&n.log, n.t.Output()), nil)),
		OpenCapture: func(o capture.Options) (*capture.Capture, error) {
			o.Attach = capture.AttachNone
			c, err := capture.Open(o)
			n.capture = c
			return c, err
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

// startPair starts two nodes whose maps are there, and waits until both are ready.
func startPair(t *testing.T, n1, n2 *node) {
	t.Helper()
	n1.start()
	n2.start()
	eventually(t, "both ready", func() bool { return n1.status().Ready && n2.status().Ready && len(n1.status().Peers) == 1 })
}

func (n *node) status() daemon.Status {
	n.t.Helper()
	s, err := n.client.Status(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

// pinned makes a hash map pinned at path, or replaces the one pinned there.
func pinned(t *testing.T, path string, keySize, valueSize, entries uint32) *ebpf.Map {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "ct", Type: ebpf.Hash, KeySize: keySize, ValueSize: valueSize, MaxEntries: entries})
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

// pinDir is a BPF file system of the test's own.
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

// write has n's data plane write entries [from, to) with value v.
func (n *node) write(m *ebpf.Map, from, to, v uint64) {
	n.t.Helper()
	n.feed(m, int(to-from), func(i int) (key, value []byte) { return pair(from+uint64(i), v) })
}

// feed has n's data plane write so many entries; without a value, delete them.
func (n *node) feed(m *ebpf.Map, count int, entry func(i int) (key, value []byte)) {
	n.t.Helper()
	f, err := feed.Open(m, n.capture.Maps(), feed.Options{Capacity: count})
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
		n.t.Fatal(failed, err)
	}
}

// busy calls write again and again until stop, which waits for its end.
func busy(t *testing.T, write func(v uint64)) (stop func()) {
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

// holds reports whether the kernel map has just the entries [0, count), all of v.
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

func TestMapsComeAndGoUnderTheirTables(t *testing.T) {
	dir := pinDir(t)
	path1, path2 := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	n1, n2 := newNode(t, 1, "ct="+path1), newNode(t, 2, "ct="+path2)
	n1.start()
	n2.start()
	eventually(t, "waiting for maps", func() bool { return n1.status().Maps[0].State == daemon.MapWaiting })
	if n1.status().Ready {
		t.Error("ready without a map")
	}
	m1, m2 := pinned(t, path1, 8, 8, 1000), pinned(t, path2, 8, 8, 1000)
	eventually(t, "both ready", func() bool { return n1.status().Ready && n2.status().Ready && len(n1.status().Peers) == 1 })
	n1.write(m1, 0, 500, 7)
	eventually(t, "the peer's map holds all", func() bool { return holds(t, m2, 500, 7) })
	eventually(t, "no lag", func() bool { return n1.status().Peers[0].Maps[0].LagEntries == 0 })

	// The load balancer beside n2 restarts with a map of its own: the table refills it.
	fresh := pinned(t, path2, 8, 8, 1000)
	eventually(t, "the new map is refilled", func() bool { return holds(t, fresh, 500, 7) })
	n1.write(m1, 0, 500, 8)
	eventually(t, "changes go to the new map", func() bool { return holds(t, fresh, 500, 8) })
	if s := n2.status(); s.Capture.Lost != 0 || s.Gaps != 0 {
		t.Errorf("%+v", s)
	}
}

func TestRestartKeepsWhatTheMapSays(t *testing.T) {
	dir := pinDir(t)
	path1, path2 := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	m1, m2 := pinned(t, path1, 8, 8, 1000), pinned(t, path2, 8, 8, 1000)
	n1, n2 := newNode(t, 1, "ct="+path1), newNode(t, 2, "ct="+path2)
	startPair(t, n1, n2)
	n1.write(m1, 0, 500, 7)
	eventually(t, "the peer's map holds all", func() bool { return holds(t, m2, 500, 7) })
	n1.stop()
	for i := range uint64(100) { // deleted, 400 to 499, while its syncd is away
		key, _ := pair(400+i, 0)
		if err := m1.Delete(key); err != nil {
			t.Fatal(err)
		}
	}
	n1.start()
	eventually(t, "deletes of the time between reach the peer", func() bool { return holds(t, m2, 400, 7) })
	if !holds(t, m1, 400, 7) {
		t.Error("the restarted node's map was changed")
	}
}

// What the data plane changes in place, unseen, soon after it created an entry,
// reaches the peer: a TCP handshake ends that way.
func TestNewEntriesAreFollowedInPlace(t *testing.T) {
	dir := pinDir(t)
	path1, path2 := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	m1, m2 := pinned(t, path1, 8, 8, 1000), pinned(t, path2, 8, 8, 1000)
	n1, n2 := newNode(t, 1, "ct="+path1), newNode(t, 2, "ct="+path2)
	startPair(t, n1, n2)
	n1.write(m1, 0, 500, 7)
	for i := range uint64(500) { // no hook sees this either
		key, value := pair(i, 8)
		if err := m1.Update(key, value, ebpf.UpdateExist); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the peer's map holds the newest", func() bool { return holds(t, m2, 500, 8) })
}

func TestBadMapsAreSetAsideAndOthersGoOn(t *testing.T) {
	dir := pinDir(t)
	big, differ, good := filepath.Join(dir, "big"), filepath.Join(dir, "differ"), filepath.Join(dir, "good")
	pinned(t, big, 8, 4104, 10)
	pinned(t, differ+"1", 8, 16, 10)
	pinned(t, differ+"2", 8, 24, 10)
	good1, good2 := pinned(t, good+"1", 8, 8, 600), pinned(t, good+"2", 8, 8, 100)
	n1 := newNode(t, 1, "big="+big, "differ="+differ+"1", "good="+good+"1")
	n2 := newNode(t, 2, "differ="+differ+"2", "good="+good+"2")
	n1.start()
	n2.start()
	eventually(t, "the good map replicates", func() bool {
		s := n1.status()
		return s.Maps[2].State == daemon.MapReplicating && len(s.Peers) == 1 && s.Peers[0].Sending
	})
	n1.write(good1, 0, 500, 1)
	// 100 fit, whichever of them; the others are counted and stay in the table.
	eventually(t, "what fits is there", func() bool { return holds(t, good2, 100, 1) })
	eventually(t, "what does not fit is counted", func() bool { return n2.status().Maps[1].Failed == 400 })
	s := n1.status()
	if s.Maps[0].State != daemon.MapRefused || !strings.Contains(s.Maps[0].Error, "4096") {
		t.Errorf("the map with large entries: %+v", s.Maps[0])
	}
	eventually(t, "the layouts that differ are named", func() bool {
		for _, m := range n1.status().Peers[0].Maps {
			if m.Name == "differ" && strings.Contains(m.Error, "value: ") && strings.Contains(m.Error, "24") {
				return true
			}
		}
		return false
	})
}

func TestHealthAndMetrics(t *testing.T) {
	dir := pinDir(t)
	n := newNode(t, 1, filepath.Join(dir, "ct"))
	n.config.Join = nil
	n.start()
	get := func(path string) (int, string) {
		response, err := http.Get("http://" + n.config.MetricsListen + path)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(body)
	}
	if code, _ := get("/healthz"); code != http.StatusOK {
		t.Errorf("healthz: %d", code)
	}
	if code, body := get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "ct: waiting") {
		t.Errorf("readyz without a map: %d %s", code, body)
	}
	m := pinned(t, filepath.Join(dir, "ct"), 8, 8, 100)
	eventually(t, "ready", func() bool { code, _ := get("/readyz"); return code == http.StatusOK })
	n.write(m, 0, 10, 1)
	eventually(t, "metrics count", func() bool {
		_, body := get("/metrics")
		return strings.Contains(body, `mapsync_capture_events_total{context="packet"} 10`) &&
			strings.Contains(body, `mapsync_map_entries{map="ct",state="live"} 10`) &&
			strings.Contains(body, "mapsync_ready 1")
	})
	found := 0
	err := n.client.Entries(t.Context(), "ct", daemon.EntryQuery{Form: daemon.FormRaw}, func(e *daemon.Entry) error {
		key, value, err := e.Bytes()
		if err == nil && len(key) == 8 && binary.LittleEndian.Uint64(value) == 1 && e.Owner == "n1" {
			found++
		}
		return err
	})
	if err != nil || found != 10 {
		t.Errorf("dump has %d entries, %v", found, err)
	}
	if err := n.client.Entries(t.Context(), "other", daemon.EntryQuery{}, nil); err == nil || !strings.Contains(err.Error(), "no such map") {
		t.Errorf("dump of an unknown map: %v", err)
	}
}

func TestExposureNeedsEncryption(t *testing.T) {
	n := newNode(t, 1, "ct")
	n.config.GRPCListen = "0.0.0.0:0"
	_, err := daemon.New(daemon.Options{Config: n.config, Logger: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "without encryption") {
		t.Errorf("got %v", err)
	}
}
