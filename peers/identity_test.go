package peers

import (
	"crypto/x509"
	"net"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"mapsync/internal/poll"
	"mapsync/internal/testcert"
)

// loadWith loads a node's files with changed options.
func loadWith(t *testing.T, pair testcert.Pair, node string, change func(*CredentialsOptions)) testCredentials {
	t.Helper()
	logs := &logBuffer{}
	opts := optionsOf(pair, node, logs)
	change(&opts)
	c, err := NewCredentials(opts)
	if err != nil {
		t.Fatal(err)
	}
	return testCredentials{c, logs}
}

// TestRevokedPeerIsDropped verifies that a revoked certificate ends a peer's connection and prevents
// new ones.
func TestRevokedPeerIsDropped(t *testing.T) {
	t.Parallel()
	ca := authority(t)
	a, b, d := issue(t, ca, "a", testcert.Options{}), issue(t, ca, "b", testcert.Options{}), issue(t, ca, "d", testcert.Options{})
	list, err := ca.Revoke()
	if err != nil {
		t.Fatal(err)
	}
	server := loadWith(t, a, "a", func(o *CredentialsOptions) { o.CRLFile = list })
	addr := serve(t, server)
	revoked, other := dial(t, load(t, b, "b"), addr, "a"), dial(t, load(t, d, "d"), addr, "a")
	for who, client := range map[string]error{"b": call(t, revoked, "b"), "d": call(t, other, "d")} {
		if client != nil {
			t.Fatalf("%s: got %v, want nil", who, client)
		}
	}
	if _, err := ca.Revoke(b); err != nil {
		t.Fatal(err)
	}
	server.expireFileCheck()
	server.Reverify(time.Now())
	if n := server.Stats().Dropped[ReasonRevoked]; n != 1 {
		t.Errorf("connections dropped as revoked: got %d, want 1", n)
	}
	poll.Within(t, 20*time.Second, "the new connection is refused", func() bool {
		if err := call(t, revoked, "b"); status.Code(err) != codes.Unavailable {
			t.Fatalf("call of a revoked node: got %v, want a refusal", err)
		}
		return server.Stats().AcceptRefused[ReasonRevoked] > 0
	})
	if err := call(t, other, "d"); err != nil {
		t.Errorf("call of another node: got %v, want nil", err)
	}
	if server.logs.count("certificate rejected", "reason=revoked") != 1 {
		t.Error("dropped connection: want exactly one log line")
	}
}

// TestExpiredPeerIsDropped verifies that an expired certificate ends a connection on both sides.
func TestExpiredPeerIsDropped(t *testing.T) {
	t.Parallel()
	ca := authority(t)
	end := time.Now().Add(time.Hour)
	server := load(t, issue(t, ca, "a", testcert.Options{NotAfter: end.Add(time.Hour)}), "a")
	client := load(t, issue(t, ca, "b", testcert.Options{NotAfter: end}), "b")
	stub := dial(t, client, serve(t, server), "a")
	if err := call(t, stub, "b"); err != nil {
		t.Fatal(err)
	}
	server.Reverify(end.Add(-time.Second))
	client.Reverify(end.Add(-time.Second))
	if n := server.Stats().Dropped[ReasonExpired] + client.Stats().Dropped[ReasonExpired]; n > 0 {
		t.Fatalf("connections dropped before certificate expiry: got %d, want 0", n)
	}
	server.Reverify(end.Add(time.Second))
	if n := server.Stats().Dropped[ReasonExpired]; n != 1 {
		t.Errorf("connections dropped as expired: got %d, want 1", n)
	}
	poll.Within(t, 20*time.Second, "a new connection while the certificate is valid", func() bool { return call(t, stub, "b") == nil })
	client.Reverify(end.Add(2 * time.Hour))
	// The client may still track the connection that the server has dropped.
	if n := client.Stats().Dropped[ReasonExpired]; n < 1 || n > 2 {
		t.Errorf("dialled connections dropped as expired: got %d, want 1 or 2", n)
	}
}

// TestRevocationListsAreVerified verifies that a list of another CA or with a forged signature is
// refused.
func TestRevocationListsAreVerified(t *testing.T) {
	t.Parallel()
	ca, other := authority(t), authority(t)
	pair := issue(t, ca, "a", testcert.Options{})
	forged, err := other.Revoke(pair)
	if err != nil {
		t.Fatal(err)
	}
	opts := optionsOf(pair, "a", &logBuffer{})
	opts.CRLFile = forged
	if _, err := NewCredentials(opts); err == nil || !strings.Contains(err.Error(), "not signed by a CA") {
		t.Errorf("list of another CA: got %v, want an error", err)
	}
	opts.CRLFile = pair.CertFile
	if _, err := NewCredentials(opts); err == nil {
		t.Error("certificate as revocation list: got nil, want an error")
	}
	opts.CRLFile += ".none"
	if _, err := NewCredentials(opts); err == nil {
		t.Error("missing list: got nil, want an error")
	}
}

// TestCertificateNamesOneNode verifies that a certificate identifies one node. Replication compares
// names exactly, so other spellings would be other nodes.
func TestCertificateNamesOneNode(t *testing.T) {
	t.Parallel()
	ca := authority(t)
	a, m := load(t, issue(t, ca, "a", testcert.Options{}), "a"), load(t, issue(t, ca, "mallory", testcert.Options{}), "mallory")
	caller, server := dial(t, m, serve(t, a), "a"), serve(t, m)
	for _, name := range []string{"mallory", "Mallory", "mALLORY", "mallory."} {
		want := codes.OK
		if name != "mallory" {
			want = codes.PermissionDenied
		}
		if err := call(t, caller, name); status.Code(err) != want {
			t.Errorf("caller name %s: got %v, want %s", name, err, want)
		}
		if err := call(t, dial(t, a, server, name), "a"); (err == nil) != (want == codes.OK) {
			t.Errorf("dialled name %s: got %v, want %s", name, err, want)
		}
	}
}

func TestNamesNode(t *testing.T) {
	t.Parallel()
	leaf := &x509.Certificate{
		DNSNames:    []string{"LB1", "lb2.Example", "*.example"},
		IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1), net.ParseIP("2001:db8::1")},
		URIs:        []*url.URL{{Scheme: "spiffe", Host: "example", Path: "/lb3"}},
	}
	for name, want := range map[string]bool{
		"LB1": true, "lb1": true, "Lb1": false, "lB1": false, "lb1.": false,
		"lb2.Example": true, "lb2.example": true, "LB2.EXAMPLE": false,
		"*.example": false, "lb3.example": false, "": false,
		"192.0.2.1": true, "::ffff:192.0.2.1": false,
		"2001:db8::1": true, "2001:DB8::1": false, "2001:db8:0::1": false, "[2001:db8::1]": false,
		"spiffe://example/lb3": false, "/lb3": false,
	} {
		if got := namesNode(leaf, name); got != want {
			t.Errorf("namesNode(%q): got %t, want %t", name, got, want)
		}
	}
}

func TestAllowedNames(t *testing.T) {
	t.Parallel()
	ca := authority(t)
	spiffe, err := url.Parse("spiffe://prod/lb/x7")
	if err != nil {
		t.Fatal(err)
	}
	server := loadWith(t, issue(t, ca, "a", testcert.Options{}), "a", func(o *CredentialsOptions) {
		o.AllowedNames, o.Observers = []string{"lb*", "gw*.prod.example", "spiffe://prod/lb/*"}, []string{"watch-?"}
	})
	addr := serve(t, server)
	for name, c := range map[string]struct {
		options testcert.Options
		allowed bool
	}{
		"lb1":     {testcert.Options{}, true},
		"LB2":     {testcert.Options{}, true},
		"x7":      {testcert.Options{DNSNames: []string{"x7"}, URIs: []*url.URL{spiffe}}, true},
		"watch-1": {testcert.Options{}, true},
		"web1":    {testcert.Options{}, false},
		"watch":   {testcert.Options{}, false},
		// A pattern of one label matches no name of another domain.
		"lb1.attacker.example":     {testcert.Options{}, false},
		"watch-1.attacker.example": {testcert.Options{}, false},
		"gw1.prod.example":         {testcert.Options{}, true},
		"gw1.x.prod.example":       {testcert.Options{}, false},
	} {
		err := call(t, dial(t, load(t, issue(t, ca, name, c.options), name), addr, "a"), name)
		if (err == nil) != c.allowed {
			t.Errorf("call of %s: got error %v, want it allowed: %v", name, err, c.allowed)
		}
	}
	poll.Within(t, 5*time.Second, "refusals are counted", func() bool { return server.Stats().AcceptRefused[ReasonNotAllowed] >= 5 })
	// A server must be a replica.
	client := loadWith(t, issue(t, ca, "lb1", testcert.Options{}), "lb1", func(o *CredentialsOptions) {
		o.AllowedNames, o.Observers = []string{"lb*"}, []string{"a"}
	})
	if err := call(t, dial(t, client, addr, "a"), "lb1"); err == nil {
		t.Error("call to a server that is not allowed: got nil, want an error")
	}
}

func TestMatchName(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		glob, name string
		want       bool
	}{
		{"lb*", "LB1", true},
		{"lb*", "lb1.attacker.example", false},
		{"lb*", "lb1.", true},
		{"lb*", "lb1..", false},
		{"lb*.example.com", "lb1.Example.com", true},
		{"lb*.example.com", "lb1.x.example.com", false},
		{"*", "lb1", true},
		{"*", "lb1.example", false},
		{"*.*", "lb1.example", true},
		{"lb?example", "lb.example", false},
		{"lb[^a]example", "lb.example", false},
		{"192.0.2.*", "192.0.2.1", true},
		{"192.0.*", "192.0.2.1", false},
		{"lb1", "lb1.", true},
		{`lb1\.example`, "lb1.example", true},
		{"lb1", "lb10", false},
		{"spiffe://a/*", "spiffe://a/b", true},
		{"spiffe://a/*", "spiffe://a/b/c", false},
		{"spiffe://a/*", "spiffe://a/b.c", false},
		{"spiffe://a.b/*", "spiffe://a.b/c", true},
		{"spiffe://a*/b", "spiffe://a.attacker/b", false},
		{"spiffe://a[^x]b", "spiffe://a/b", false},
		{"spiffe://a/*", "spiffe://a.b", false},
		{"spiffe://a[^x]/b", "spiffe://a//b", false},
		{"[", "[", false},
	} {
		if got := MatchName([]string{c.glob}, c.name); got != c.want {
			t.Errorf("MatchName(%s, %s): got %v, want %v", c.glob, c.name, got, c.want)
		}
	}
	if MatchName(nil, "lb1") {
		t.Error("MatchName with two patterns: got false, want true")
	}
	for glob, usable := range map[string]bool{"lb*": true, "lb[1-9].example": true, "[": false, "": false, "lb[1.2]": false, "spiffe://a/[b/c]": false, `lb\.example`: true} {
		if err := CheckGlobs([]string{glob}); (err == nil) != usable {
			t.Errorf("CheckGlobs(%q): got error %v, want it usable: %v", glob, err, usable)
		}
	}
}

func FuzzParseCRLs(f *testing.F) {
	ca, err := testcert.NewCA(f.TempDir(), "ca")
	if err != nil {
		f.Fatal(err)
	}
	list, err := ca.Revoke()
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range []string{list, ca.CertFile} {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if lists, err := parseCRLs(data, nil, x509.NewCertPool(), time.Now()); err == nil && len(lists) > 0 {
			t.Error("list without a CA signature: got nil, want an error")
		}
	})
}
