package peers

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"path/filepath"
	"testing"
	"time"

	"mapsync/internal/testcert"
)

// testCA is a CA whose certificate fields a test can set.
type testCA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newSerial(t *testing.T) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// sign creates the certificate of a public key.
func sign(t *testing.T, template, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) (*x509.Certificate, []byte) {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// makeCA creates a CA. parent signs it, or it is self-signed if parent is nil.
func makeCA(t *testing.T, name string, parent *testCA, change func(*x509.Certificate)) *testCA {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: newSerial(t), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(1000 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	if change != nil {
		change(template)
	}
	ca := &testCA{key: newKey(t)}
	signer, key := template, ca.key
	if parent != nil {
		signer, key = parent.cert, parent.key
	}
	ca.cert, ca.pem = sign(t, template, signer, ca.key, key)
	return ca
}

// issue creates a node's files: its certificate followed by a chain, its key, and a CA file.
func (ca *testCA) issue(t *testing.T, node string, caFile []byte, chain ...*testCA) (testcert.Pair, *x509.Certificate) {
	t.Helper()
	key := newKey(t)
	leaf, text := sign(t, &x509.Certificate{
		SerialNumber: newSerial(t), Subject: pkix.Name{CommonName: node}, DNSNames: []string{node},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(500 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, ca.cert, key, ca.key)
	for _, c := range chain {
		text = append(text, c.pem...)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	p := testcert.Pair{CertFile: filepath.Join(dir, "cert"), KeyFile: filepath.Join(dir, "key"), CAFile: filepath.Join(dir, "ca")}
	write(t, p.CertFile, text)
	write(t, p.KeyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	write(t, p.CAFile, caFile)
	return p, leaf
}

// crl creates a revocation list in PEM.
func (ca *testCA) crl(t *testing.T, change func(*x509.RevocationList), certs ...*x509.Certificate) []byte {
	t.Helper()
	l := &x509.RevocationList{Number: big.NewInt(7), ThisUpdate: time.Now().Add(-time.Minute), NextUpdate: time.Now().Add(time.Hour)}
	for _, c := range certs {
		l.RevokedCertificateEntries = append(l.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: c.SerialNumber, RevocationTime: time.Now()})
	}
	if change != nil {
		change(l)
	}
	der, err := x509.CreateRevocationList(rand.Reader, l, ca.cert, ca.key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})
}

func tempFile(t *testing.T, data ...[]byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	write(t, path, bytes.Join(data, nil))
	return path
}

func withCRL(path string) func(*CredentialsOptions) {
	return func(o *CredentialsOptions) { o.CRLFile = path }
}

// callServer returns the error of a node's call to a server.
func callServer(t *testing.T, server testCredentials, pair testcert.Pair, node string) error {
	t.Helper()
	return call(t, dial(t, load(t, pair, node), serve(t, server), "lb1"), node)
}

// TestExpiringCA verifies that an expiring CA causes a warning and limits NotAfter, and that errors
// contain the CA's name.
func TestExpiringCA(t *testing.T) {
	t.Parallel()
	end := time.Now().Add(2 * time.Hour).Truncate(time.Second)
	ca := makeCA(t, "old ca", nil, func(c *x509.Certificate) { c.NotAfter = end })
	own, _ := ca.issue(t, "lb1", ca.pem)
	peer, _ := ca.issue(t, "lb2", ca.pem)
	s := load(t, own, "lb1")
	if s.logs.count("level=WARN", "old ca", "expires soon") != 1 {
		t.Errorf("log: want exactly one warning about the CA's expiry, got\n%s", s.logs)
	}
	if got := s.Stats().NotAfter; !got.Equal(end) {
		t.Errorf("NotAfter: got %v, want %v", got, end)
	}
	if err := callServer(t, s, peer, "lb2"); err != nil {
		t.Fatal(err)
	}
	after := end.Add(time.Minute)
	s.Reverify(after)
	if n := s.Stats().Dropped[ReasonExpired]; n != 1 {
		t.Errorf("connections dropped after the CA's expiry: got %d, want 1", n)
	}
	if s.logs.count("level=ERROR", "old ca", "renew the CA's certificate") != 1 {
		t.Errorf("log: want exactly one error with the CA's name, got\n%s", s.logs)
	}
	_, err := s.opts.Load().loadTLSState(after)
	_, again := s.opts.Load().loadTLSState(after.Add(time.Minute))
	if err == nil || again == nil || err.Error() != again.Error() {
		t.Errorf("errors of two loads of the same files: got %v and %v, want equal errors", err, again)
	}
}

// TestLatestExpiringChainCounts verifies that the chain that expires last determines the expiry.
func TestLatestExpiringChainCounts(t *testing.T) {
	t.Parallel()
	root := makeCA(t, "root", nil, nil)
	sub := makeCA(t, "sub", root, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(time.Hour) })
	longer := &testCA{key: sub.key}
	template := *sub.cert
	template.NotAfter = time.Now().Add(200 * time.Hour).Truncate(time.Second)
	longer.cert, longer.pem = sign(t, &template, root.cert, sub.key, root.key)
	own, _ := sub.issue(t, "lb1", root.pem, sub, longer)
	s := load(t, own, "lb1")
	if got := s.Stats().NotAfter; !got.Equal(template.NotAfter) {
		t.Errorf("certificate expiry: got %v, want %v", got, template.NotAfter)
	}
}

// TestRevokedIntermediate verifies that a revoked intermediate is refused even if the CA file contains
// it.
func TestRevokedIntermediate(t *testing.T) {
	t.Parallel()
	root := makeCA(t, "root", nil, nil)
	sub, bad := makeCA(t, "sub", root, nil), makeCA(t, "bad", root, nil)
	for name, cas := range map[string][]byte{"root": root.pem, "all": bytes.Join([][]byte{root.pem, sub.pem, bad.pem}, nil)} {
		own, _ := sub.issue(t, "lb1", cas, sub)
		good, _ := sub.issue(t, "lb2", cas, sub)
		peer, _ := bad.issue(t, "lb2", cas, bad)
		s := loadWith(t, own, "lb1", withCRL(tempFile(t, root.crl(t, nil, bad.cert))))
		if err := callServer(t, s, good, "lb2"); err != nil {
			t.Errorf("%s in the CA file: got error %v, want nil", name, err)
		}
		if err := callServer(t, s, peer, "lb2"); err == nil {
			t.Errorf("%s in the CA file: call with a certificate of the revoked intermediate: got no error, want one", name)
		}
	}
}

// TestRevocationListOfCAWithTwoKeys verifies that a CA's list applies to certificates signed with
// either of its keys.
func TestRevocationListOfCAWithTwoKeys(t *testing.T) {
	t.Parallel()
	old, renewed := makeCA(t, "ca", nil, nil), makeCA(t, "ca", nil, nil)
	cas := append(bytes.Clone(old.pem), renewed.pem...)
	own, _ := renewed.issue(t, "lb1", cas)
	peer, leaf := old.issue(t, "lb2", cas)
	s := loadWith(t, own, "lb1", withCRL(tempFile(t, renewed.crl(t, nil, leaf))))
	if err := callServer(t, s, peer, "lb2"); err == nil {
		t.Error("call with a certificate on the current list: got no error, want one")
	}
}

// TestRevocationListsOfCAsWithEqualNames verifies that serial numbers of one CA do not revoke
// certificates of another CA.
func TestRevocationListsOfCAsWithEqualNames(t *testing.T) {
	t.Parallel()
	old, next := makeCA(t, "ca", nil, nil), makeCA(t, "ca", nil, nil)
	cas := append(bytes.Clone(old.pem), next.pem...)
	own, _ := next.issue(t, "lb1", cas)
	peer, leaf := next.issue(t, "lb2", cas)
	s := loadWith(t, own, "lb1", withCRL(tempFile(t, old.crl(t, nil, leaf, next.cert), next.crl(t, nil)))) // as if it had issued these serial numbers
	if err := callServer(t, s, peer, "lb2"); err != nil {
		t.Error(err)
	}
}

// TestRevokedCrossCertificate verifies that one chain without the revoked certificate is sufficient.
func TestRevokedCrossCertificate(t *testing.T) {
	t.Parallel()
	former, root := makeCA(t, "former", nil, nil), makeCA(t, "root", nil, nil)
	template := *root.cert
	template.SerialNumber = newSerial(t)
	cross := &testCA{key: root.key}
	cross.cert, cross.pem = sign(t, &template, former.cert, root.key, former.key)
	sub := makeCA(t, "sub", root, nil)
	lists := withCRL(tempFile(t, former.crl(t, nil, cross.cert), root.crl(t, nil)))
	cas := append(bytes.Clone(former.pem), root.pem...)
	own, _ := sub.issue(t, "lb1", cas, sub)
	peer, _ := sub.issue(t, "lb2", cas, sub, cross)
	if err := callServer(t, loadWith(t, own, "lb1", lists), peer, "lb2"); err != nil {
		t.Error(err)
	}
}

// TestExpiringIntermediateCA verifies that the advice contains the file of the expiring intermediate.
func TestExpiringIntermediateCA(t *testing.T) {
	t.Parallel()
	root := makeCA(t, "root", nil, nil)
	sub := makeCA(t, "sub", root, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(time.Hour) })
	own, _ := sub.issue(t, "lb1", root.pem, sub)
	if a := load(t, own, "lb1").Advice(); len(a) != 1 || a[0].File != own.CertFile {
		t.Errorf("advice: got %+v, want one for %s", a, own.CertFile)
	}
}

// TestCABundleFormats verifies that additional content in CA bundle files is accepted.
func TestCABundleFormats(t *testing.T) {
	t.Parallel()
	ca := makeCA(t, "ca", nil, nil)
	template := *ca.cert
	template.SerialNumber, template.NotBefore, template.NotAfter = newSerial(t), time.Now().Add(-100*time.Hour), time.Now().Add(-time.Hour)
	_, expired := sign(t, &template, &template, ca.key, ca.key)
	gone := makeCA(t, "gone", nil, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) })
	node, _ := ca.issue(t, "lb3", ca.pem)
	crlf := bytes.ReplaceAll(ca.pem, []byte("\n"), []byte("\r\n"))
	for name, data := range map[string][]byte{
		"other certificates": bytes.Join([][]byte{expired, gone.pem, read(t, node.CertFile), ca.pem}, nil),
		"comments":           append([]byte("# -----BEGIN CERTIFICATE-----\n# MIIB\n  # -----END CERTIFICATE-----\n"), ca.pem...),
		"text":               append([]byte("Certificate:\n    Data:\nsubject=/CN=a\n"), append(crlf, "the end"...)...),
		"no final newline":   bytes.TrimSpace(ca.pem),
	} {
		own, _ := ca.issue(t, "lb1", data)
		peer, _ := ca.issue(t, "lb2", data)
		s := loadWith(t, own, "lb1", withCRL(tempFile(t, ca.crl(t, nil))))
		if err := callServer(t, s, peer, "lb2"); err != nil || len(s.Advice()) > 0 {
			t.Errorf("%s: got error %v, advice %v, want nil and no advice", name, err, s.Advice())
		}
	}
}
