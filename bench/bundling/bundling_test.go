package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mapsync/docs/examples/bundling/trace"
)

func TestMain(m *testing.M) {
	if asked, err := runRole(); asked {
		exit(err)
	}
	os.Exit(m.Run())
}

// testOptions returns a short run. It skips kernels whose hooks lose connections or messages.
func testOptions(t *testing.T) *options {
	t.Helper()
	o := &options{
		rates: []int{1000}, sources: []int{5, 20}, sourcesRate: 1000, window: time.Second / 2, rounds: 1, scanInterval: 200 * time.Millisecond, restartFor: 6 * time.Second,
		interval: 5 * time.Millisecond, // many drains: each one may lose what a program adds meanwhile
		attach:   "auto", hooks: "auto",
	}
	switch kernel := os.Getenv("MAPSYNC_KERNEL"); {
	case kernel == "" || kernel == "native":
		o.attach = "syscall"
		if out, err := check(t.Context(), "kprobe"); err == nil {
			t.Log(out)
			o.attach = "auto"
		}
	case kernel == "5.10":
		t.Skip("the trace needs bpf_for_each_map_elem (kernels from 5.13) and pinned kprobes (from 5.15)")
	case kernel == "testing" || strings.Contains(kernel, "preempt"):
		t.Skip("a preemptible kernel skips runs of kprobe programs, and testing's also runs at the tracepoint: see Limits of the example")
	}
	out, err := check(t.Context(), o.hooks)
	switch {
	case err != nil && os.Getenv("MAPSYNC_KERNEL") != "":
		t.Fatalf("the trace on this kernel: got error %v, want hooks", err)
	case err != nil:
		t.Skipf("the trace is impossible: %v", err)
	}
	t.Log(out)
	return o
}

// check returns the hooks that the kernel supports.
func check(ctx context.Context, hooks string) (string, error) {
	var out bytes.Buffer
	err := trace.Run(ctx, &out, []string{"-check", "-hooks", hooks})
	return out.String(), err
}

func newTestCluster(t *testing.T, o *options) *cluster {
	t.Helper()
	c, err := newCluster(o)
	t.Cleanup(func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestMethodsCountExactly makes short and persistent connections. The sums of each method, and those in the table of syncd,
// are what the sockets have done, without the runs that the kernel has skipped and counted.
func TestMethodsCountExactly(t *testing.T) {
	o := testOptions(t)
	c := newTestCluster(t, o)
	r := report{options: o}
	for _, k := range kinds(o) {
		for _, method := range methods {
			m, err := c.measure(t.Context(), k, method)
			if err != nil {
				t.Fatal(err)
			}
			if m.roundTrips == 0 {
				t.Errorf("%s, %s: no round trips", k.name, method)
			}
			if events := m.tracerReport.Events; method == trace.Stream && !k.Persistent && events+m.tracerReport.Missed < 2*m.roundTrips {
				t.Errorf("%s, %s: got %d events for %d connections, want two for each", k.name, method, events, m.roundTrips)
			}
			r.list = append(r.list, m)
		}
	}
	if err := r.print(io.Discard); err != nil {
		t.Error(err)
	}
}

// TestSkippedRunsMayBeMissing: only runs that the kernel has skipped excuse a difference, and only a smaller sum.
func TestSkippedRunsMayBeMissing(t *testing.T) {
	sums := func(connections uint64) trace.Sums {
		return trace.Sums{Incoming: trace.Counters{Connections: connections}}
	}
	for _, c := range []struct {
		report trace.Report
		failed bool
	}{
		{trace.Report{Sums: sums(69)}, false},
		{trace.Report{Sums: sums(68)}, true},
		{trace.Report{Sums: sums(68), Missed: 1}, false},
		{trace.Report{Sums: sums(70), Missed: 1}, true},
		{trace.Report{Sums: sums(69), Lost: 1}, true},
	} {
		got, err := counted(&c.report, sums(69))
		if (err != nil) != c.failed || err == nil && got != c.report.Sums {
			t.Errorf("counted of %+v: got %+v, error %v, want an error: %t", c.report, got, err, c.failed)
		}
	}
}

// smaller is an observer whose sums lack a connection.
type smaller struct{}

func (smaller) sums(context.Context) (map[string]trace.Sums, error) {
	return map[string]trace.Sums{"n1": {Incoming: trace.Counters{Connections: 68}}}, nil
}

func (smaller) close() error { return nil }

// TestObserverMayLackSkippedRuns: an observer may have smaller sums if the kernel has skipped runs of this node's tracer.
func TestObserverMayLackSkippedRuns(t *testing.T) {
	want := map[string]trace.Sums{"n1": {Incoming: trace.Counters{Connections: 69}}}
	got, err := awaitSums(t.Context(), smaller{}, want, map[string]uint64{"n1": 1})
	if err != nil || got["n1"].Incoming.Connections != 68 {
		t.Errorf("sums without a skipped run: got %+v, error %v, want 68 connections", got, err)
	}
}

// buildExample returns the path of the example's program, or "" in a virtual machine, which has no compiler.
func buildExample(t *testing.T) string {
	t.Helper()
	if os.Getenv("MAPSYNC_KERNEL") != "" {
		return ""
	}
	program := filepath.Join(t.TempDir(), "bundling")
	if out, err := exec.Command("go", "build", "-o", program, "mapsync/docs/examples/bundling").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return program
}

// TestSumsSurviveRestart restarts syncd and the tracer of a node under load. The observer, at the peer, has the sums
// of both nodes, without runs that the kernel has skipped. In a virtual machine, the table of the peer's syncd takes its place.
func TestSumsSurviveRestart(t *testing.T) {
	o := testOptions(t)
	o.example = buildExample(t)
	if _, err := newTestCluster(t, o).restart(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// TestDatagramsAreCounted sends datagrams to a service of UDP, which has no peer: only kprobes see their addresses.
func TestDatagramsAreCounted(t *testing.T) {
	o := testOptions(t)
	if out, err := check(t.Context(), "kprobe"); err != nil {
		t.Skipf("%s%v", out, err)
	}
	o.hooks = "kprobe"
	n := newTestCluster(t, o).nodes[0]
	if _, err := n.startTracer(trace.Aggregate); err != nil {
		t.Fatal(err)
	}
	const datagrams, bytes = 25, 100
	err := n.Do(func() error { return sendDatagrams(datagrams, bytes) })
	var r trace.Report
	if stopErr := n.stopTracer(&r); err != nil || stopErr != nil {
		t.Fatal(err, stopErr)
	}
	want := trace.Report{Sums: trace.Sums{
		Outgoing: trace.Counters{Messages: datagrams, Sent: datagrams * bytes}, Incoming: trace.Counters{Received: datagrams * bytes},
	}}
	if r.Sums != want.Sums {
		t.Errorf("sums: got %+v, want %+v", r.Sums, want.Sums)
	}
}

// sendDatagrams sends datagrams to a service on this host, which receives them.
func sendDatagrams(n, size int) error {
	service, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(service)
	client, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(client)
	to := &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}, Port: servicePort}
	if err := unix.Bind(service, to); err != nil {
		return err
	}
	message := make([]byte, size)
	for range n {
		if err := unix.Sendto(client, message, 0, to); err != nil {
			return fmt.Errorf("send: %w", err)
		}
		if _, _, err := unix.Recvfrom(service, message, 0); err != nil {
			return fmt.Errorf("receive: %w", err)
		}
	}
	return nil
}
