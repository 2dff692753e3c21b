package daemon_test

import (
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/internal/testcert"
	"mapsync/syncd/problem"
)

// TestUnknownClientsAreNotCritical: programs without credentials connect to the port for streams, from the address of a
// peer, too. None of them is a critical problem, and the refused ones are a warning with their address. A connection without a byte
// causes no problem.
func TestUnknownClientsAreNotCritical(t *testing.T) {
	n1, n2, _, _ := twoNodes(t, 100)
	ca, err := testcert.NewCA(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	n1.secure(ca, testcert.Options{}, 1)
	n2.secure(ca, testcert.Options{}, 1)
	startPair(t, n1, n2)
	poll.Eventually(t, "no problem is left of the start", func() bool { return len(n1.status().Problems) == 0 })

	n1.connectFrom(loopback(77), func(net.Conn) {})
	time.Sleep(3 * time.Second) // the list of problems is renewed each second
	if got := n1.status().Problems; len(got) > 0 {
		t.Errorf("problems after a connection without a byte: got %+v, want none", got)
	}
	n1.connectFrom(loopback(78), func(c net.Conn) { _, _ = c.Write([]byte("GET / HTTP/1.0\r\n\r\n")) })
	for _, from := range []string{loopback(79), loopback(2)} { // the last one is the address of the peer
		n1.connectFrom(from, func(c net.Conn) {
			scanner := tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}) //nolint:gosec // it verifies nothing
			_ = scanner.Handshake()
			_, _ = scanner.Read(make([]byte, 1)) // TLS 1.3 refuses the client after its handshake
		})
	}
	for _, from := range []string{loopback(78), loopback(79), loopback(2)} {
		n1.showsAbout("client-refused", from)
	}
	for _, p := range n1.status().Problems {
		if p.Severity != problem.Warning {
			t.Errorf("problem after unknown clients: got %+v, want warnings only", p)
		}
	}
	if s := n1.status(); len(s.Peers) != 1 || !s.Peers[0].Sending || !s.Peers[0].Receiving {
		t.Errorf("peers after unknown clients: got %+v, want one with both streams", s.Peers)
	}
}

// TestTLSScannerOfInsecureNode: a TLS scanner at an insecure node is a warning, too.
func TestTLSScannerOfInsecureNode(t *testing.T) {
	n1, n2, _, _ := twoNodes(t, 100)
	startPair(t, n1, n2)
	n1.connectFrom(loopback(79), func(c net.Conn) {
		_ = tls.Client(c, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}).Handshake() //nolint:gosec // it verifies nothing
	})
	n1.showsAbout("client-refused", loopback(79))
}

// connectFrom connects to the port for streams from an address, calls fn, and waits until one of both sides closes the connection.
func (n *node) connectFrom(from string, fn func(net.Conn)) {
	n.t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 5 * time.Second}
	c, err := dialer.DialContext(n.t.Context(), "tcp", n.config.GRPCListen)
	if err != nil {
		n.t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		n.t.Fatal(err)
	}
	fn(c)
	if err := c.(*net.TCPConn).CloseWrite(); err == nil {
		_, _ = io.Copy(io.Discard, c)
	}
}

// showsAbout waits until the node has a warning of a kind about a subject.
func (n *node) showsAbout(id, subject string) {
	n.t.Helper()
	poll.Eventually(n.t, "the warning "+id+" about "+subject, func() bool {
		for _, p := range n.status().Problems {
			if p.ID == id && p.Subject == subject {
				return p.Severity == problem.Warning
			}
		}
		return false
	})
}
