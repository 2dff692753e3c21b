package daemon_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/problem"
)

// halfOpen opens connections to addr that never send anything.
func halfOpen(t *testing.T, addr string, connections int) {
	t.Helper()
	for range connections {
		conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
}

// Clients that connect and send nothing do not use up the file descriptors of the control socket.
// They do not block peers, and their connections end.
func TestHalfOpenConnectionsDoNotBlockPeers(t *testing.T) {
	n1, n2, m1, m2 := twoNodes(t, 1000)
	n1.start()
	halfOpen(t, n1.config.GRPCListen, 3000)
	halfOpen(t, n1.config.MetricsListen, 500)
	n2.start()
	poll.Eventually(t, "both nodes are ready", func() bool { return n1.status().Ready && n2.status().Ready && len(n1.status().Peers) == 1 })
	n1.write(m1, 0, 500, 7)
	poll.Eventually(t, "the peer's map holds all entries", func() bool { return holds(t, m2, 500, 7) })
	response, err := http.Get("http://" + n1.config.MetricsListen + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, listener := range []string{"grpc", "metrics"} {
		sample := `mapsync_connections_rejected_total{listener="` + listener + `",reason="address"} `
		if !strings.Contains(string(text), sample) || strings.Contains(string(text), sample+"0\n") {
			t.Errorf("rejected connections to %s: got 0, want some", listener)
		}
	}
	n1.shows("connections-limited", problem.Warning, "connections rejected")
	if n := n1.log.count("connections rejected"); n > 4 {
		t.Errorf("log lines about rejected connections: got %d, want at most 4", n)
	}
}
