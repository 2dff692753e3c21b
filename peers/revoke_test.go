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

// TestDamagedLists: a file of which a part cannot be read is refused: what is missing may revoke.
func TestDamagedLists(t *testing.T) {
	t.Parallel()
	a, b := makeCA(t, "a", nil, nil), makeCA(t, "b", nil, nil)
	cas := append(bytes.Clone(a.pem), b.pem...)
	own, _ := b.issue(t, "lb1", cas)
	_, leaf := a.issue(t, "lb2", cas)
	first, second := a.list(t, nil, leaf), b.list(t, nil)
	for name, data := range map[string][]byte{
		"torn":                   append(bytes.Clone(second), first[:len(first)-40]...),
		"joined on one line":     append(bytes.TrimRight(first, "\n"), second...),
		"with a byte order mark": append([]byte("\xef\xbb\xbf"), append(bytes.Clone(first), second...)...),
		"with a bad character":   append(bytes.Replace(first, []byte("\nM"), []byte("\n!"), 1), second...),
		"empty":                  nil,
	} {
		o := optionsOf(own, "lb1", &logBook{})
		o.CRLFile = fileOf(t, data)
		if _, err := NewCredentials(o); err == nil || !strings.Contains(err.Error(), o.CRLFile) {
			t.Errorf("%s: %v, want an error with the file's name", name, err)
		}
	}
}

// extended returns a change that adds an extension to a list.
func extended(t *testing.T, last int, critical bool, value any) func(*x509.RevocationList) {
	t.Helper()
	der, err := asn1.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return func(l *x509.RevocationList) {
		l.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, last}, Critical: critical, Value: der}}
	}
}

// TestIncompleteLists: a list that says less than all is refused, and the former stays.
func TestIncompleteLists(t *testing.T) {
	t.Parallel()
	ca := makeCA(t, "ca", nil, nil)
	own, _ := ca.issue(t, "lb1", ca.pem)
	_, leaf := ca.issue(t, "lb2", ca.pem)
	for name, c := range map[string]struct {
		change func(*x509.RevocationList)
		want   string
	}{
		"delta":            {extended(t, 27, true, 7), "complete"},
		"indirect":         {extended(t, 28, true, issuingPoint{Indirect: true}), "complete"},
		"some reasons":     {extended(t, 28, true, issuingPoint{OnlyReasons: asn1.BitString{Bytes: []byte{0x40}, BitLength: 2}}), "complete"},
		"no point":         {extended(t, 28, true, "x"), "distribution point"},
		"unknown":          {extended(t, 99, true, 7), "critical extension 2.5.29.99"},
		"not critical":     {extended(t, 99, false, 7), ""},
		"users alone":      {extended(t, 28, true, issuingPoint{OnlyUser: true}), ""},
		"no extension":     {nil, ""},
		"without a number": {func(l *x509.RevocationList) { l.Number = big.NewInt(0) }, ""},
	} {
		o := optionsOf(own, "lb1", &logBook{})
		o.CRLFile = fileOf(t, ca.list(t, c.change, leaf))
		m, err := o.loadMaterial(time.Now())
		switch {
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q in it", name, err, c.want)
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.want == "" && !m.crls[0].lists(leaf):
			t.Errorf("%s: the certificate is not on the list", name)
		}
	}
}

// TestListsOfIntermediates: their certificates may stand in the file with the lists.
func TestListsOfIntermediates(t *testing.T) {
	t.Parallel()
	root, stranger := makeCA(t, "root", nil, nil), makeCA(t, "stranger", nil, nil)
	first, second := makeCA(t, "first", root, nil), makeCA(t, "second", root, nil)
	own, _ := second.issue(t, "lb1", root.pem, second)
	peer, leaf := first.issue(t, "lb2", root.pem, first)
	lists := bytes.Join([][]byte{root.list(t, nil), first.list(t, nil, leaf), second.list(t, nil)}, nil)
	s := loadWith(t, own, "lb1", withList(fileOf(t, lists, first.pem)))
	if err := calls(t, s, peer, "lb2"); err == nil {
		t.Error("a certificate on the list of its intermediate may call")
	}
	o := optionsOf(own, "lb1", &logBook{})
	for name, data := range map[string][]byte{
		"without its certificate": lists, "of another root": append(stranger.list(t, nil), stranger.pem...),
	} {
		o.CRLFile = fileOf(t, data)
		if _, err := NewCredentials(o); err == nil || !strings.Contains(err.Error(), "append the certificate") {
			t.Errorf("the list of an intermediate %s: %v", name, err)
		}
	}
}

// TestListOfACAThatMayNotSignLists: the error names the missing key usage.
func TestListOfACAThatMayNotSignLists(t *testing.T) {
	t.Parallel()
	ca := makeCA(t, "ca", nil, func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageCertSign })
	own, _ := ca.issue(t, "lb1", ca.pem)
	signer := *ca.cert
	signer.KeyUsage |= x509.KeyUsageCRLSign // a signer that does not look
	o := optionsOf(own, "lb1", &logBook{})
	o.CRLFile = fileOf(t, (&madeCA{cert: &signer, key: ca.key}).list(t, nil))
	if _, err := NewCredentials(o); err == nil || !strings.Contains(err.Error(), "cRLSign") {
		t.Errorf("%v, want cRLSign in it", err)
	}
}

// TestListOutOfDate: it is said when that comes to pass, and again at a reload.
func TestListOutOfDate(t *testing.T) {
	t.Parallel()
	ca := makeCA(t, "ca", nil, nil)
	own, _ := ca.issue(t, "lb1", ca.pem)
	next := time.Now().Add(time.Hour).Truncate(time.Second)
	s := loadWith(t, own, "lb1", withList(fileOf(t, ca.list(t, func(l *x509.RevocationList) { l.NextUpdate = next }))))
	if got := s.Stats().NextUpdate; !got.Equal(next) {
		t.Errorf("the next update is %v, want %v", got, next)
	}
	warned := func(when string, want int) {
		t.Helper()
		if got := s.logs.count("level=WARN", "out of date", "CN=ca"); got != want {
			t.Errorf("%d warnings %s, want %d", got, when, want)
		}
	}
	warned("at the start", 0)
	s.Recheck(next.Add(time.Minute))
	s.Recheck(next.Add(2 * time.Minute))
	warned("after the next update", 1)
	write(t, s.opts.Load().CRLFile, ca.list(t, func(l *x509.RevocationList) { l.NextUpdate = time.Now().Add(-time.Second) }))
	use, err := s.Prepare(*s.opts.Load())
	if err != nil {
		t.Fatal(err)
	}
	use()
	warned("after a reload", 2)
}

// TestOwnCertificateThatPeersRefuse: a node warns of what its own settings would refuse.
func TestOwnCertificateThatPeersRefuse(t *testing.T) {
	t.Parallel()
	ca := makeCA(t, "ca", nil, nil)
	own, leaf := ca.issue(t, "lb1", ca.pem)
	for want, change := range map[string]func(*CredentialsOptions){
		"is revoked":        withList(fileOf(t, ca.list(t, nil, leaf))),
		"may not replicate": func(o *CredentialsOptions) { o.AllowedNames = []string{"web*"} },
	} {
		s := loadWith(t, own, "lb1", change)
		if s.logs.count("level=WARN", want) != 1 || len(s.Advice()) != 1 {
			t.Errorf("no warning with %q in:\n%s%v", want, s.logs, s.Advice())
		}
	}
}

// TestFormerLists: one beside the current list of its CA, or of a CA that has ended, calls for nothing.
func TestFormerLists(t *testing.T) {
	t.Parallel()
	ca := makeCA(t, "ca", nil, nil)
	ended := makeCA(t, "ended", nil, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Hour) })
	cas := append(bytes.Clone(ca.pem), ended.pem...)
	own, _ := ca.issue(t, "lb1", cas)
	next := time.Now().Add(time.Hour).Truncate(time.Second)
	until := func(t time.Time) func(*x509.RevocationList) {
		return func(l *x509.RevocationList) { l.ThisUpdate, l.NextUpdate = time.Now().Add(-48*time.Hour), t }
	}
	old := ca.list(t, until(time.Now().Add(-24*time.Hour)))
	s := loadWith(t, own, "lb1", withList(fileOf(t, old, ca.list(t, until(next)), old, ended.list(t, until(time.Now().Add(-time.Hour))))))
	if got := s.Stats().NextUpdate; !got.Equal(next) || len(s.Advice()) > 0 {
		t.Errorf("next update %v, want %v; %v", got, next, s.Advice())
	}
}

// TestListOfACAWithTwoCertificates: it is enough if one of them allows the key to sign lists.
func TestListOfACAWithTwoCertificates(t *testing.T) {
	t.Parallel()
	old := makeCA(t, "ca", nil, func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageCertSign })
	template := *old.cert
	template.SerialNumber = newSerial(t)
	template.KeyUsage |= x509.KeyUsageCRLSign
	again := &madeCA{key: old.key}
	again.cert, again.pem = sign(t, &template, &template, old.key, old.key)
	for _, cas := range [][]byte{append(bytes.Clone(again.pem), old.pem...), append(bytes.Clone(old.pem), again.pem...)} {
		own, _ := again.issue(t, "lb1", cas)
		loadWith(t, own, "lb1", withList(fileOf(t, again.list(t, nil))))
	}
}
