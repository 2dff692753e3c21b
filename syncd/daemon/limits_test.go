package daemon_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// halfOpen opens connections to addr that never say anything.
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

// Clients that connect and are silent leave descriptors to the control socket, keep no
// peer out, and are ended.
func TestHalfOpenConnectionsKeepNobodyOut(t *testing.T) {
	n1, n2, m1, m2 := twoNodes(t, 1000)
	n1.start()
	halfOpen(t, n1.config.GRPCListen, 3000)
	halfOpen(t, n1.config.MetricsListen, 500)
	n2.start()
	eventually(t, "both ready", func() bool { return n1.status().Ready && n2.status().Ready && len(n1.status().Peers) == 1 })
	n1.write(m1, 0, 500, 7)
	eventually(t, "the peer's map holds all", func() bool { return holds(t, m2, 500, 7) })
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
			t.Errorf("no connection to %s was counted as rejected", listener)
		}
	}
	if n := n1.log.count("connections rejected"); n > 4 {
		t.Errorf("%d lines about rejected connections", n)
	}
}
