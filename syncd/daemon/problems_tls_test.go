package daemon_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/internal/testcert"
	"mapsync/syncd/problem"
)

// TestWrongCAIsAProblem: the certificate of one node is from another CA. Both nodes have the cause, once in the log.
func TestWrongCAIsAProblem(t *testing.T) {
	n1, n2, _, _ := twoNodes(t, 100)
	for i, n := range []*node{n1, n2} {
		ca, err := testcert.NewCA(t.TempDir(), fmt.Sprint("ca", i))
		if err != nil {
			t.Fatal(err)
		}
		n.secure(ca, testcert.Options{}, 1)
	}
	n1.start()
	n2.start()
	p := n1.shows("connection-refused", problem.Critical, "its certificate (for n2) was signed by an unknown CA")
	n2.shows("connection-refused", problem.Critical, "its certificate (for n1) was signed by an unknown CA")
	if p := n1.shows("peer-unreachable", problem.Critical, "signed by an unknown CA"); !strings.HasSuffix(p.Remedy, "docs/night.md#connection-refused") {
		t.Errorf("remedy of a failed handshake: got %q, want the section about its reasons", p.Remedy)
	}
	if p.Subject != loopback(2) {
		t.Errorf("problem: got subject %q, want the address of the other node", p.Subject)
	}
	if lines := n1.log.count("connection to peer failed"); lines != 1 {
		t.Errorf("log: got %d lines about one refused node, want 1", lines)
	}
}

// TestBadRenewedCertificateIsAProblem: the certificate file is replaced by one that cannot be used, and then by a good one.
func TestBadRenewedCertificateIsAProblem(t *testing.T) {
	n, _, _, _ := twoNodes(t, 100)
	n.config.Join = nil
	ca, err := testcert.NewCA(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	n.secure(ca, testcert.Options{}, 1)
	good, err := os.ReadFile(n.config.TLSCert)
	if err != nil {
		t.Fatal(err)
	}
	n.start()
	if err := os.WriteFile(n.config.TLSCert, good[:len(good)/2], 0o600); err != nil {
		t.Fatal(err)
	}
	n.shows("tls-not-reloaded", problem.Critical, n.config.TLSCert)
	if err := os.WriteFile(n.config.TLSCert, good, 0o600); err != nil {
		t.Fatal(err)
	}
	n.ends("tls-not-reloaded")
}

// TestExpiredCertificateIsAProblem: the certificate of a peer expires while both nodes run. The log has it once.
func TestExpiredCertificateIsAProblem(t *testing.T) {
	n1, n2, _, _ := twoNodes(t, 100)
	ca, err := testcert.NewCA(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	n1.secure(ca, testcert.Options{}, 1)
	n2.secure(ca, testcert.Options{NotAfter: time.Now().Add(20 * time.Second)}, 1)
	startPair(t, n1, n2)
	n2.shows("tls-files", problem.Warning, "expires soon")
	n1.shows("connection-refused", problem.Critical, "(for n2)", "expired")
	if lines := n1.log.count("connection to peer failed"); lines > 2 {
		t.Errorf("log: got %d lines about one expired certificate, want it once", lines)
	}
	n2.secure(ca, testcert.Options{}, 1)
	poll.Eventually(t, "the nodes are connected again", func() bool { s := n1.status(); return len(s.Peers) == 1 && s.Peers[0].Receiving && s.Peers[0].Sending })
	n2.ends("tls-files")
}
