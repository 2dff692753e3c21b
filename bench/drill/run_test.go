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

// needSyncd returns the path of this binary, which is the nodes' syncd as well. It skips
// the test where no hooks can be had, but on a kernel of the matrix.
func needSyncd(t *testing.T) string {
	t.Helper()
	if ok, why := vm.CanAttachNatively(); !ok {
		if os.Getenv("MAPSYNC_KERNEL") != "" {
			t.Fatal("a kernel of the matrix cannot be hooked: ", why)
		}
		t.Skip("no hooks here, make test runs this in a virtual machine: ", why)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(syncdVariable, "1")
	return program
}

// trial is a run of a test that goes its own way.
type trial struct {
	*run
	t     *testing.T
	close func()
}

// newTrial makes a run with syncd, whose sessions are yet to be opened; with says what is
// special about it. It is closed when the test ends, or by close.
func newTrial(t *testing.T, opts Options, with func(*run)) *trial {
	t.Helper()
	opts.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	opts.setDefaults()
	tr := &trial{t: t, run: &run{opts: &opts, tools: new(tools), name: "real", log: opts.Logger}}
	tr.must(opts.validate())
	with(tr.run)
	var err error
	tr.place, err = newWorkplace()
	tr.must(err)
	tr.close = sync.OnceFunc(func() {
		if err := errors.Join(tr.end(), tr.place.remove()); err != nil {
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

// eventually lets data flow until ok returns nil, and returns what it said last when that
// takes too long.
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

// whole says what the maps of some nodes lack of the sessions [from, all), and what they
// have besides.
func (tr *trial) whole(from int, nodes ...int) error {
	for _, i := range nodes {
		if err := tr.complete(i, tr.sessions(i), from); err != nil {
			return err
		}
	}
	return nil
}

// complete says what is wrong with what was found on a node, of the sessions [from, all).
func (tr *trial) complete(i int, found map[int]held, from int) error {
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

// held is what a map has of one session.
type held struct {
	entries  int
	lastUsed uint64 // of the entry that was used last
}

// sessions returns what the map of a node holds, by session.
func (tr *trial) sessions(i int) map[int]held {
	tr.t.Helper()
	addrs := sources(tr.opts.Sessions)
	found := make(map[int]held, tr.opts.Sessions)
	tr.must(tr.eachEntry(i, func(key *bpf.LBCtKey, e *lb.Entry) {
		id := sessionOf(addrs, key, e.Direction)
		h := found[id]
		h.entries++
		h.lastUsed = max(h.lastUsed, e.LastUsed)
		found[id] = h
	}))
	return found
}

// sessionOf tells by the client's address whose entry it is: see clients.connect.
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

// stats asks the load balancer of a node.
func (tr *trial) stats(i int) lb.Stats {
	tr.t.Helper()
	tr.must(tr.balancers[i].order(order{Count: true}))
	r, err := tr.balancers[i].answer()
	tr.must(err)
	if r.Stats == nil {
		tr.t.Fatalf("%s answers %+v", tr.balancers[i].name, r)
	}
	return *r.Stats
}

// metric asks the syncd of a node for one metric, named with its labels.
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

// tell logs what the nodes that live know, for whoever looks into a failure.
func (tr *trial) tell() {
	tr.t.Helper()
	for i := range tr.balancers {
		if !tr.lives(i) {
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

// putBack is how many expiries the syncd of a node has put back.
func (tr *trial) putBack(i int) int {
	tr.t.Helper()
	return int(tr.metric(i, `mapsync_map_local_changes_total{map="ct_map",outcome="restored"}`))
}

func (tr *trial) lives(i int) bool {
	select {
	case <-tr.balancers[i].done:
		return false
	default:
		return true
	}
}

// mustBeSilent fails when the standby's syncd has made a change of anything that it saw, such as
// a delete: no packet has come there.
func (tr *trial) mustBeSilent() {
	tr.t.Helper()
	n := tr.metric(standby, `mapsync_map_local_changes_total{map="ct_map",outcome="accepted"}`)
	if n > 0 {
		tr.tell()
		tr.t.Fatalf("the standby has seen no packet, and tells %v changes of its own", n)
	}
}

// failOver kills the active node and expects that no session of those left is lost.
func (tr *trial) failOver(left int) error {
	out := &Outcome{Sessions: left}
	cut, err := tr.cut(out)
	if err == nil {
		err = tr.decide(tr.t.Context(), cut, out)
	}
	if err == nil && (out.Survived != left || out.Reset+out.Stalled+out.Corrupt > 0) {
		err = fmt.Errorf("not every session survived: %+v", out)
	}
	tr.judging = false
	return err
}

// heart beats on the processor of the load balancers' user space and of syncd, and tells
// for how long at most it could not.
type heart struct {
	stop    chan struct{}
	stopped chan time.Duration
}

func newHeart() *heart {
	h := &heart{make(chan struct{}), make(chan time.Duration, 1)}
	go func() {
		var worst time.Duration
		_ = control.do(func() error {
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

// end stops the heart. Call it once.
func (h *heart) end() time.Duration {
	close(h.stop)
	return <-h.stopped
}
