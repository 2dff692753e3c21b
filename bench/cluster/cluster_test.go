package cluster

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/internal/testcert"
	"mapsync/internal/vm"
	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/rlimit"
)

func TestMain(m *testing.M) {
	Main()
	// Kernels before 5.11 charge BPF memory to this limit.
	if err := rlimit.RemoveMemlock(); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// convergeTime is the longest time that nodes may take to converge once they have received the last changes.
const convergeTime = 5 * time.Second

// readyLimit is the longest time that nodes may take to become ready.
const readyLimit = 30 * time.Second

// convergeLimit returns convergeTime, or three times that in an emulated machine, whose host has an unknown load.
func convergeLimit() time.Duration {
	if os.Getenv(inMachine) != "" {
		return 3 * convergeTime
	}
	return convergeTime
}

// trial is a cluster under test.
type trial struct {
	t            *testing.T
	nodes        []*remote
	start        []startRequest
	incompatible []*remote // nodes that do not replicate with the others
	ca           *testcert.CA
	join         []string
}

// newTrial starts nodes and waits until all are ready. adjust may change the start request of a
// node. incompatible are the maps of further nodes, which do not replicate with the others.
func newTrial(t *testing.T, p place, n int, m mapSettings, adjust func(i int, r *startRequest), incompatible ...mapSettings) *trial {
	t.Helper()
	tr := &trial{t: t}
	var err error
	tr.ca, err = testcert.NewCA(t.TempDir(), "cluster")
	tr.must(err)
	for i := range n {
		tr.nodes = append(tr.nodes, tr.place(p, i, m, adjust))
	}
	for i, m := range incompatible {
		tr.incompatible = append(tr.incompatible, tr.place(p, n+i, m, adjust))
	}
	for i := range tr.start {
		tr.start[i].Config.Join = tr.join
		tr.syncd(i)
	}
	tr.eventually(readyLimit, tr.ready)
	return tr
}

// place starts the process of node number i, and prepares the start request of its syncd.
func (tr *trial) place(p place, i int, m mapSettings, adjust func(i int, r *startRequest)) *remote {
	tr.t.Helper()
	address, control, err := p.start(tr.t.Context(), i, m)
	tr.must(err)
	name := nodeName(i)
	tr.join = append(tr.join, net.JoinHostPort(address, gossipPort))
	c := config.Default()
	c.NodeName, c.Buffer, c.BufferSize = name, "ring", 64<<20
	c.GossipListen, c.GRPCListen = net.JoinHostPort(address, gossipPort), net.JoinHostPort(address, grpcPort)
	c.MetricsListen = ""
	start := startRequest{Config: c, Files: tr.files(name, testcert.Options{})}
	adjust(i, &start)
	tr.start = append(tr.start, start)
	return newRemote(name, control)
}

// files returns the files with the credentials of a node with this name.
func (tr *trial) files(name string, o testcert.Options) map[string][]byte {
	tr.t.Helper()
	pair, err := tr.ca.Issue(name, o)
	tr.must(err)
	return map[string][]byte{
		certFile: tr.read(pair.CertFile), keyFile: tr.read(pair.KeyFile), caFile: tr.read(tr.ca.CertFile),
		gossipFile: []byte(base64.StdEncoding.EncodeToString([]byte("0123456789abcdef0123456789abcdef"))),
	}
}

// remote returns node number i. Incompatible nodes have the highest numbers.
func (tr *trial) remote(i int) *remote {
	if i < len(tr.nodes) {
		return tr.nodes[i]
	}
	return tr.incompatible[i-len(tr.nodes)]
}

// placeOptions returns the adjustment for a place: nodes with hooks get an attach type.
func placeOptions(p place) func(i int, r *startRequest) {
	return func(_ int, r *startRequest) {
		if ps, ok := p.(*processes); ok {
			r.Config.Attach = string(ps.attach)
			r.Config.DeadTime = 15 * time.Second // emulated CPUs may stall for seconds
		}
	}
}

func (tr *trial) must(err error) {
	tr.t.Helper()
	if err != nil {
		tr.t.Fatal(err)
	}
}

func (tr *trial) read(path string) []byte {
	tr.t.Helper()
	data, err := os.ReadFile(path)
	tr.must(err)
	return data
}

func (tr *trial) syncd(i int) {
	tr.t.Helper()
	tr.must(tr.remote(i).call(tr.t.Context(), "POST", "/start", tr.start[i], nil))
}

func (tr *trial) post(i int, path string) {
	tr.t.Helper()
	tr.must(tr.nodes[i].post(tr.t.Context(), path))
}

func (tr *trial) load(loads ...load) {
	tr.t.Helper()
	for i, n := range tr.nodes {
		tr.must(n.call(tr.t.Context(), "POST", "/load", loads[i%len(loads)], nil))
	}
}

func (tr *trial) eachPost(path string) {
	tr.t.Helper()
	for i := range tr.nodes {
		tr.post(i, path)
	}
}

// eventually repeats check until it returns nil, or until the time limit has passed. A check that
// starts within the limit counts. Under emulation it takes seconds to read and compare all maps and
// tables, which may converge meanwhile.
func (tr *trial) eventually(limit time.Duration, check func(context.Context) error) {
	tr.t.Helper()
	began, logged := time.Now(), ""
	poll.Succeeds(tr.t, limit, "the nodes converge", func() error {
		asked := time.Since(began)
		err := check(tr.t.Context())
		took := time.Since(began)
		if err == nil {
			tr.t.Logf("converged, asked after %v and answered after %v", asked.Round(time.Millisecond), took.Round(time.Millisecond))
		} else if text := err.Error(); text != logged {
			tr.t.Logf("not yet after %v: %v", took.Round(time.Millisecond), err)
			logged = text
		}
		return err
	}, func() any { return fmt.Sprint("now: ", differences(tr.t.Context(), tr.nodes)) })
}

func (tr *trial) awaitConverged() {
	tr.t.Helper()
	tr.awaitCaughtUp()
	tr.eventually(convergeLimit(), func(ctx context.Context) error { return checkConverged(ctx, tr.nodes) })
}

// peers returns the number of peers that each node should have.
func (tr *trial) peers() int { return len(tr.nodes) + len(tr.incompatible) - 1 }

// ready returns an error that names a node that has not all peers, or is not ready.
func (tr *trial) ready(ctx context.Context) error {
	for _, n := range tr.nodes {
		s, err := n.status(ctx)
		if err != nil {
			return err
		}
		if !s.Ready || len(s.Peers) != tr.peers() {
			return fmt.Errorf("node %s has %d peers, not ready: %s", n.name, len(s.Peers), strings.Join(s.NotReady, ", "))
		}
	}
	return nil
}

// noLosses fails if a node lost an event: after a loss the test has no guarantee of equal content.
// A preemptible kernel skips runs of hooks. syncd counts them and scans, so that nodes converge
// again. With kprobe, kernels from 6.7 on count each bpf(2) write of any hash map as a skipped run.
func (tr *trial) noLosses() {
	tr.t.Helper()
	for _, n := range tr.nodes {
		s, err := n.status(tr.t.Context())
		tr.must(err)
		lost := s.Capture.Lost
		if preemptible() || s.Capture.Attach == string(capture.AttachKprobe) {
			lost -= s.Capture.Skipped
		}
		if lost != 0 {
			tr.t.Errorf("node %s lost %d events, and skipped %d runs of hooks", n.name, lost, s.Capture.Skipped)
		}
	}
}

// preemptible reports whether the tested kernel preempts tasks inside a hook.
func preemptible() bool {
	name := os.Getenv("MAPSYNC_KERNEL")
	return name == "testing" || strings.HasSuffix(name, "/preempt=full")
}

// testStopped stops one node's syncd for the given time, under load. The others must not be
// delayed, and the stopped node must catch up. On a machine that is too slow for the load, the
// stop lasts up to limit.
func testStopped(t *testing.T, p place, l load, stopped, limit time.Duration) {
	tr := newTrial(t, p, 3, mapSettings{}, func(i int, r *startRequest) {
		placeOptions(p)(i, r)
		r.Config.DeadTime = limit + time.Minute // nobody waits for a dead peer
	})
	// The changes of the stopped node's own data plane must fit into its buffer, because this test
	// does not cover losses.
	slow := l
	slow.Interval *= 8
	tr.load(l, l, slow)
	time.Sleep(2 * time.Second) // the duration of the load
	tr.post(2, "/stop")
	worst := tr.watchStopped(stopped, limit)
	tr.post(2, "/continue")
	time.Sleep(2 * time.Second) // the duration of the load
	tr.eachPost("/unload")
	tr.awaitConverged()
	tr.noLosses()
	t.Logf("worst lag between the running nodes while one was stopped: %v", worst)
	for _, n := range tr.nodes {
		s, err := n.status(t.Context())
		tr.must(err)
		if s.Gaps != 0 {
			t.Errorf("node %s: got %d gaps, want 0", n.name, s.Gaps)
		}
	}
}

// watchStopped watches nodes 0 and 1 for d while the third is stopped, and returns the highest lag
// between them. If they waited for the third node, they would receive nothing after the first half,
// and their lag would be as old as the stop. It watches up to limit until they received something.
func (tr *trial) watchStopped(d, limit time.Duration) time.Duration {
	tr.t.Helper()
	var (
		worst time.Duration
		first [2]uint64 // records received at the start of the second half
		moved [2]bool   // more records were received since, from after the stop
	)
	for began := time.Now(); ; time.Sleep(200 * time.Millisecond) { // the rate of the samples
		passed := time.Since(began)
		if passed >= d && moved[0] && moved[1] || passed >= limit {
			break
		}
		late := passed > d/2
		for i := range moved {
			s, err := tr.nodes[i].status(tr.t.Context())
			tr.must(err)
			received, lag := receivedFrom(s, tr.nodes[1-i].name)
			worst = max(worst, lag)
			if late && first[i] == 0 {
				first[i] = received
			}
			moved[i] = moved[i] || late && received > first[i] && lag < passed
		}
	}
	for i, ok := range moved {
		if !ok {
			tr.t.Errorf("node %s waited for the stopped peer: worst lag %v", tr.nodes[i].name, worst)
		}
	}
	return worst
}

// receivedFrom returns the number of records that a node has received from a peer, and the highest
// lag.
func receivedFrom(s daemon.Status, peer string) (records uint64, lag time.Duration) {
	for _, p := range s.Peers {
		if p.Node != peer {
			continue
		}
		for _, m := range p.Maps {
			records += m.Received
			lag = max(lag, time.Duration(m.LagSeconds*float64(time.Second)))
		}
	}
	return records, lag
}

// native is the load without emulation: 12,800 changes per second on each node.
var native = load{Flows: 20000, Interval: 20 * time.Millisecond}

func TestContainersSurviveKills(t *testing.T) {
	testKills(t, newContainers(t), native, 20)
}

func TestContainersStoppedPeerDoesNotSlowOthers(t *testing.T) {
	stopped := 60 * time.Second
	if testing.Short() {
		stopped = 10 * time.Second
	}
	testStopped(t, newContainers(t), native, stopped, stopped)
}

// emulated is the load under emulation: 2,560 changes per second on each node.
var emulated = load{Flows: 2000, Interval: 100 * time.Millisecond}

// onHooks runs a test for each attach type, if the kernel supports hooks. With MAPSYNC_ONE_ATTACH it runs only the given
// one.
func onHooks(t *testing.T, one capture.Attach, test func(t *testing.T, p place)) {
	if ok, why := vm.CanAttachNatively(); !ok {
		if os.Getenv(inMachine) != "" {
			t.Fatal("attach hooks on a kernel of the matrix: ", why)
		}
		t.Skip("hooks are unavailable, make test runs this test in a virtual machine: ", why)
	}
	if err := features.HaveProgramType(ebpf.Syscall); errors.Is(err, ebpf.ErrNotSupported) {
		t.Skip("this test needs programs of type syscall: ", err)
	}
	for _, a := range []capture.Attach{capture.AttachFexit, capture.AttachKprobe} {
		if os.Getenv("MAPSYNC_ONE_ATTACH") != "" && a != one {
			continue
		}
		t.Run(string(a)+"/ring", func(t *testing.T) { test(t, &processes{t: t, attach: a}) })
	}
}

func TestHookedNodesSurviveKills(t *testing.T) {
	times := 20
	if testing.Short() {
		times = 2
	}
	onHooks(t, capture.AttachFexit, func(t *testing.T, p place) { testKills(t, p, emulated, times) })
}

func TestHookedStoppedPeerDoesNotSlowOthers(t *testing.T) {
	stopped := 60 * time.Second
	if testing.Short() {
		stopped = 10 * time.Second
	}
	onHooks(t, capture.AttachKprobe, func(t *testing.T, p place) { testStopped(t, p, emulated, stopped, stopped+2*poll.Limit) })
}
