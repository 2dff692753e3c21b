package main

import (
	"net"
	"strings"
	"testing"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"

	"golang.org/x/sys/unix"
)

// TestCheckBesideRunningDaemon: while syncd runs, its own ports are usable for its restart, and those of other programs are not.
func TestCheckBesideRunningDaemon(t *testing.T) {
	w := newWorkplace(t)
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	own := []string{"--grpc-listen=" + freePort(t), "--gossip-listen=" + freePort(t)}
	var p prediction
	running := p.command(w, "run", own)
	if err := running.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = running.Process.Signal(unix.SIGTERM)
		_ = running.Wait()
	})
	client := daemon.NewClient(w.path("syncd.sock"))
	poll.Eventually(t, "answer of syncd", func() bool { _, err := client.Status(t.Context()); return err == nil }, func() any { return nil })
	if out, code := p.check(w, own); code != 0 {
		t.Errorf("check of the ports in use by syncd: got exit code %d, want 0\n%s", code, out)
	}
	out, code := p.check(w, append(own, "--metrics-listen="+other.Addr().String()))
	if code != exitUsage || !strings.Contains(out, "metrics-listen: listen tcp "+other.Addr().String()) {
		t.Errorf("check of the port of another program: got exit code %d, want 2 and the port\n%s", code, out)
	}
}

// freePort returns a loopback address on which nothing listens.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}
