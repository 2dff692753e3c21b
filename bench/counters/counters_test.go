package main

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"mapsync/docs/examples/counters"
	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
)

// TestSums: the exported sums equal what was sent, for ways to attach the accountant and methods of syncd to detect changes
// that this kernel allows.
func TestSums(t *testing.T) {
	for _, tt := range []struct {
		way    counters.Attach
		attach capture.Attach
	}{
		{counters.AttachTracepoint, capture.AttachNone}, // the only one without kprobes and fexit
		{counters.AttachFexit, capture.AttachFexit},
		{counters.AttachFexit, capture.AttachKprobe},
		{counters.AttachKprobe, capture.AttachFexit},
		{counters.AttachKprobe, capture.AttachKprobe},
	} {
		t.Run(string(tt.way)+"/"+string(tt.attach), func(t *testing.T) {
			if testing.Short() && string(tt.way) != string(tt.attach) && tt.attach != capture.AttachNone {
				t.Skip("-short: one way to attach both")
			}
			testSums(t, tt.way, tt.attach)
		})
	}
}

func testSums(t *testing.T, way counters.Attach, attach capture.Attach) {
	pins := mountPins(t)
	a, err := counters.Open(counters.Options{Attach: way, PinDir: pins, Network: counted})
	if err != nil {
		skipWithoutHooks(t, way, err)
	}
	defer closeAfter(t, a.Close)
	if attach != capture.AttachNone {
		c, err := capture.Open(capture.Options{Attach: attach, Buffer: capture.BufferRing, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			skipWithoutHooks(t, way, err)
		}
		closeAfter(t, c.Close)
	}
	net, err := newNetwork(allDestinations)
	defer closeAfter(t, net.close)
	if err != nil {
		t.Fatal(err)
	}
	n, err := newNode(t.TempDir(), 1, filepath.Join(pins, counters.MapName), string(attach), inProcess(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := (&sumsCheck{net: net, node: n, services: a.Map()}).run(t.Context()); err != nil {
		t.Error(err)
	}
	if bytes, calls, err := a.Missed(); bytes != 0 || calls != 0 || err != nil {
		t.Errorf("missed: got %d bytes, %d calls, error %v, want none", bytes, calls, err)
	}
}

// skipWithoutHooks skips the test, unless this is a virtual machine whose kernel has the hook.
func skipWithoutHooks(t *testing.T, way counters.Attach, err error) {
	t.Helper()
	kernel := os.Getenv("MAPSYNC_KERNEL")
	if kernel == "" || kernel == "native" || way == counters.AttachTracepoint { // from 6.3
		t.Skipf("the accountant or syncd cannot be attached here: %v", err)
	}
	t.Fatalf("attach the accountant by %s, and syncd: got error %v, want none on kernel %s", way, err, kernel)
}

func closeAfter(t *testing.T, end func() error) {
	t.Helper()
	if err := end(); err != nil {
		t.Error(err)
	}
}

// mountPins mounts a BPF filesystem until the end of the test.
func mountPins(t *testing.T) (dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("BPF programs and network namespaces need root; the virtual machine runs this test as root")
	}
	dir = t.TempDir()
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAfter(t, func() error { return unix.Unmount(dir, 0) }) })
	return dir
}

// inProcess runs syncd in the process of the test.
func inProcess(t *testing.T) launcher {
	return func(args []string) (stop func() error, err error) {
		var file string
		flags, defaults := pflag.NewFlagSet("run", pflag.ContinueOnError), config.Default()
		flags.StringVar(&file, "config", "", "")
		defaults.Bind(flags)
		if err := flags.Parse(args); err != nil {
			return nil, err
		}
		c, err := config.Load(file, flags)
		if err != nil {
			return nil, err
		}
		d, err := daemon.New(daemon.Options{Config: c, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- d.Run(ctx) }()
		return func() error {
			cancel()
			return <-done
		}, nil
	}
}

// TestDestinationsOfOtherNetworks: the accountant counts the destinations of its network only.
func TestDestinationsOfOtherNetworks(t *testing.T) {
	pins := mountPins(t)
	a, err := counters.Open(counters.Options{PinDir: pins, Network: netip.PrefixFrom(destination(0).Addr(), 32)})
	if err != nil {
		skipWithoutHooks(t, counters.AttachAuto, err)
	}
	defer closeAfter(t, a.Close)
	net, err := newNetwork(2)
	defer closeAfter(t, net.close)
	if err != nil {
		t.Fatal(err)
	}
	check := sumsCheck{net: net, services: a.Map(), sent: make(map[netip.Addr]uint64)}
	if _, err := check.send(2); err != nil {
		t.Fatal(err)
	}
	delete(check.sent, destination(1).Addr())
	if err := check.mapIsExact(t.Context()); err != nil {
		t.Error(err)
	}
	check.sent = map[netip.Addr]uint64{destination(1).Addr(): 0}
	if err := check.mapIsExact(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestWaysToAttach: an unknown way is an error that lists the others.
func TestWaysToAttach(t *testing.T) {
	pins := mountPins(t)
	a, err := counters.Open(counters.Options{Attach: "uprobe", PinDir: pins})
	if err == nil {
		t.Fatal(errors.Join(errors.New("Open: got no error, want one"), a.Close()))
	}
	if !strings.Contains(err.Error(), "fexit") {
		t.Errorf("Open: got error %q, want one that lists the ways", err)
	}
}
