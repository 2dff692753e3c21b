package peers

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/internal/testcert"
)

// maxRefusalText is the maximum size in bytes of the text that an unauthenticated peer may cause per
// refusal.
const maxRefusalText = 4 << 10

// oversizedCert returns a certificate of the maximum size that TLS allows.
func oversizedCert(t *testing.T, key *ecdsa.PrivateKey) tls.Certificate {
	t.Helper()
	names := make([]string, 3500)
	for i := range names {
		names[i] = strings.Repeat("\x01", 60)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: names, NotAfter: time.Now().Add(time.Hour),
		Subject: pkix.Name{CommonName: strings.Repeat("\x1b", 3000)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// TestHandshakeErrorTextIsBounded verifies the length of log lines and errors with data of a
// certificate or server name. It also verifies that they contain no control characters.
func TestHandshakeErrorTextIsBounded(t *testing.T) {
	t.Parallel()
	ca := authority(t)
	s := load(t, issue(t, ca, "lb1", testcert.Options{}), "lb1")
	addr, shown := serve(t, s), oversizedCert(t, newKey(t))
	bounded := func(what, text string) {
		t.Helper()
		if len(text) > maxRefusalText || strings.ContainsAny(text, "\x01\x1b") {
			t.Errorf("%s: got %d bytes, want at most %d without control characters: %.200q", what, len(text), maxRefusalText, text)
		}
	}
	client := &tls.Config{
		InsecureSkipVerify: true, NextProtos: []string{"h2"}, //nolint:gosec // an unknown caller
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &shown, nil },
	}
	if conn, err := tls.Dial("tcp", addr, client); err == nil {
		_, _ = conn.Read(make([]byte, 1))
		_ = conn.Close()
	}
	poll.Within(t, 5*time.Second, "the refusal is logged", func() bool { return s.logs.count("reason=unknown_ca") == 1 })
	client.InsecureSkipVerify, client.RootCAs, client.ServerName = false, x509.NewCertPool(), strings.Repeat("\x01", 60000)
	if conn, err := tls.Dial("tcp", addr, client); err == nil {
		_ = conn.Close()
	}
	poll.Within(t, 5*time.Second, "the refusal by the client is logged", func() bool { return s.logs.count("reason=refused_by_peer") == 1 })
	bounded("log", s.logs.String())

	lis, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{NextProtos: []string{"h2"}, Certificates: []tls.Certificate{shown}}) //nolint:gosec // an unknown caller
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lis.Close() }()
	go func() {
		for {
			conn, err := lis.Accept()
			if err != nil {
				return
			}
			_ = conn.(*tls.Conn).Handshake()
			_ = conn.Close()
		}
	}()
	bounded("error of a call", call(t, dial(t, s, lis.Addr().String(), "lb2"), "lb1").Error())
}

// TestNameList verifies that a list contains the first names of all kinds.
func TestNameList(t *testing.T) {
	t.Parallel()
	uri := &url.URL{Scheme: "spiffe", Host: "prod", Path: "/web"}
	for want, leaf := range map[string]*x509.Certificate{
		"no name": {},
		"lb1":     {DNSNames: []string{"lb1"}},
		"*.example, 192.0.2.1, spiffe://prod/web": {DNSNames: []string{"*.example"}, IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1)}, URIs: []*url.URL{uri}},
		"a, b, c, d":             {DNSNames: []string{"a", "b", "c", "d"}},
		"a, b, c, d, and 2 more": {DNSNames: []string{"a", "b", "c", "d", "e"}, URIs: []*url.URL{uri}},
		`"a b"`:                  {DNSNames: []string{"a b"}},
	} {
		if got := nameList(leaf); got != want {
			t.Errorf("nameList: got %q, want %q", got, want)
		}
	}
}

// TestAllowedNamesMatchAddresses verifies that AllowedNames match the IP address in a certificate.
func TestAllowedNamesMatchAddresses(t *testing.T) {
	t.Parallel()
	pair := issue(t, authority(t), "lb1", testcert.Options{DNSNames: []string{}, IPs: []net.IP{net.IPv4(192, 0, 2, 1)}})
	m := load(t, pair, "192.0.2.1").currentState()
	for pattern, want := range map[string]error{"192.0.2.*": nil, "*.*.*.*": nil, "*": errNotAllowed, "192.0.3.*": errNotAllowed} {
		if err := m.permit(&CredentialsOptions{AllowedNames: []string{pattern}}, m.chains, false); err != want { //nolint:errorlint // it is returned as it is
			t.Errorf("pattern %s: got %v, want %v", pattern, err, want)
		}
	}
}

// TestObserversDoNotReplicate verifies that observers may not replicate, even if allowed-names is
// empty.
func TestObserversDoNotReplicate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name               string
		allowed, observers []string
		want               bool
	}{
		{"watch-1", nil, nil, true},
		{"watch-1", nil, []string{"watch-*"}, false},
		{"watch-1", nil, []string{"other"}, true},
		{"watch-1", []string{"watch-1"}, []string{"watch-*"}, true},
		{"watch-1", []string{"lb*"}, []string{"watch-*"}, false},
		// The pattern of observers lacks the domain. Without allowed-names, the name would gain rights by that.
		{"watch-1.example", nil, []string{"watch-*"}, false},
		{"lb1.example", nil, []string{"watch-*"}, true},
	} {
		watch := &x509.Certificate{DNSNames: []string{c.name}}
		o := CredentialsOptions{AllowedNames: c.allowed, Observers: c.observers}
		id, err := Insecure(o).Identify(t.Context(), c.name)
		if o.replica(watch) != c.want || id.Replica != c.want || err != nil {
			t.Errorf("%s, allowed-names %v, observers %v: replica: got %v by certificate and %v by name (%v), want %v",
				c.name, c.allowed, c.observers, o.replica(watch), id.Replica, err, c.want)
		}
	}
}
