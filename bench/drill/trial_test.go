package drill

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"mapsync/bench/lb"
	"mapsync/bench/lb/bpf"
	"mapsync/internal/vm"
)

// needSyncd returns the path of this binary, which is also the nodes' syncd. It skips the test if
// hooks are unavailable. On a kernel of the matrix it fails instead.
func needSyncd(t *testing.T) string {
	t.Helper()
	if ok, why := canAttach(t); !ok {
		t.Skip("hooks are unavailable, make test runs this test in a virtual machine: ", why)
	}
	return thisSyncd(t)
}

// canAttach reports whether hooks are available. If not, it fails the test on a kernel of the
// matrix, else it returns the reason.
func canAttach(t *testing.T) (ok bool, why string) {
	t.Helper()
	ok, why = vm.CanAttachNatively()
	if !ok && os.Getenv("MAPSYNC_KERNEL") != "" {
		t.Fatal("attach hooks on a kernel of the matrix: ", why)
	}
	return ok, why
}

// thisSyncd makes this binary the nodes' syncd and returns its path.
func thisSyncd(t *testing.T) string {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(syncdVariable, "1")
	return program
}

// trial is a run whose steps the test controls.
type trial struct {
	*run
	t     *testing.T
	close func()
}

// newTrial prepares a run with syncd, before the sessions are opened. adjust may change the run.
// The trial is closed at the end of the test, or by close.
func newTrial(t *testing.T, opts Options, adjust func(*run)) *trial {
	t.Helper()
	opts.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	opts.setDefaults()
	tr := &trial{t: t, run: &run{opts: &opts, tools: new(tools), name: "real", log: opts.Logger}}
	tr.must(opts.validate())
	adjust(tr.run)
	var err error
	tr.workDir, err = newWorkDir()
	tr.must(err)
	tr.close = sync.OnceFunc(func() {
		if err := errors.Join(tr.end(), tr.workDir.remove()); err != nil {
			t.Error("clean up: ", err)
		}
	})
	t.Cleanup(tr.close)
	tr.must(tr.build(t.Context()))
	return tr
}

func (tr *trial) must(err error) {
	tr.t.Helper()
	if err != nil {
		tr.t.Fatal(err)
	}
}

// eventually exchanges data until ok returns nil. It returns the last error of ok if the limit
// passes.
func (tr *trial) eventually(limit time.Duration, ok func() error) error {
	for deadline := time.Now().Add(limit); ; {
		wrong := ok()
		if wrong == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("not within %v: %w", limit, wrong)
		}
		if err := tr.flow(tr.t.Context(), 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// checkMaps returns an error if the map of a node does not hold exactly the sessions [from, all).
func (tr *trial) checkMaps(from int, nodes ...int) error {
	for _, i := range nodes {
		if err := tr.checkSessions(i, tr.sessions(i), from); err != nil {
			return err
		}
	}
	return nil
}

// checkSessions returns an error if found, from a node's map, is not exactly the sessions [from,
// all).
func (tr *trial) checkSessions(i int, found map[int]mapSession, from int) error {
	if len(found) != tr.opts.Sessions-from {
		return fmt.Errorf("%s has %d of %d sessions", tr.net.nodes[i].name, len(found), tr.opts.Sessions-from)
	}
	for id := from; id < tr.opts.Sessions; id++ {
		if found[id].entries != 2 {
			return fmt.Errorf("%s has %d entries of session %d", tr.net.nodes[i].name, found[id].entries, id)
		}
	}
	return nil
}

// mapSession is the state of one session in a map.
type mapSession struct {
	entries  int
	lastUsed uint64 // of the entry with the latest use
}

// sessions returns the content of a node's map, by session.
func (tr *trial) sessions(i int) map[int]mapSession {
	tr.t.Helper()
	addrs := sources(tr.opts.Sessions)
	found := make(map[int]mapSession, tr.opts.Sessions)
	tr.must(tr.eachEntry(i, func(key *bpf.LBCtKey, e *lb.Entry) {
		id := sessionOf(addrs, key, e.Direction)
		h := found[id]
		h.entries++
		h.lastUsed = max(h.lastUsed, e.LastUsed)
		found[id] = h
	}))
	return found
}

// sessionOf returns the session of an entry, from the client's address: see clients.connect.
func sessionOf(addrs []netip.Addr, key *bpf.LBCtKey, direction uint8) int {
	word, port := key.Saddr[0], key.Sport
	if direction == 1 {
		word, port = key.Daddr[0], key.Dport
	}
	var addr [4]byte
	binary.NativeEndian.PutUint32(addr[:], word)
	for i, a := range addrs {
		if a == netip.AddrFrom4(addr) {
			return (int(port<<8|port>>8)-firstPort)*len(addrs) + i
		}
	}
	return -1
}

// stats requests the counters of a node's load balancer.
func (tr *trial) stats(i int) lb.Stats {
	tr.t.Helper()
	tr.must(tr.balancers[i].send(command{Count: true}))
	r, err := tr.balancers[i].nextReport()
	tr.must(err)
	if r.Stats == nil {
		tr.t.Fatalf("counters of %s: got %+v, want Stats", tr.balancers[i].name, r)
	}
	return *r.Stats
}

// metric requests one metric of a node's syncd. name includes the labels.
func (tr *trial) metric(i int, name string) float64 {
	tr.t.Helper()
	for _, line := range tr.metrics(i) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, err := strconv.ParseFloat(value, 64)
			tr.must(err)
			return n
		}
	}
	tr.t.Fatalf("%s has no metric %s", tr.daemons[i].process.name, name)
	return 0
}

// metrics returns the lines of all metrics of a node.
func (tr *trial) metrics(i int) (lines []string) {
	tr.t.Helper()
	var conn net.Conn
	tr.must(tr.net.nodes[i].ns.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", "127.0.0.1:9746", 10*time.Second)
		return err
	}))
	defer conn.Close()
	_, err := conn.Write([]byte("GET /metrics HTTP/1.0\r\n\r\n"))
	tr.must(err)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	tr.must(err)
	defer resp.Body.Close()
	for text := bufio.NewScanner(resp.Body); text.Scan(); {
		lines = append(lines, text.Text())
	}
	return lines
}

// logState logs the counters and metrics of the live nodes, for the analysis of a failure.
func (tr *trial) logState() {
	tr.t.Helper()
	for i := range tr.balancers {
		if !tr.isRunning(i) {
			continue
		}
		tr.t.Logf("%s: %+v", tr.net.nodes[i].name, tr.stats(i))
		for _, line := range tr.metrics(i) {
			if strings.HasPrefix(line, "mapsync_") {
				tr.t.Log(tr.net.nodes[i].name, line)
			}
		}
	}
}

// restoredCount returns the number of expired entries that a node's syncd has restored.
func (tr *trial) restoredCount(i int) int {
	tr.t.Helper()
	return int(tr.metric(i, `mapsync_map_local_changes_total{map="ct_map",outcome="restored"}`))
}

func (tr *trial) isRunning(i int) bool {
	select {
	case <-tr.balancers[i].done:
		return false
	default:
		return true
	}
}

// mustNotReplicate fails if the standby's syncd has accepted a local change, such as a delete: the
// standby has received no packet.
func (tr *trial) mustNotReplicate() {
	tr.t.Helper()
	n := tr.metric(standby, `mapsync_map_local_changes_total{map="ct_map",outcome="accepted"}`)
	if n > 0 {
		tr.logState()
		tr.t.Fatalf("local changes of the standby, which received no packet: got %v, want 0", n)
	}
}

// failOver kills the active node and expects that none of the remaining sessions is lost.
func (tr *trial) failOver(left int) error {
	out := &Outcome{Sessions: left}
	cut, err := tr.cut(out)
	if err == nil {
		err = tr.decide(tr.t.Context(), cut, out)
	}
	if err == nil && (out.Survived != left || out.Reset+out.Stalled+out.Corrupt > 0) {
		err = fmt.Errorf("not every session survived: %+v", out)
	}
	tr.lossAllowed = false
	return err
}

// stallMonitor wakes up periodically on the processor of syncd and of the load balancers' user
// space. It measures the longest delay of a wake-up.
type stallMonitor struct {
	stop    chan struct{}
	stopped chan time.Duration
}

func newStallMonitor() *stallMonitor {
	h := &stallMonitor{make(chan struct{}), make(chan time.Duration, 1)}
	go func() {
		var worst time.Duration
		_ = control.run(func() error {
			const beat = 10 * time.Millisecond
			for {
				began := time.Now()
				select {
				case <-h.stop:
					return nil
				case <-time.After(beat):
					worst = max(worst, time.Since(began)-beat)
				}
			}
		})
		h.stopped <- worst
	}()
	return h
}

// finish stops the monitor and returns the longest delay. It must be called once.
func (h *stallMonitor) finish() time.Duration {
	close(h.stop)
	return <-h.stopped
}
