package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
)

// startDaemon runs a node without peers on loopback, with the map of a name. Expected peers are known nodes.
func startDaemon(t *testing.T, mapName string, expected ...string) (socket string) {
	t.Helper()
	c := config.Default()
	c.ExpectedPeers, c.Insecure = expected, true
	c.Maps, c.NodeName, c.StateDir = []string{mapName}, "cli", t.TempDir()
	c.GossipListen, c.GRPCListen, c.MetricsListen = "127.0.2.1:7946", "127.0.2.1:7947", ""
	c.ControlSocket = filepath.Join(c.StateDir, "syncd.sock")
	d, err := daemon.New(daemon.Options{
		Config: c, Version: "test", Logger: slog.New(slog.DiscardHandler),
		OpenCapture: func(o capture.Options) (*capture.Capture, error) {
			o.Attach = capture.AttachNone
			return capture.Open(o)
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
	return c.ControlSocket
}

func TestWaitReadyAndDrain(t *testing.T) {
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	const name = "cli_handover"
	absent := filepath.Join(t.TempDir(), "none.sock")
	begun := time.Now()
	if _, err := run(t, "wait-ready", "--control-socket", absent, "--timeout", "300ms"); !errors.Is(err, errTimeout) || !strings.Contains(err.Error(), "no syncd answers") {
		t.Errorf("wait-ready without a daemon: got error %v, want a timeout", err)
	}
	if took := time.Since(begun); took < 300*time.Millisecond || took > poll.Limit {
		t.Errorf("wait-ready --timeout 300ms: took %s, want 300 ms to %s", took, poll.Limit)
	}

	socket := startDaemon(t, name)
	poll.Eventually(t, "syncd answers", func() bool { _, err := daemon.NewClient(socket).Ready(t.Context()); return err == nil })
	out, err := run(t, "wait-ready", "--control-socket", socket, "--timeout", "2500ms")
	if !errors.Is(err, errTimeout) || !strings.Contains(err.Error(), name+": waiting") || !strings.Contains(out, "waiting: "+name+": waiting\n") {
		t.Errorf("wait-ready without a map: got error %v, want a timeout that names the map\n%s", err, out)
	}
	time.AfterFunc(500*time.Millisecond, func() {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Name: name, Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 10})
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { m.Close() })
	})
	if out, err := run(t, "wait-ready", "--control-socket", socket, "--timeout", "20s"); err != nil || !strings.Contains(out, "ready after") {
		t.Errorf("wait-ready with a map: got error %v, want none\n%s", err, out)
	}

	out, err = run(t, "drain", "--control-socket", socket, "--timeout", "2500ms")
	if err == nil || !strings.Contains(err.Error(), "no peer can take over") || !strings.Contains(err.Error(), "--force") {
		t.Errorf("drain the last node: got error %v, want it refused\n%s", err, out)
	}
	if out, err := run(t, "wait-ready", "--control-socket", socket, "--timeout", "0s"); err != nil {
		t.Errorf("wait-ready after a refused drain: got error %v, want none\n%s", err, out)
	}
	out, err = run(t, "drain", "--force", "--control-socket", socket, "--timeout", "20s")
	if err != nil || !strings.Contains(out, "NOT handed over: no peer is live") {
		t.Errorf("drain --force: got error %v, want none\n%s", err, out)
	}
	if _, err := run(t, "wait-ready", "--control-socket", socket, "--timeout", "0s"); !errors.Is(err, errTimeout) || !strings.Contains(err.Error(), "drained since") {
		t.Errorf("wait-ready on a drained node: got error %v, want a timeout", err)
	}
	if _, err := run(t, "status", "--control-socket", socket); !errors.Is(err, errReported) {
		t.Errorf("status of a drained node: got error %v, want errReported", err)
	}
	if _, err := run(t, "drain", "--undo", "--control-socket", socket); err != nil {
		t.Error(err)
	}
	if out, err := run(t, "wait-ready", "--control-socket", socket, "--timeout", "0s"); err != nil {
		t.Errorf("wait-ready after drain --undo: got error %v, want none\n%s", err, out)
	}
}

// newTestMap creates a map that a daemon finds by its name, or by the reference.
func newTestMap(t *testing.T, name string) (ref string) {
	t.Helper()
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: name, Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 10})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return fmt.Sprint("ct=id:", id)
}
