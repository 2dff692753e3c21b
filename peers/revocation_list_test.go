package peers

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"math/big"
	"strings"
	"testing"
	"time"
)

// TestDamagedRevocationListsAreRefused verifies that a partly unreadable file is refused, because the
// missing part may contain revocations.
func TestDamagedRevocationListsAreRefused(t *testing.T) {
	t.Parallel()
	a, b := makeCA(t, "a", nil, nil), makeCA(t, "b", nil, nil)
	cas := append(bytes.Clone(a.pem), b.pem...)
	own, _ := b.issue(t, "lb1", cas)
	_, leaf := a.issue(t, "lb2", cas)
	first, second := a.crl(t, nil, leaf), b.crl(t, nil)
	for name, data := range map[string][]byte{
		"torn":                   append(bytes.Clone(second), first[:len(first)-40]...),
		"joined on one line":     append(bytes.TrimRight(first, "\n"), second...),
		"with a byte order mark": append([]byte("\xef\xbb\xbf"), append(bytes.Clone(first), second...)...),
		"with a bad character":   append(bytes.Replace(first, []byte("\nM"), []byte("\n!"), 1), second...),
		"empty":                  nil,
	} {
		o := optionsOf(own, "lb1", &logBuffer{})
		o.CRLFile = tempFile(t, data)
		if _, err := NewCredentials(o); err == nil || !strings.Contains(err.Error(), o.CRLFile) {
			t.Errorf("%s: got %v, want an error with the file's name", name, err)
		}
	}
}

// withExtension returns a function that adds an extension to a list.
func withExtension(t *testing.T, last int, critical bool, value any) func(*x509.RevocationList) {
	t.Helper()
	der, err := asn1.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return func(l *x509.RevocationList) {
		l.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, last}, Critical: critical, Value: der}}
	}
}

// TestIncompleteRevocationListsAreRefused verifies that a list with limited scope is refused and the
// former list stays in use.
func TestIncompleteRevocationListsAreRefused(t *testing.T) {
	t.Parallel()
	ca := makeCA(t, "ca", nil, nil)
	own, _ := ca.issue(t, "lb1", ca.pem)
	_, leaf := ca.issue(t, "lb2", ca.pem)
	for name, c := range map[string]struct {
		change func(*x509.RevocationList)
		want   string
	}{
		"delta":            {withExtension(t, 27, true, 7), "complete"},
		"indirect":         {withExtension(t, 28, true, issuingPoint{Indirect: true}), "complete"},
		"some reasons":     {withExtension(t, 28, true, issuingPoint{OnlyReasons: asn1.BitString{Bytes: []byte{0x40}, BitLength: 2}}), "complete"},
		"invalid point":    {withExtension(t, 28, true, "x"), "distribution point"},
		"unknown":          {withExtension(t, 99, true, 7), "critical extension 2.5.29.99"},
		"not critical":     {withExtension(t, 99, false, 7), ""},
		"users only":       {withExtension(t, 28, true, issuingPoint{OnlyUser: true}), ""},
		"no extension":     {nil, ""},
		"without a number": {func(l *x509.RevocationList) { l.Number = big.NewInt(0) }, ""},
	} {
		o := optionsOf(own, "lb1", &logBuffer{})
		o.CRLFile = tempFile(t, ca.crl(t, c.change, leaf))
		m, err := o.loadTLSState(time.Now())
		switch {
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: got error %v, want it to contain %q", name, err, c.want)
		case c.want == "" && err != nil:
			t.Errorf("%s: got %v, want nil", name, err)
		case c.want == "" && !m.crls[0].contains(leaf):
			t.Errorf("%s: certificate: got not revoked, want revoked", name)
		}
	}
}

// TestRevocationListsOfIntermediateCAs verifies that the file with the lists may contain the
// certificates of intermediate CAs.
func TestRevocationListsOfIntermediateCAs(t *testing.T) {
	t.Parallel()
	root, other := makeCA(t, "root", nil, nil), makeCA(t, "other", nil, nil)
	first, second := makeCA(t, "first", root, nil), makeCA(t, "second", root, nil)
	own, _ := second.issue(t, "lb1", root.pem, second)
	peer, leaf := first.issue(t, "lb2", root.pem, first)
	lists := bytes.Join([][]byte{root.crl(t, nil), first.crl(t, nil, leaf), second.crl(t, nil)}, nil)
	s := loadWith(t, own, "lb1", withCRL(tempFile(t, lists, first.pem)))
	if err := callServer(t, s, peer, "lb2"); err == nil {
		t.Error("call with a certificate on the list of its intermediate: got nil, want an error")
	}
	o := optionsOf(own, "lb1", &logBuffer{})
	for name, data := range map[string][]byte{
		"without its certificate": lists, "of another root": append(other.crl(t, nil), other.pem...),
	} {
		o.CRLFile = tempFile(t, data)
		if _, err := NewCredentials(o); err == nil || !strings.Contains(err.Error(), "append the certificate") {
			t.Errorf("list of an intermediate %s: got %v, want an error", name, err)
		}
	}
}

// TestRevocationListRequiresCRLSign verifies that the error contains the missing key usage.
func TestRevocationListRequiresCRLSign(t *testing.T) {
	t.Parallel()
	ca := makeCA(t, "ca", nil, func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageCertSign })
	own, _ := ca.issue(t, "lb1", ca.pem)
	signer := *ca.cert
	signer.KeyUsage |= x509.KeyUsageCRLSign // a signer that does not check its own key usage
	o := optionsOf(own, "lb1", &logBuffer{})
	o.CRLFile = tempFile(t, (&testCA{cert: &signer, key: ca.key}).crl(t, nil))
	if _, err := NewCredentials(o); err == nil || !strings.Contains(err.Error(), "cRLSign") {
		t.Errorf("NewCredentials: got error %v, want it to contain cRLSign", err)
	}
}

// TestOutdatedRevocationListWarns verifies the warning when a list becomes outdated, and again after a
// reload.
func TestOutdatedRevocationListWarns(t *testing.T) {
	t.Parallel()
	ca := makeCA(t, "ca", nil, nil)
	own, _ := ca.issue(t, "lb1", ca.pem)
	next := time.Now().Add(time.Hour).Truncate(time.Second)
	s := loadWith(t, own, "lb1", withCRL(tempFile(t, ca.crl(t, func(l *x509.RevocationList) { l.NextUpdate = next }))))
	if got := s.Stats().NextUpdate; !got.Equal(next) {
		t.Errorf("NextUpdate: got %v, want %v", got, next)
	}
	warned := func(when string, want int) {
		t.Helper()
		if got := s.logs.count("level=WARN", "out of date", "CN=ca"); got != want {
			t.Errorf("warnings: got %d %s, want %d", got, when, want)
		}
	}
	warned("at the start", 0)
	s.Reverify(next.Add(time.Minute))
	s.Reverify(next.Add(2 * time.Minute))
	warned("after the next update", 1)
	write(t, s.opts.Load().CRLFile, ca.crl(t, func(l *x509.RevocationList) { l.NextUpdate = time.Now().Add(-time.Second) }))
	use, err := s.Prepare(*s.opts.Load())
	if err != nil {
		t.Fatal(err)
	}
	use()
	warned("after a reload", 2)
}

// TestWarnsAboutOwnRefusedCertificate verifies the warning about an own certificate that this node's
// own settings would refuse.
func TestWarnsAboutOwnRefusedCertificate(t *testing.T) {
	t.Parallel()
	ca := makeCA(t, "ca", nil, nil)
	own, leaf := ca.issue(t, "lb1", ca.pem)
	for want, change := range map[string]func(*CredentialsOptions){
		"is revoked":        withCRL(tempFile(t, ca.crl(t, nil, leaf))),
		"may not replicate": func(o *CredentialsOptions) { o.AllowedNames = []string{"web*"} },
	} {
		s := loadWith(t, own, "lb1", change)
		if s.logs.count("level=WARN", want) != 1 || len(s.Advice()) != 1 {
			t.Errorf("warnings: want one that contains %q, got:\n%s%v", want, s.logs, s.Advice())
		}
	}
}

// TestSupersededRevocationListsDoNotWarn verifies that a superseded list, or a list of an expired CA,
// causes no warning.
func TestSupersededRevocationListsDoNotWarn(t *testing.T) {
	t.Parallel()
	ca := makeCA(t, "ca", nil, nil)
	ended := makeCA(t, "ended", nil, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) })
	cas := append(bytes.Clone(ca.pem), ended.pem...)
	own, _ := ca.issue(t, "lb1", cas)
	next := time.Now().Add(time.Hour).Truncate(time.Second)
	until := func(t time.Time) func(*x509.RevocationList) {
		return func(l *x509.RevocationList) { l.ThisUpdate, l.NextUpdate = time.Now().Add(-48*time.Hour), t }
	}
	old := ca.crl(t, until(time.Now().Add(-24*time.Hour)))
	s := loadWith(t, own, "lb1", withCRL(tempFile(t, old, ca.crl(t, until(next)), old, ended.crl(t, until(time.Now().Add(-time.Hour))))))
	if got := s.Stats().NextUpdate; !got.Equal(next) || len(s.Advice()) > 0 {
		t.Errorf("NextUpdate: got %v, want %v; advice %v", got, next, s.Advice())
	}
}

// TestRevocationListOfCAWithTwoCertificates verifies that one of the CA's certificates with the key
// usage cRLSign is sufficient.
func TestRevocationListOfCAWithTwoCertificates(t *testing.T) {
	t.Parallel()
	old := makeCA(t, "ca", nil, func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageCertSign })
	template := *old.cert
	template.SerialNumber = newSerial(t)
	template.KeyUsage |= x509.KeyUsageCRLSign
	again := &testCA{key: old.key}
	again.cert, again.pem = sign(t, &template, &template, old.key, old.key)
	for _, cas := range [][]byte{append(bytes.Clone(again.pem), old.pem...), append(bytes.Clone(old.pem), again.pem...)} {
		own, _ := again.issue(t, "lb1", cas)
		loadWith(t, own, "lb1", withCRL(tempFile(t, again.crl(t, nil))))
	}
}
