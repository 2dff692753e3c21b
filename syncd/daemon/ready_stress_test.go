package daemon_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// readyStress is the duration of TestReadyNodeHoldsAllEntries.
var readyStress = flag.Duration("ready-stress", 12*time.Second, "duration of the readiness stress test")

// firstPeersTime is the time after which a starting node takes a node that it cannot reach for departed.
const firstPeersTime = 10 * time.Second

// joinerVariable contains the settings of the daemon that this process runs.
const joinerVariable = "MAPSYNC_TEST_JOINER"

// runJoiner runs a daemon in its own process, so that a test can stop it at the moment at which
// it reports that it is ready. The daemon ends at the end of its standard input.
func runJoiner() {
	var c config.Config
	if err := json.Unmarshal([]byte(os.Getenv(joinerVariable)), &c); err != nil {
		panic(err)
	}
	d, err := daemon.New(daemon.Options{
		Config: c, Version: "test", Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		OpenCapture: func(o capture.Options) (*capture.Capture, error) {
			o.Attach = capture.AttachNone
			return capture.Open(o)
		},
	})
	if err != nil {
		panic(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	if err := d.Run(ctx); err != nil {
		panic(err)
	}
}

// Nodes repeatedly join two peers whose entries change all the time. Their maps have many sizes,
// and are empty, out of date or from an earlier incarnation. Streams break and stall, and the
// processor time is limited. At the moment at which a node reports that it is ready, the test
// stops it. The kernel map of the node must then hold all entries that the peers held when they
// began to send to it.
func TestReadyNodeHoldsAllEntries(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	limit := *readyStress
	if testing.Short() {
		limit /= 4
	}
	joins := 0
	for began := time.Now(); time.Since(began) < limit && !t.Failed(); {
		t.Run("cluster", func(t *testing.T) {
			c := newStressCluster(t, random)
			for range 4 {
				c.join()
				joins++
			}
		})
	}
	t.Logf("%d joins", joins)
}

// stressCluster has two live peers, and a third node that joins them.
type stressCluster struct {
	t       *testing.T
	random  *rand.Rand
	sources [2]*source
	proxies [2]*faultyProxy
	joiner  *node
	m       *ebpf.Map // map of the joiner
	shape   shape
}

func newStressCluster(t *testing.T, random *rand.Rand) *stressCluster {
	c := &stressCluster{t: t, random: random, shape: randomShape(random)}
	dir := pinDir(t)
	flows := c.shape.flows
	t.Logf("%d entries of %d + %d bytes at each peer, slow %t", flows, c.shape.key, c.shape.value, c.shape.slow)
	for i := range c.sources {
		path := filepath.Join(dir, fmt.Sprint("peer", i))
		m := pinned(t, path, uint32(c.shape.key), uint32(c.shape.value), uint32(c.shape.room()))
		n := newNode(t, i+1, "ct="+path)
		n.config.SyncTimeout = 30 * time.Second
		// The peers keep deletes until they have seen the joiner.
		n.config.ExpectedPeers = config.PeerList{"n1", "n2", "n3"}
		n.config.BufferSize = 64 << 20 // a change that is lost and overwritten before a scan is never found
		c.proxies[i] = newFaultyProxy(t, loopback(i+1)+":7957", n.config.GRPCListen)
		n.config.GRPCAdvertise = loopback(i+1) + ":7957"
		n.start()
		c.sources[i] = newSource(t, n, m, &c.shape, i*flows)
	}
	poll.Eventually(t, "the peers are ready", func() bool {
		for _, s := range c.sources {
			if st := s.node.status(); !st.Ready || len(st.Peers) != 1 {
				return false
			}
		}
		return true
	})
	c.joiner = newNode(t, 3)
	c.joiner.config.SyncTimeout = 30 * time.Second
	c.newMap()
	for _, s := range c.sources {
		s.fill()
		s.start()
	}
	return c
}

// newMap gives the joiner a new kernel map and an empty state directory.
func (c *stressCluster) newMap() {
	c.t.Helper()
	m, err := c.shape.newMap()
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { m.Close() })
	c.m = m
	c.joiner.config.Maps = []string{fmt.Sprintf("ct=id:%d", idOf(c.t, m))}
	c.joiner.config.StateDir = c.t.TempDir()
	c.joiner.config.ControlSocket = filepath.Join(c.joiner.config.StateDir, "syncd.sock")
}

// join makes the third node join, and checks its map when it reports that it is ready.
func (c *stressCluster) join() {
	c.t.Helper()
	kind := "of an earlier incarnation"
	switch c.random.IntN(3) {
	case 0:
		kind = "empty"
		c.newMap()
	case 1:
		kind = "out of date"
		c.newMap()
		for _, s := range c.sources {
			s.addStaleEntries(c.m)
		}
	}
	for _, w := range c.proxies {
		w.setFaults(c.random, c.shape.flows*(c.shape.key+c.shape.value))
	}
	poll.Eventually(c.t, "no peer has a stream to the joiner", func() bool { return !c.served(0) && !c.served(1) })
	started := [2]int{c.syncsStarted(0), c.syncsStarted(1)}
	before := [2]*sourceSnapshot{c.sources[0].snapshot(), c.sources[1].snapshot()}
	lost, reached := [2]int{c.lost(0), c.lost(1)}, [2]int{c.reached(0), c.reached(1)}
	p, began := c.startJoiner(), time.Now()
	// The processor time of the joiner is limited, and the machine may be overloaded.
	for deadline := time.Now().Add(5 * time.Minute); !p.readyz(); {
		for i, s := range c.sources {
			// A peer must send all entries that it held before it began to send to the joiner.
			if now := s.snapshot(); c.syncsStarted(i) == started[i] {
				before[i] = now
			}
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("joiner: not ready within 5 min: %s", p.answer)
		}
	}
	ready := time.Since(began)
	p.freeze()
	content := c.shape.content(c.t, c.m)
	for i, s := range c.sources {
		if lost := s.node.status().Capture.Lost; lost > 0 {
			c.t.Fatalf("lost changes of %s: got %d, want 0 (the buffer is too small for this test)", s.node.config.NodeName, lost)
		}
		if c.reached(i) == reached[i] && ready >= firstPeersTime { // on a starved machine
			c.t.Logf("joiner: it has not reached %s in %s, and takes it for departed", s.node.config.NodeName, ready)
			continue
		}
		if c.lost(i) > lost[i] { // on a starved machine, gossip takes a live node for a dead one, which nobody waits for
			c.t.Logf("joiner: gossip has lost %s during the initial sync", s.node.config.NodeName)
			continue
		}
		if wrong := s.compare(before[i], content); len(wrong) > 0 {
			c.t.Errorf("joiner with a map that was %s: got ready without all entries of %s, want all of them: %s",
				kind, s.node.config.NodeName, c.explain(wrong, p))
		}
	}
	p.end(c.random.IntN(2) == 0)
}

// lost returns how often the joiner has lost a peer.
func (c *stressCluster) lost(peer int) int {
	return c.joiner.log.count(`msg="peer has left" peer=` + c.sources[peer].node.config.NodeName)
}

// reached returns how often the joiner has begun to receive from a peer.
func (c *stressCluster) reached(peer int) int {
	return c.joiner.log.count(`msg="receiving from peer" peer=` + c.sources[peer].node.config.NodeName)
}

// explain describes some of the wrong entries, with the record of each node after the joiner has
// run for one more second.
func (c *stressCluster) explain(wrong []wrongEntry, p *joinerProcess) string {
	c.t.Helper()
	if err := p.cmd.Process.Signal(unix.SIGCONT); err != nil {
		c.t.Fatal(err)
	}
	time.Sleep(time.Second) // the text shows which entries are still wrong then
	text := fmt.Sprintf("%d entries", len(wrong))
	for _, w := range wrong[:min(len(wrong), 4)] {
		text += "\n  " + w.String()
		for _, n := range []*node{c.sources[0].node, c.sources[1].node, c.joiner} {
			text += "\n    " + n.config.NodeName + ": " + c.record(n, w.flow)
		}
	}
	return text
}

// record describes the record of a flow at a node.
func (c *stressCluster) record(n *node, flow int) string {
	key := make([]byte, c.shape.key)
	c.shape.fillEntry(key, nil, flow, 0)
	text := "nothing"
	client := daemon.NewClient(n.config.ControlSocket)
	err := client.Entries(c.t.Context(), "ct", daemon.EntryQuery{Form: daemon.FormRaw, Tombstones: true}, func(e *daemon.Entry) error {
		k, v, err := e.Bytes()
		if bytes.Equal(k, key) {
			text = fmt.Sprintf("%x (deleted: %t) of %s, incarnation %d, version %d, pending %t",
				v[:min(len(v), 8)], e.Deleted, e.Owner, e.Incarnation, e.Version, e.Pending)
		}
		return err
	})
	if err != nil {
		return err.Error()
	}
	return text
}

// served reports whether a peer has a stream to the joiner.
func (c *stressCluster) served(peer int) bool {
	for _, p := range c.sources[peer].node.status().Peers {
		if p.Node == c.joiner.config.NodeName && p.Sending {
			return true
		}
	}
	return false
}

// syncsStarted returns how many outbound map streams a peer has started to all nodes.
func (c *stressCluster) syncsStarted(peer int) (n int) {
	c.t.Helper()
	response, err := http.Get("http://" + c.sources[peer].node.config.MetricsListen + "/metrics")
	if err != nil {
		c.t.Fatal(err)
	}
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), "} "); ok && strings.HasPrefix(name, "mapsync_stream_syncs_total{") {
			count, err := strconv.Atoi(value)
			if err != nil {
				c.t.Fatal(err)
			}
			n += count
		}
	}
	return n
}

// joinerProcess is the process of the third node.
type joinerProcess struct {
	t      *testing.T
	url    string
	cmd    *exec.Cmd
	in     io.Closer
	answer string // the last answer of /readyz
}

func (c *stressCluster) startJoiner() *joinerProcess {
	c.t.Helper()
	settings, err := json.Marshal(c.joiner.config)
	if err != nil {
		c.t.Fatal(err)
	}
	p := &joinerProcess{t: c.t, url: "http://" + c.joiner.config.MetricsListen + "/readyz", cmd: exec.Command("/proc/self/exe")}
	p.cmd.Env = append(os.Environ(), joinerVariable+"="+string(settings))
	if c.random.IntN(2) == 0 {
		p.cmd.Env = append(p.cmd.Env, "GOMAXPROCS=1")
	}
	p.cmd.Stderr = io.MultiWriter(&c.joiner.log, c.t.Output())
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		c.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { p.end(true) })
	if c.random.IntN(2) == 0 { // slower than its peers and the test
		if err := unix.Setpriority(unix.PRIO_PROCESS, p.cmd.Process.Pid, 10); err != nil {
			c.t.Fatal(err)
		}
	}
	return p
}

// readyz reports whether the joiner is ready.
func (p *joinerProcess) readyz() bool {
	response, err := http.Get(p.url)
	if err != nil {
		p.answer = err.Error()
		return false
	}
	defer response.Body.Close()
	text, _ := io.ReadAll(response.Body)
	p.answer = string(text)
	return response.StatusCode == http.StatusOK
}

// freeze stops the process, and returns when all its threads have stopped.
func (p *joinerProcess) freeze() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		p.t.Fatal(err)
	}
	poll.Eventually(p.t, "the joiner has stopped", func() bool {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
		if err != nil || len(tasks) == 0 {
			p.t.Fatal("the joiner has gone: ", err)
		}
		for _, task := range tasks {
			stat, err := os.ReadFile(task)
			if err != nil {
				return false
			}
			if _, state, ok := strings.Cut(string(stat), ") "); !ok || state[0] != 'T' {
				return false
			}
		}
		return true
	})
}

// end lets the joiner leave, or kills it.
func (p *joinerProcess) end(kill bool) {
	if p.cmd.ProcessState != nil {
		return
	}
	if kill {
		_ = p.cmd.Process.Kill()
	}
	_ = p.cmd.Process.Signal(unix.SIGCONT)
	_ = p.in.Close()
	_ = p.cmd.Wait()
}
