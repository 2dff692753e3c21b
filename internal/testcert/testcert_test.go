package testcert_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"testing"
	"time"

	"mapsync/internal/testcert"
)

func TestIssue(t *testing.T) {
	ca, err := testcert.NewCA(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	ends := time.Now().Add(time.Minute).Truncate(time.Second)
	pair, err := ca.Issue("lb1", testcert.Options{NotAfter: ends})
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(pair.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	if _, err := cert.Leaf.Verify(x509.VerifyOptions{DNSName: "lb1", Roots: roots}); err != nil {
		t.Error(err)
	}
	if !cert.Leaf.NotAfter.Equal(ends) {
		t.Errorf("certificate expiry: got %v, want %v", cert.Leaf.NotAfter, ends)
	}
	info, err := os.Stat(pair.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode of the key file: got %v, want 0600", info.Mode())
	}
}
