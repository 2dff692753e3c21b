package daemon_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mapsync/internal/poll"
)

// dialerFrom returns a dialer with a local address, and with a receive buffer of this size unless it is 0.
func dialerFrom(address string, buffer int) *net.Dialer {
	return &net.Dialer{
		Timeout: 5 * time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)},
		Control: func(_, _ string, conn syscall.RawConn) (err error) {
			if buffer > 0 {
				failed := conn.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, buffer) })
				if err == nil {
					err = failed
				}
			}
			return err
		},
	}
}

// unread opens connections that request paths and never read. It returns once the answers have begun to arrive on the last
// ones.
func unread(t *testing.T, to string, connections, last int, paths ...string) {
	t.Helper()
	var requests strings.Builder
	for i := range 300 { // the buffers of both sides hold the requests, and not the answers
		fmt.Fprintf(&requests, "GET %s HTTP/1.1\r\nHost: n\r\n\r\n", paths[i%len(paths)])
	}
	dialer := dialerFrom("127.0.0.1", 2048)
	var open []syscall.RawConn
	for range connections {
		conn, err := dialer.DialContext(t.Context(), "tcp", to)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		raw, err := conn.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, raw)
		_, _ = io.WriteString(conn, requests.String()) // the daemon may have ended the connection because of its limits
	}
	for _, raw := range open[connections-last:] {
		poll.Eventually(t, "an answer arrives", func() bool {
			n := 0
			err := raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
			return err == nil && n > 0
		})
	}
}

// TestUnreadResponsesDelayNoOtherClient: 64 connections of one address that request metrics or health and never read delay no
// request of another address.
func TestUnreadResponsesDelayNoOtherClient(t *testing.T) {
	n1, n2, _, _ := twoNodes(t, 1000)
	startPair(t, n1, n2)
	unread(t, n1.config.MetricsListen, 64, 32, "/metrics", "/readyz", "/healthz")
	client := http.Client{
		Timeout:   10 * time.Second,
		Transport: &http.Transport{DialContext: dialerFrom("127.0.0.2", 0).DialContext, DisableKeepAlives: true},
	}
	for range 30 {
		for _, path := range []string{"/metrics", "/readyz", "/healthz"} {
			response, err := client.Get("http://" + n1.config.MetricsListen + path)
			if err != nil {
				t.Fatalf("%s: got error %v, want 200", path, err)
			}
			text, err := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if response.StatusCode != http.StatusOK || err != nil || len(text) == 0 {
				t.Fatalf("%s: got %s, error %v, %d bytes, want 200 and a body", path, response.Status, err, len(text))
			}
		}
	}
	if !n1.status().Ready {
		t.Error("status: got not ready, want ready")
	}
}

// TestScrapeHasItsLength: a client detects a response that was cut off by its length.
func TestScrapeHasItsLength(t *testing.T) {
	n := newNode(t, 1, "ct")
	n.config.Join = nil
	n.start()
	conn, err := dialerFrom("127.0.0.2", 0).DialContext(t.Context(), "tcp", n.config.MetricsListen)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, encoding := range []string{"identity", "gzip"} {
		if _, err := fmt.Fprintf(conn, "GET /metrics HTTP/1.1\r\nHost: n\r\nAccept-Encoding: %s\r\n\r\n", encoding); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, response.Body)
		if err != nil || n != response.ContentLength || n == 0 {
			t.Errorf("%s: got %d bytes, error %v, length %d in the header, want them to agree", encoding, n, err, response.ContentLength)
		}
		if got := response.Header.Get("Content-Encoding"); got != "" && got != encoding {
			t.Errorf("content encoding: got %q, want %q", got, encoding)
		}
	}
}
