package daemon_test

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mapsync/internal/poll"
	"mapsync/syncd/config"
	"mapsync/syncd/daemon"
)

// TestExposureNeedsEncryption: a daemon with peers and without encryption does not start, on loopback either. The error has the
// remedies.
func TestExposureNeedsEncryption(t *testing.T) {
	for name, change := range map[string]func(*config.Config){
		"all addresses":  func(c *config.Config) { c.GRPCListen = "0.0.0.0:0" },
		"join":           func(c *config.Config) { c.Join = []string{loopback(2) + ":7946"} },
		"expected peers": func(c *config.Config) { c.ExpectedPeers = config.PeerList{"n2"} },
		"observers":      func(c *config.Config) { c.Observers = []string{"o"} },
	} {
		n := newNode(t, 1, "ct")
		n.config.Insecure, n.config.Join = false, nil
		change(&n.config)
		_, err := daemon.New(daemon.Options{Config: n.config, Logger: slog.New(slog.DiscardHandler)})
		for _, want := range []string{"without encryption", "tls-cert", "gossip-key-file", "insecure: true"} {
			if !errors.Is(err, daemon.ErrConfig) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: open a daemon without encryption: got error %v, want %q", name, err, want)
			}
		}
	}
}

// listening returns the sockets of TCP and UDP that this process has open on an address.
func listening(t *testing.T, address string) (sockets []string) {
	t.Helper()
	for network, port := range map[string]string{"tcp": "7947", "udp": "7946", "tcp gossip": "7946"} {
		network, _, _ = strings.Cut(network, " ")
		at := net.JoinHostPort(address, port)
		var c io.Closer
		var err error
		if network == "tcp" {
			c, err = net.Listen(network, at)
		} else {
			c, err = net.ListenPacket(network, at)
		}
		if err != nil {
			sockets = append(sockets, network+" "+at)
			continue
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return sockets
}

// TestStandaloneOpensNoPort: a node with neither credentials nor peers works, and opens no port for peers. With insecure, it does.
func TestStandaloneOpensNoPort(t *testing.T) {
	pin := filepath.Join(pinDir(t), "ct")
	m := pinned(t, pin, 8, 8, 100)
	n := newNode(t, 1, "ct="+pin)
	n.config.Insecure, n.config.Join = false, nil
	n.start()
	poll.Eventually(t, "the standalone node is ready", func() bool { return n.status().Ready })
	n.write(m, 0, 10, 1)
	poll.Eventually(t, "it records the entries of its map", func() bool { return n.status().Maps[0].Live == 10 })
	if got := listening(t, loopback(1)); len(got) > 0 {
		t.Errorf("open ports of a standalone node: got %q, want none", got)
	}
	s := n.status()
	if !s.Standalone || s.TLS || len(s.Problems) > 0 || s.GossipProblem != "" {
		t.Errorf("status: got standalone %v, TLS %v, problems %v, want a standalone node without problems", s.Standalone, s.TLS, s.Problems)
	}
	if text := n.metrics(); !strings.Contains(text, "mapsync_ready 1\n") || strings.Contains(text, "mapsync_gossip_members") {
		t.Error("metrics of a standalone node: want mapsync_ready 1, and no metrics of gossip")
	}
	if n.log.contains("streams are not encrypted") || !n.log.contains("node is standalone") {
		t.Error("log: want the standalone node, and no warning about its streams")
	}
	n.stop()

	n.config.Insecure = true
	n.start()
	poll.Eventually(t, "the insecure node is ready", func() bool { return n.status().Ready })
	if got := listening(t, loopback(1)); len(got) != 3 || n.status().Standalone {
		t.Errorf("open ports of an insecure node: got %q, want those of streams and gossip", got)
	}
	if !n.log.contains("streams are not encrypted") || !n.log.contains("insecure=true") {
		t.Error("log: want a warning about the streams of the insecure node")
	}
}

// TestStandaloneReload: a reload of a standalone node changes its maps, and refuses peers without encryption. Peers with insecure
// need a restart.
func TestStandaloneReload(t *testing.T) {
	dir := pinDir(t)
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	pinned(t, one, 8, 8, 100)
	pinned(t, two, 8, 8, 100)
	n := newNode(t, 1, "one="+one)
	n.config.Insecure, n.config.Join = false, nil
	n.start()
	next := n.config
	next.Maps = append(next.Maps, "two="+two)
	if done, err := n.reload(next); err != nil || len(done.Added) != 1 || len(done.NeedsRestart) > 0 {
		t.Errorf("reload with another map: got %+v, error %v, want it added", done, err)
	}
	next.Observers = []string{"o"}
	if _, err := n.reload(next); err == nil || !strings.Contains(err.Error(), "insecure: true") {
		t.Errorf("reload with observers and without encryption: got error %v, want it refused with the remedy", err)
	}
	next.Insecure = true
	if done, err := n.reload(next); err != nil || strings.Join(done.NeedsRestart, " ") != "insecure" {
		t.Errorf("reload with insecure: got %+v, error %v, want a restart for insecure", done, err)
	}
	if got := listening(t, loopback(1)); len(got) > 0 {
		t.Errorf("open ports after the reload: got %q, want none before a restart", got)
	}
	if _, err := os.Stat(n.config.ControlSocket); err != nil {
		t.Errorf("control socket: got error %v, want nil", err)
	}
}
