// Package examples tests the examples from outside. An example with code generated from an exported
// file cannot be linked with the product's protocol package, because both register the same types.
package examples

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	lbbpf "mapsync/bench/lb/bpf"
	"mapsync/internal/handbook"
	"mapsync/internal/injector"
	"mapsync/internal/poll"
	"mapsync/internal/testcert"
	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
	"mapsync/syncd/table"
)

// TestFlowsFollowsNode runs a node beside a load balancer's map, with TLS as in production, and the
// example as its observer.
func TestFlowsFollowsNode(t *testing.T) {
	m := newMap(t, nil)
	dir := t.TempDir()
	ca, err := testcert.NewCA(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	c := startNode(t, dir, ca, reference(t, m))
	write := openInjector(t, m, c)
	observer, err := ca.Issue("observer", testcert.Options{})
	if err != nil {
		t.Fatal(err)
	}
	write(table.OpUpdate, 1)
	command, shown := readPage(t)
	lines := runExample(t, adapt(command, observer)...)
	var printed []string
	want := func(parts ...string) {
		t.Helper()
		late := time.After(20 * time.Second)
		for {
			var line string
			var ok bool
			select {
			case line, ok = <-lines:
			case <-late:
			}
			if !ok {
				t.Fatalf("output of the example: %q is missing", parts)
			}
			printed = append(printed, line)
			all := true
			for _, part := range parts {
				all = all && strings.Contains(line, part)
			}
			if all {
				return
			}
			t.Log("skipped line: ", line)
		}
	}
	want("10.1.2.3:1001 > 192.0.2.1:443", "state=3", "backend=10.200.0.7:8080", "packets=11", `owner="lb1"`)
	want("-- caught up")
	write(table.OpUpdate, 2)
	want("10.1.2.3:1002 > 192.0.2.1:443", "packets=12", "used="+time.Now().UTC().Format("2006-01-02T15"))
	write(table.OpDelete, 2)
	want("10.1.2.3:1002 > 192.0.2.1:443", "closed")
	compareLines(t, shown, printed)
}

// adapt returns the arguments of the page with the address and the files of the test.
func adapt(command string, observer testcert.Pair) []string {
	return strings.Fields(strings.NewReplacer("10.0.0.1:7947", address()+":7947", "observer.crt", observer.CertFile,
		"observer.key", observer.KeyFile, "ca.crt", observer.CAFile).Replace(command))
}

// newMap creates the load balancer's map. change, if not nil, changes its types first.
func newMap(t *testing.T, change func(*ebpf.MapSpec)) *ebpf.Map {
	t.Helper()
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	spec, err := lbbpf.LoadLB()
	if err != nil {
		t.Fatal(err)
	}
	ct := spec.Maps["ct_map"]
	ct.Pinning = ebpf.PinNone
	if change != nil {
		change(ct)
	}
	m, err := ebpf.NewMap(ct)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// reference returns the setting map of a node for the map.
func reference(t *testing.T, m *ebpf.Map) string {
	t.Helper()
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return fmt.Sprintf("ct_map=id:%d", id)
}

// compareLines checks that the example has printed each line that its page shows, with other numbers.
func compareLines(t *testing.T, shown string, printed []string) {
	t.Helper()
	for line := range strings.Lines(shown) {
		if !slices.ContainsFunc(printed, func(p string) bool { return handbook.CompareShape(line, p) == nil }) {
			t.Errorf("README.md of the example: got no line such as %q, want one of %q", line, printed)
		}
	}
}

// readPage returns the arguments of the example on its page, and the output there.
func readPage(t *testing.T) (arguments, output string) {
	t.Helper()
	page, err := handbook.Read("../../docs/examples/flows/README.md")
	if err != nil {
		t.Fatal(err)
	}
	steps, err := page.Steps()
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range steps {
		if rest, ok := strings.CutPrefix(step.Commands, "bin/flows "); ok && step.Shown {
			return rest, step.Output
		}
	}
	t.Fatal("README.md of the example: got no command bin/flows with its output, want one")
	return "", ""
}

// address returns a loopback address that no other process of this test uses.
func address() string { return fmt.Sprintf("127.%d.%d.77", 1+os.Getpid()/250%250, os.Getpid()%250) }

// startNode runs a daemon whose events come from an injector.
func startNode(t *testing.T, dir string, ca *testcert.CA, ctMap string) *capture.Capture {
	t.Helper()
	pair, err := ca.Issue("lb1", testcert.Options{})
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(dir, "gossip.key")
	if err := os.WriteFile(key, []byte(base64.StdEncoding.EncodeToString(make([]byte, 32))), 0o600); err != nil {
		t.Fatal(err)
	}
	o := config.Default()
	o.NodeName, o.Maps = "lb1", []string{ctMap}
	o.GossipListen, o.GRPCListen, o.MetricsListen = address()+":7946", address()+":7947", ""
	o.GossipKeyFile, o.TLSCert, o.TLSKey, o.TLSCA = key, pair.CertFile, pair.KeyFile, pair.CAFile
	o.Observers = []string{"observer"}
	o.StateDir, o.ControlSocket = dir, filepath.Join(dir, "syncd.sock")
	var c *capture.Capture
	d, err := daemon.New(daemon.Options{
		Config: o, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
		OpenCapture: func(o capture.Options) (*capture.Capture, error) {
			o.Attach = capture.AttachNone
			c, err = capture.Open(o)
			return c, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	client := daemon.NewClient(o.ControlSocket)
	poll.Eventually(t, "the node is ready", func() bool {
		s, err := client.Status(t.Context())
		return err == nil && s.Ready
	})
	return c
}

// openInjector returns a function that changes the map as the load balancer's data plane would.
func openInjector(t *testing.T, m *ebpf.Map, c *capture.Capture) func(op table.Op, port uint16) {
	t.Helper()
	f, err := injector.Open(m, c.Maps(), injector.Options{Capacity: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return func(op table.Op, n uint16) {
		t.Helper()
		port := 1000 + n
		k := lbbpf.LBCtKey{Saddr: [4]uint32{0x0302010a}, Daddr: [4]uint32{0x010200c0}, Sport: port<<8 | port>>8, Dport: 0xbb01, Proto: 6, Family: 2}
		v := lbbpf.LBCtValue{LastUsed: uint64(monotonic(t)), State: 3, Packets: uint64(10 + n)}
		v.Nat.Daddr[0], v.Nat.Dport = 0x0700c80a, 0x901f
		f.Reset()
		f.Add(op, table.ContextPacket, (*[48]byte)(unsafe.Pointer(&k))[:], (*[176]byte)(unsafe.Pointer(&v))[:])
		if failed, err := f.Run(); err != nil || failed > 0 {
			t.Fatalf("write an entry: %d failed, %v, want 0 failed", failed, err)
		}
	}
}

// monotonic returns CLOCK_MONOTONIC in ns, the clock of bpf_ktime_get_ns.
func monotonic(t *testing.T) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	return ts.Nano()
}

// runExample builds and runs the program, and returns the lines that it prints.
func runExample(t *testing.T, args ...string) <-chan string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), buildExample(t), args...)
	cmd.Stderr = t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := make(chan string, 64)
	go func() {
		defer close(lines)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	return lines
}

// buildExample builds the program and returns its path.
func buildExample(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "flows")
	if out, err := exec.Command("go", "build", "-o", program, "mapsync/docs/examples/flows").CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return program
}
