package peers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"mapsync/internal/poll"
	"mapsync/internal/testcert"
)

// testCredentials is a Credentials with its log.
type testCredentials struct {
	*Credentials
	logs *logBuffer
}

// authority creates a CA in its own directory.
func authority(t *testing.T) *testcert.CA {
	t.Helper()
	ca, err := testcert.NewCA(t.TempDir(), "ca")
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func issue(t *testing.T, ca *testcert.CA, node string, opts testcert.Options) testcert.Pair {
	t.Helper()
	pair, err := ca.Issue(node, opts)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func optionsOf(pair testcert.Pair, node string, logs *logBuffer) CredentialsOptions {
	return CredentialsOptions{CertFile: pair.CertFile, KeyFile: pair.KeyFile, CAFile: pair.CAFile, NodeName: node, Logger: logs.logger()}
}

func load(t *testing.T, pair testcert.Pair, node string) testCredentials {
	t.Helper()
	logs := &logBuffer{}
	c, err := NewCredentials(optionsOf(pair, node, logs))
	if err != nil {
		t.Fatal(err)
	}
	return testCredentials{c, logs}
}

func insecureWithLog() testCredentials {
	logs := &logBuffer{}
	return testCredentials{Insecure(CredentialsOptions{Logger: logs.logger()}), logs}
}

// trusting returns pair with a CA file that contains all cas.
func trusting(t *testing.T, pair testcert.Pair, cas ...*testcert.CA) testcert.Pair {
	t.Helper()
	var all []byte
	for _, ca := range cas {
		pem, err := os.ReadFile(ca.CertFile)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, pem...)
	}
	pair.CAFile = filepath.Join(t.TempDir(), "cas.pem")
	if err := os.WriteFile(pair.CAFile, all, 0o600); err != nil {
		t.Fatal(err)
	}
	return pair
}

// serve runs a gRPC server that verifies its callers. It returns its address.
func serve(t *testing.T, c testCredentials) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(c.Server()), grpc.UnaryInterceptor(
		func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
			md, _ := metadata.FromIncomingContext(ctx)
			if err := c.VerifyPeer(ctx, md.Get("node")[0]); err != nil {
				return nil, err
			}
			return handler(ctx, req)
		}))
	healthpb.RegisterHealthServer(server, health.NewServer())
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("log of the server:\n%s", c.logs)
		}
	})
	return listener.Addr().String()
}

func dial(t *testing.T, c testCredentials, addr, node string) healthpb.HealthClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(c.Client(node)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		if t.Failed() {
			t.Logf("log of the client:\n%s", c.logs)
		}
	})
	return healthpb.NewHealthClient(conn)
}

// call makes a call with the given node name.
func call(t *testing.T, client healthpb.HealthClient, as string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := client.Check(metadata.AppendToOutgoingContext(ctx, "node", as), &healthpb.HealthCheckRequest{})
	return err
}

func TestMutualTLS(t *testing.T) {
	t.Parallel()
	ca := authority(t)
	server := load(t, issue(t, ca, "lb2", testcert.Options{}), "lb2")
	client := load(t, issue(t, ca, "lb1", testcert.Options{}), "lb1")
	addr := serve(t, server)
	stub := dial(t, client, addr, "lb2")
	if err := call(t, stub, "lb1"); err != nil {
		t.Fatal(err)
	}
	err := call(t, stub, "lb3")
	if status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "node name is lb3, but its certificate is for lb1") {
		t.Errorf("call of lb1 as lb3: got %v, want PermissionDenied", err)
	}
	if s := server.Stats(); s.Accepted != 1 || s.AcceptRefused[ReasonWrongName] != 1 || !s.Secure {
		t.Errorf("server stats: got %+v, want 1 accepted connection, 1 refused because of %s, and secure", s, ReasonWrongName)
	}
	if server.logs.count("level=WARN", "refused a connection", "reason=wrong_name", "remote=127.0.0.1") != 1 {
		t.Error("wrong node name: want exactly one log line")
	}
	if s := client.Stats(); s.Dialled != 1 || len(s.DialRefused) != 0 || time.Until(s.NotAfter) < time.Hour {
		t.Errorf("client stats: got %+v, want 1 dialled connection, none refused, and NotAfter in an hour or later", s)
	}
}

// refusalCase is a refused connection with the expected reason and cause on each side.
type refusalCase struct {
	name                       string
	server, client             func(*testing.T) testCredentials
	serverReason, clientReason Reason
	serverCause, clientCause   string
}

func TestHandshakeErrors(t *testing.T) {
	t.Parallel()
	ca, other := authority(t), authority(t)
	past, future := time.Now().Add(-48*time.Hour), time.Now().Add(48*time.Hour)
	old := testcert.Options{NotBefore: past.Add(-time.Hour), NotAfter: past.Add(time.Hour)}
	coming := testcert.Options{NotBefore: future.Add(-time.Hour), NotAfter: future.Add(time.Hour)}
	plain := func(*testing.T) testCredentials { return insecureWithLog() }
	of := func(ca *testcert.CA, node string, opts testcert.Options) func(*testing.T) testCredentials {
		return func(t *testing.T) testCredentials {
			opts := opts
			opts.File = node + strings.ReplaceAll(t.Name(), "/", "_")
			return load(t, issue(t, ca, node, opts), node)
		}
	}
	// NewCredentials refuses this certificate. In production, a certificate reaches this state when it
	// expires in use.
	at := func(node string, opts testcert.Options) func(*testing.T) testCredentials {
		return func(t *testing.T) testCredentials {
			s := of(ca, node, testcert.Options{})(t)
			opts := opts
			opts.File = node + "x" + strings.ReplaceAll(t.Name(), "/", "_")
			pair := issue(t, ca, node, opts)
			cert, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
			if err != nil {
				t.Fatal(err)
			}
			s.current.cert, s.lastCheck = cert, time.Now().Add(time.Hour)
			return s
		}
	}
	both := func(node string) func(*testing.T) testCredentials {
		return func(t *testing.T) testCredentials {
			return load(t, trusting(t, issue(t, other, node, testcert.Options{}), ca, other), node)
		}
	}
	lb1, lb2 := of(ca, "lb1", testcert.Options{}), of(ca, "lb2", testcert.Options{})
	for _, r := range []refusalCase{
		{"client without TLS", lb2, plain, ReasonPlain, ReasonTLS, "does not speak TLS", "it uses TLS and this node does not"},
		{"server without TLS", plain, lb1, ReasonTLS, ReasonPlain, "it uses TLS and this node does not", "does not speak TLS"},
		{"client of unknown CA", lb2, both("lb1"), ReasonUnknownCA, ReasonRefusedByPeer, "signed by an unknown CA", "does not trust the CA"},
		{"server of unknown CA", both("lb2"), lb1, ReasonRefusedByPeer, ReasonUnknownCA, "does not trust the CA", "signed by an unknown CA"},
		{"expired client", lb2, at("lb1", old), ReasonExpired, ReasonRefusedByPeer, "expired at", "it expired at"},
		{"expired server", at("lb2", old), lb1, ReasonRefusedByPeer, ReasonExpired, "it expired at", "expired at"},
		{"client not yet valid", lb2, at("lb1", coming), ReasonNotYetValid, ReasonRefusedByPeer, "is not yet valid", "is not yet valid"},
		{"server not yet valid", at("lb2", coming), lb1, ReasonRefusedByPeer, ReasonNotYetValid, "is not yet valid", "is not yet valid"},
		{"certificate of other node", of(ca, "lb3", testcert.Options{}), lb1, ReasonRefusedByPeer, ReasonWrongName, "for lb3, but this node was dialled as lb2", "does not name node lb2"},
		{
			"wildcard", at("lb2", testcert.Options{DNSNames: []string{"*.example"}}), lb1, ReasonRefusedByPeer, ReasonWrongName,
			"was dialled as", "(for *.example) does not name node",
		},
		{
			"client-only certificate", at("lb2", testcert.Options{Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}), lb1,
			ReasonRefusedByPeer, ReasonBadCertificate, "bad certificate", "incompatible key usage",
		},
	} {
		t.Run(r.name, r.test)
	}
}

func (r refusalCase) test(t *testing.T) {
	t.Parallel()
	server, client := r.server(t), r.client(t)
	node := "lb2"
	if r.name == "wildcard" {
		node = "lb2.example"
	}
	stub := dial(t, client, serve(t, server), node)
	err := call(t, stub, "lb1")
	if err == nil {
		t.Fatal("call: got nil, want an error")
	}
	if !strings.Contains(err.Error(), r.clientCause) {
		t.Errorf("call: want an error that contains %q, got %v", r.clientCause, err)
	}
	// The client retries, which must not add log lines.
	_ = call(t, stub, "lb1")
	for _, side := range []struct {
		testCredentials
		refused       func() map[Reason]uint64
		level         string
		message       string
		reason, cause string
	}{
		{server, func() map[Reason]uint64 { return server.Stats().AcceptRefused }, "level=WARN", "refused a connection", string(r.serverReason), r.serverCause},
		{client, func() map[Reason]uint64 { return client.Stats().DialRefused }, "level=ERROR", "connection to peer failed", string(r.clientReason), r.clientCause},
	} {
		poll.Within(t, 5*time.Second, side.message+" because "+side.cause, func() bool {
			return side.refused()[Reason(side.reason)] > 0 && side.logs.count(side.level, side.message, "reason="+side.reason, side.cause) > 0
		})
		if refused := side.refused(); len(refused) != 1 {
			t.Errorf("%s: got counts for several reasons, want only %s: %v", side.message, side.reason, refused)
		}
		if n := side.logs.count(side.level); n != 1 {
			t.Errorf("%s: got %d log lines, want 1", side.message, n)
		}
	}
}

// TestUnknownClientsAreRefused verifies that clients without a valid certificate are refused.
func TestUnknownClientsAreRefused(t *testing.T) {
	t.Parallel()
	ca := authority(t)
	pair := issue(t, ca, "lb1", testcert.Options{})
	cert, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	withTLS := func(conf *tls.Config) func(net.Conn) error {
		conf.InsecureSkipVerify = true // the test verifies the server only
		return func(conn net.Conn) error {
			client := tls.Client(conn, conf)
			if err := client.Handshake(); err != nil {
				return err
			}
			_, err := client.Read(make([]byte, 1))
			return err
		}
	}
	h2 := []string{"h2"}
	for _, test := range []struct {
		name   string
		talk   func(net.Conn) error
		reason Reason
		want   string // part of the client's error
		silent bool   // the refusal is not logged
	}{
		{"plain text", func(c net.Conn) error {
			if _, err := c.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
				return err
			}
			_, err := io.ReadAll(c)
			return err
		}, ReasonPlain, "", false},
		{"no certificate", withTLS(&tls.Config{NextProtos: h2}), ReasonNoCertificate, "certificate required", false},
		{"TLS 1.2", withTLS(&tls.Config{NextProtos: h2, MaxVersion: tls.VersionTLS12, Certificates: []tls.Certificate{cert}}), ReasonProtocol, "protocol version", false},
		{"no gRPC", withTLS(&tls.Config{Certificates: []tls.Certificate{cert}}), ReasonProtocol, "EOF", false},
		{"port probe", func(c net.Conn) error { return c.Close() }, ReasonClosed, "", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			opts := testcert.Options{File: "lb2" + strings.ReplaceAll(test.name, " ", "_")}
			server := load(t, issue(t, ca, "lb2", opts), "lb2")
			conn, err := net.Dial("tcp", serve(t, server))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			err = test.talk(conn)
			if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("client error: got %v, want %q", err, test.want)
			}
			poll.Within(t, 5*time.Second, "the refusal is counted", func() bool { return server.Stats().AcceptRefused[test.reason] == 1 })
			logged := func() int { return server.logs.count("reason="+string(test.reason), "remote=127.0.0.1") }
			if test.silent {
				if n := logged(); n != 0 {
					t.Errorf("log lines about a port probe: got %d, want 0", n)
				}
				return
			}
			poll.Within(t, 5*time.Second, "the refusal is logged", func() bool { return logged() == 1 })
		})
	}
}
