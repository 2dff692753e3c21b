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

// madeCA is a CA of which a test chooses everything.
type madeCA struct {
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

// sign makes the certificate of a public key.
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

// makeCA makes a CA that a parent signs, or itself if that is nil.
func makeCA(t *testing.T, name string, parent *madeCA, change func(*x509.Certificate)) *madeCA {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: newSerial(t), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(1000 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	if change != nil {
		change(template)
	}
	ca := &madeCA{key: newKey(t)}
	signer, key := template, ca.key
	if parent != nil {
		signer, key = parent.cert, parent.key
	}
	ca.cert, ca.pem = sign(t, template, signer, ca.key, key)
	return ca
}

// issue makes a node's files: its certificate with a chain behind it, and a CA file.
func (ca *madeCA) issue(t *testing.T, node string, caFile []byte, chain ...*madeCA) (testcert.Pair, *x509.Certificate) {
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

// list makes a revocation list, in PEM.
func (ca *madeCA) list(t *testing.T, change func(*x509.RevocationList), certs ...*x509.Certificate) []byte {
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

func fileOf(t *testing.T, data ...[]byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	write(t, path, bytes.Join(data, nil))
	return path
}

func withList(path string) func(*CredentialsOptions) {
	return func(o *CredentialsOptions) { o.CRLFile = path }
}

// calls reports the error of a node's call to a server.
func calls(t *testing.T, server secured, pair testcert.Pair, node string) error {
	t.Helper()
	return call(t, dial(t, load(t, pair, node), serve(t, server), "lb1"), node)
}

// TestEndOfTheCA: it is warned about and shown as the end of the certificate, and the errors name
// the CA.
func TestEndOfTheCA(t *testing.T) {
	t.Parallel()
	end := time.Now().Add(2 * time.Hour).Truncate(time.Second)
	ca := makeCA(t, "old ca", nil, func(c *x509.Certificate) { c.NotAfter = end })
	own, _ := ca.issue(t, "lb1", ca.pem)
	peer, _ := ca.issue(t, "lb2", ca.pem)
	s := load(t, own, "lb1")
	if s.logs.count("level=WARN", "old ca", "expires soon") != 1 {
		t.Errorf("no warning of the CA's end in:\n%s", s.logs)
	}
	if got := s.Stats().NotAfter; !got.Equal(end) {
		t.Errorf("the end shown is %v, want %v", got, end)
	}
	if err := calls(t, s, peer, "lb2"); err != nil {
		t.Fatal(err)
	}
	after := end.Add(time.Minute)
	s.Recheck(after)
	if n := s.Stats().Dropped[ReasonExpired]; n != 1 {
		t.Errorf("%d connections ended with the CA, want 1", n)
	}
	if s.logs.count("level=ERROR", "old ca", "renew the CA's certificate") != 1 {
		t.Errorf("no error that names the CA in:\n%s", s.logs)
	}
	_, err := s.opts.Load().loadMaterial(after)
	_, again := s.opts.Load().loadMaterial(after.Add(time.Minute))
	if err == nil || again == nil || err.Error() != again.Error() {
		t.Errorf("two looks at the same files: %v, %v", err, again)
	}
}

// TestChainsWithTwoEnds: of two chains the one that ends later counts.
func TestChainsWithTwoEnds(t *testing.T) {
	t.Parallel()
	root := makeCA(t, "root", nil, nil)
	sub := makeCA(t, "sub", root, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(time.Hour) })
	longer := &madeCA{key: sub.key}
	template := *sub.cert
	template.NotAfter = time.Now().Add(200 * time.Hour).Truncate(time.Second)
	longer.cert, longer.pem = sign(t, &template, root.cert, sub.key, root.key)
	own, _ := sub.issue(t, "lb1", root.pem, sub, longer)
	s := load(t, own, "lb1")
	if got := s.Stats().NotAfter; !got.Equal(template.NotAfter) {
		t.Errorf("the certificate ends at %v, want %v", got, template.NotAfter)
	}
}

// TestRevokedIntermediate: one that stands in the CA file, too, is refused nevertheless.
func TestRevokedIntermediate(t *testing.T) {
	t.Parallel()
	root := makeCA(t, "root", nil, nil)
	sub, bad := makeCA(t, "sub", root, nil), makeCA(t, "bad", root, nil)
	for name, cas := range map[string][]byte{"root": root.pem, "all": bytes.Join([][]byte{root.pem, sub.pem, bad.pem}, nil)} {
		own, _ := sub.issue(t, "lb1", cas, sub)
		good, _ := sub.issue(t, "lb2", cas, sub)
		peer, _ := bad.issue(t, "lb2", cas, bad)
		s := loadWith(t, own, "lb1", withList(fileOf(t, root.list(t, nil, bad.cert))))
		if err := calls(t, s, good, "lb2"); err != nil {
			t.Errorf("%s in the CA file: %v", name, err)
		}
		if err := calls(t, s, peer, "lb2"); err == nil {
			t.Errorf("%s in the CA file: a node of the revoked intermediate may call", name)
		}
	}
}

// TestListOfACAWithTwoKeys: it counts for what the CA signed with either.
func TestListOfACAWithTwoKeys(t *testing.T) {
	t.Parallel()
	old, renewed := makeCA(t, "ca", nil, nil), makeCA(t, "ca", nil, nil)
	cas := append(bytes.Clone(old.pem), renewed.pem...)
	own, _ := renewed.issue(t, "lb1", cas)
	peer, leaf := old.issue(t, "lb2", cas)
	s := loadWith(t, own, "lb1", withList(fileOf(t, renewed.list(t, nil, leaf))))
	if err := calls(t, s, peer, "lb2"); err == nil {
		t.Error("a certificate on the current list may call")
	}
}

// TestListsOfTwoCAsOfOneName: the serial numbers of one do not revoke certificates of the other.
func TestListsOfTwoCAsOfOneName(t *testing.T) {
	t.Parallel()
	old, next := makeCA(t, "ca", nil, nil), makeCA(t, "ca", nil, nil)
	cas := append(bytes.Clone(old.pem), next.pem...)
	own, _ := next.issue(t, "lb1", cas)
	peer, leaf := next.issue(t, "lb2", cas)
	s := loadWith(t, own, "lb1", withList(fileOf(t, old.list(t, nil, leaf, next.cert), next.list(t, nil)))) // as if it had issued those numbers
	if err := calls(t, s, peer, "lb2"); err != nil {
		t.Error(err)
	}
}

// TestRevokedCrossCertificate: a chain without it is enough.
func TestRevokedCrossCertificate(t *testing.T) {
	t.Parallel()
	former, root := makeCA(t, "former", nil, nil), makeCA(t, "root", nil, nil)
	template := *root.cert
	template.SerialNumber = newSerial(t)
	cross := &madeCA{key: root.key}
	cross.cert, cross.pem = sign(t, &template, former.cert, root.key, former.key)
	sub := makeCA(t, "sub", root, nil)
	lists := withList(fileOf(t, former.list(t, nil, cross.cert), root.list(t, nil)))
	cas := append(bytes.Clone(former.pem), root.pem...)
	own, _ := sub.issue(t, "lb1", cas, sub)
	peer, _ := sub.issue(t, "lb2", cas, sub, cross)
	if err := calls(t, loadWith(t, own, "lb1", lists), peer, "lb2"); err != nil {
		t.Error(err)
	}
}

// TestEndOfAnIntermediate: the advice names the file that has it.
func TestEndOfAnIntermediate(t *testing.T) {
	t.Parallel()
	root := makeCA(t, "root", nil, nil)
	sub := makeCA(t, "sub", root, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(time.Hour) })
	own, _ := sub.issue(t, "lb1", root.pem, sub)
	if a := load(t, own, "lb1").Advice(); len(a) != 1 || a[0].File != own.CertFile {
		t.Errorf("%+v, want one for %s", a, own.CertFile)
	}
}

// TestBundles: what else stands in the files of certificate authorities does no harm.
func TestBundles(t *testing.T) {
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
		s := loadWith(t, own, "lb1", withList(fileOf(t, ca.list(t, nil))))
		if err := calls(t, s, peer, "lb2"); err != nil || len(s.Advice()) > 0 {
			t.Errorf("%s: %v, %v", name, err, s.Advice())
		}
	}
}
