package peers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"mapsync/internal/testcert"
)

// expireFileCheck makes the next handshake check the files, as it does one second later. It also makes
// a recorded failure count as permanent.
func (s testCredentials) expireFileCheck() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastCheck = time.Time{}
	s.failure.since = s.failure.since.Add(-partialWriteTime)
}

// serial returns the serial number of the certificate in use.
func (s testCredentials) serial() string { return s.currentState().cert.Leaf.SerialNumber.String() }

func TestReloadWhileServing(t *testing.T) {
	t.Parallel()
	ca := authority(t)
	server := load(t, issue(t, ca, "lb2", testcert.Options{}), "lb2")
	client := load(t, issue(t, ca, "lb1", testcert.Options{}), "lb1")
	addr := serve(t, server)
	before := dial(t, client, addr, "lb2")
	if err := call(t, before, "lb1"); err != nil {
		t.Fatal(err)
	}
	first := server.serial()
	ends := time.Now().Add(48 * time.Hour).Truncate(time.Second)
	issue(t, ca, "lb2", testcert.Options{NotAfter: ends})
	if server.serial() != first {
		t.Error("file check within one second: got one, want none")
	}
	server.expireFileCheck()
	if err := call(t, before, "lb1"); err != nil {
		t.Errorf("call on a connection from before the reload: got %v, want nil", err)
	}
	if err := call(t, dial(t, client, addr, "lb2"), "lb1"); err != nil {
		t.Errorf("call on a connection after the reload: got %v, want nil", err)
	}
	if server.serial() == first {
		t.Error("certificate in use: got the former one, want the new one")
	}
	if s := server.Stats(); s.Reloads != 1 || s.ReloadErrors != 0 || !s.NotAfter.Equal(ends) {
		t.Errorf("stats: got %+v, want one reload and the new expiry", s)
	}
	if server.logs.count("TLS files reloaded") != 1 {
		t.Error("reload: want exactly one log line")
	}
}

// TestReloadCA verifies a CA change in two steps: first all nodes trust both CAs, then the
// certificates change.
func TestReloadCA(t *testing.T) {
	t.Parallel()
	ca, next := authority(t), authority(t)
	pair := trusting(t, issue(t, ca, "lb2", testcert.Options{}), ca)
	server := load(t, pair, "lb2")
	client := load(t, trusting(t, issue(t, next, "lb1", testcert.Options{}), ca, next), "lb1")
	addr := serve(t, server)
	if err := call(t, dial(t, client, addr, "lb2"), "lb1"); err == nil {
		t.Fatal("call of a client with an unknown CA: got nil, want an error")
	}
	both, err := os.ReadFile(client.opts.Load().CAFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(pair.CAFile, both, 0o600); err != nil {
		t.Fatal(err)
	}
	server.expireFileCheck()
	if err := call(t, dial(t, client, addr, "lb2"), "lb1"); err != nil {
		t.Errorf("call after the CA was added: got %v, want nil", err)
	}
}

func TestReloadErrorKeepsFormerFiles(t *testing.T) {
	t.Parallel()
	ca := authority(t)
	pair := issue(t, ca, "lb1", testcert.Options{})
	c := load(t, pair, "lb1")
	first := c.serial()
	next := issue(t, ca, "lb1", testcert.Options{File: "next"})
	nextCert, nextKey := read(t, next.CertFile), read(t, next.KeyFile)

	// Half a certificate, then the whole certificate without its key: the replacement is in progress.
	for _, half := range [][]byte{nextCert[:len(nextCert)/2], nextCert} {
		write(t, pair.CertFile, half)
		c.mu.Lock()
		c.lastCheck = time.Time{}
		c.mu.Unlock()
		if c.serial() != first {
			t.Fatal("certificate in use: got that of an incomplete pair, want the first one")
		}
	}
	if s := c.Stats(); s.ReloadErrors != 0 || c.logs.count("level=ERROR") != 0 {
		t.Errorf("replacement in progress: got an error in %+v, want none", s)
	}

	// The files stay invalid: one log message.
	for range 3 {
		c.expireFileCheck()
		if c.serial() != first {
			t.Fatal("certificate in use: got that of an invalid pair, want the first one")
		}
	}
	if s := c.Stats(); s.ReloadErrors != 1 {
		t.Errorf("reload errors: got %d, want 1", s.ReloadErrors)
	}
	if c.logs.count("level=ERROR", "keeping the previous ones", "does not belong to certificate") != 1 {
		t.Error("invalid pair: want exactly one log line")
	}

	write(t, pair.KeyFile, nextKey)
	c.expireFileCheck()
	if c.serial() == first {
		t.Error("certificate in use: got the former one, want the complete pair")
	}
	if err := os.Remove(pair.CAFile); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		c.expireFileCheck()
		c.currentState()
	}
	if s := c.Stats(); s.Reloads != 1 || s.ReloadErrors != 2 {
		t.Errorf("stats: got %+v, want 1 reload and 2 errors", s)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func write(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestNewCredentialsRejectsInvalidFiles(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, test := range []struct {
		want   string
		opts   testcert.Options
		change func(t *testing.T, o *CredentialsOptions)
	}{
		{"all three", testcert.Options{}, func(_ *testing.T, o *CredentialsOptions) { o.CAFile = "" }},
		{"node name is empty", testcert.Options{}, func(_ *testing.T, o *CredentialsOptions) { o.NodeName = "" }},
		{"no such file", testcert.Options{}, func(_ *testing.T, o *CredentialsOptions) { o.KeyFile += "x" }},
		{"expired at", testcert.Options{NotBefore: now.Add(-2 * time.Hour), NotAfter: now.Add(-time.Hour)}, nil},
		{"not yet valid", testcert.Options{NotBefore: now.Add(time.Hour), NotAfter: now.Add(2 * time.Hour)}, nil},
		{"it is for lb9, but this node's name is lb1", testcert.Options{DNSNames: []string{"lb9"}}, nil},
		{"it is for no name", testcert.Options{DNSNames: []string{}}, nil},
		{"it is for *.lb", testcert.Options{DNSNames: []string{"*.lb"}}, func(_ *testing.T, o *CredentialsOptions) { o.NodeName = "a.lb" }},
		{"must allow both", testcert.Options{Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, nil},
		{"does not belong to certificate", testcert.Options{}, func(t *testing.T, o *CredentialsOptions) {
			o.KeyFile = issue(t, authority(t), "lb1", testcert.Options{}).KeyFile
		}},
		{"not signed by a CA in", testcert.Options{}, func(t *testing.T, o *CredentialsOptions) { o.CAFile = authority(t).CertFile }},
		{"no CA certificate in it", testcert.Options{}, func(_ *testing.T, o *CredentialsOptions) { o.CAFile = o.CertFile }},
		{"no CA certificate in it", testcert.Options{}, func(_ *testing.T, o *CredentialsOptions) { o.CAFile = o.KeyFile }},
		{"holds no PEM block", testcert.Options{}, func(t *testing.T, o *CredentialsOptions) { write(t, o.CertFile, []byte("junk")) }},
		{"holds no PEM block", testcert.Options{}, func(t *testing.T, o *CredentialsOptions) { write(t, o.KeyFile, nil) }},
		{"can be written by others", testcert.Options{}, func(t *testing.T, o *CredentialsOptions) {
			if err := os.Chmod(o.KeyFile, 0o622); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		opts := optionsOf(issue(t, authority(t), "lb1", test.opts), "lb1", &logBuffer{})
		if test.change != nil {
			test.change(t, &opts)
		}
		_, err := NewCredentials(opts)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("NewCredentials: got error %v, want it to contain %q", err, test.want)
		}
	}
}

func TestNewCredentialsWarns(t *testing.T) {
	t.Parallel()
	now := time.Now()
	pair := issue(t, authority(t), "lb1", testcert.Options{NotBefore: now.Add(-30 * 24 * time.Hour), NotAfter: now.Add(24 * time.Hour)})
	if err := os.Chmod(pair.KeyFile, 0o644); err != nil {
		t.Fatal(err)
	}
	c := load(t, pair, "lb1")
	for _, want := range []string{"can be read by others", "expires soon"} {
		if c.logs.count("level=WARN", want) != 1 {
			t.Errorf("warnings: want one that contains %q, got:\n%s", want, c.logs)
		}
	}
}

// TestClientHandshakeEndsWithContext verifies that an unresponsive server does not block a client
// after its context ends.
func TestClientHandshakeEndsWithContext(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	c := load(t, issue(t, authority(t), "lb1", testcert.Options{}), "lb1")
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, _, err = c.Client("lb2").ClientHandshake(ctx, "", conn)
	if err == nil || c.Stats().DialRefused[ReasonClosed] != 1 {
		t.Errorf("handshake: got error %v, stats %+v, want an error, and one dial refused because of %s", err, c.Stats(), ReasonClosed)
	}
}

func TestInsecure(t *testing.T) {
	t.Parallel()
	server, client := insecureWithLog(), insecureWithLog()
	if err := call(t, dial(t, client, serve(t, server), "lb2"), "lb1"); err != nil {
		t.Fatal(err)
	}
	if s := server.Stats(); s.Accepted != 1 || s.Secure || !s.NotAfter.IsZero() {
		t.Errorf("server stats: got %+v, want 1 accepted connection, not secure, and no NotAfter", s)
	}
	if s := client.Stats(); s.Dialled != 1 {
		t.Errorf("client stats: got %+v, want 1 dialled connection", s)
	}
	if info := server.Server().Clone().Info(); info.SecurityProtocol != "insecure" {
		t.Errorf("Info: got %+v, want security protocol \"insecure\"", info)
	}
}

// TestAlertTexts verifies the constants that this package copied from crypto/tls.
func TestAlertTexts(t *testing.T) {
	t.Parallel()
	if alertText(alertExpired) != "expired certificate" || alertText(alertProtocolVersion) != "protocol version not supported" {
		t.Errorf("alert texts: got %q and %q, want \"expired certificate\" and \"protocol version not supported\"", alertText(alertExpired), alertText(alertProtocolVersion))
	}
	if got := remoteAlert(&net.OpError{Op: "remote error", Err: tls.AlertError(45)}); got != "expired certificate" {
		t.Errorf("remoteAlert: got %q, want \"expired certificate\"", got)
	}
}
