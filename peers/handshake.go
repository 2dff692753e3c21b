package peers

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// transportCredentials are what gRPC uses of a Credentials, for its server or,
// with a node's name, for dialling that node. They hold no state.
type transportCredentials struct {
	c    *Credentials
	node string
}

// Info implements credentials.TransportCredentials.
func (t *transportCredentials) Info() credentials.ProtocolInfo {
	if !t.c.Secure() {
		return insecure.NewCredentials().Info()
	}
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (t *transportCredentials) Clone() credentials.TransportCredentials {
	clone := *t
	return &clone
}

// OverrideServerName implements credentials.TransportCredentials. The name to
// verify is the node's and nothing else.
func (t *transportCredentials) OverrideServerName(string) error {
	return errors.New("override server name: the node's name is verified")
}

// ClientHandshake implements credentials.TransportCredentials. Its error is a
// RefusedError, and so is that of the first read if the server refuses this
// node's certificate, which in TLS 1.3 the client learns only then.
func (t *transportCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if !t.c.Secure() {
		conn, info, err := insecure.NewCredentials().ClientHandshake(ctx, authority, raw)
		return &sniffConn{Conn: conn, c: t.c}, info, err
	}
	m := t.c.material()
	h := handshake{own: m, dialled: t.node, remote: raw.RemoteAddr().String()}
	conn, info, err := credentials.NewTLS(m.clientConfig(t.c.opts.Load(), t.node)).ClientHandshake(ctx, t.node, raw)
	if err != nil {
		refused := h.explain(err)
		t.c.refused(false, refused)
		return nil, nil, refused
	}
	t.c.count(&t.c.stats.Dialled)
	verified, err := m.verified(info)
	if err != nil {
		return nil, nil, err
	}
	return &alertConn{Conn: t.c.track(conn, verified, m, false), c: t.c, h: h}, verified, nil
}

// ServerHandshake implements credentials.TransportCredentials.
func (t *transportCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if !t.c.Secure() {
		conn, info, err := insecure.NewCredentials().ServerHandshake(raw)
		return &sniffConn{Conn: conn, c: t.c, server: true}, info, err
	}
	m := t.c.material()
	h := handshake{own: m, remote: raw.RemoteAddr().String(), server: true}
	under := &lingerConn{Conn: raw}
	conn, info, err := credentials.NewTLS(m.serverConfig(t.c.opts.Load(), &h.dialled)).ServerHandshake(under)
	if err == nil {
		under.established = true
		verified, err := m.verified(info)
		if err == nil {
			err = authenticated(raw, certificateOf(verified))
		}
		if err != nil {
			return nil, nil, err
		}
		t.c.count(&t.c.stats.Accepted)
		return t.c.track(conn, verified, m, true), verified, nil
	}
	refused := h.explain(err)
	t.c.refused(true, refused)
	if refused.Reason == ReasonClosed {
		// gRPC knows this as a port probe, and passes it over.
		return nil, nil, io.EOF
	}
	return nil, nil, refused
}

// authenticated moves a connection to the authenticated ones of its listener, if
// the listener counts them.
func authenticated(conn net.Conn, certificate string) error {
	if counted, ok := conn.(interface{ Authenticated(string) error }); ok {
		return counted.Authenticated(certificate)
	}
	return nil
}

// authInfo is what a handshake has verified. It has at least one chain.
type authInfo struct {
	credentials.TLSInfo
	until time.Time // the certificate of either side ends
}

// verified returns the result of a handshake with m.
func (m *material) verified(info credentials.AuthInfo) (authInfo, error) {
	tlsInfo, ok := info.(credentials.TLSInfo)
	if !ok || len(tlsInfo.State.VerifiedChains) == 0 {
		return authInfo{}, errors.New("verify peer: the handshake verified no certificate")
	}
	until := lastEnd(tlsInfo.State.VerifiedChains)
	if m.ending.NotAfter.Before(until) {
		until = m.ending.NotAfter
	}
	return authInfo{tlsInfo, until}, nil
}

// certificateOf identifies the verified certificate of a peer.
func certificateOf(info authInfo) string {
	sum := sha256.Sum256(info.State.VerifiedChains[0][0].Raw)
	return string(sum[:])
}

// count adds one to a counter of c.stats.
func (c *Credentials) count(counter *uint64) {
	c.mu.Lock()
	*counter++
	c.mu.Unlock()
}

// clientConfig returns the settings for dialling node.
func (m *material) clientConfig(o *CredentialsOptions, node string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		ServerName: node,
		RootCAs:    m.roots,
		// Certificates would keep this node's certificate back when its issuer is
		// not the server's CA; the server could then not say what is wrong.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &m.cert, nil },
		// A wildcard passes the standard verification, but names no node.
		VerifyConnection: func(state tls.ConnectionState) error {
			leaf := state.PeerCertificates[0]
			if namesNode(leaf, node) {
				return m.verifyPermit(o, state, true)
			}
			return &tls.CertificateVerificationError{
				UnverifiedCertificates: state.PeerCertificates,
				Err:                    x509.HostnameError{Certificate: leaf, Host: node},
			}
		},
	}
}

// verifyPermit returns an error if the verified certificate of a connection may
// not be used.
func (m *material) verifyPermit(o *CredentialsOptions, state tls.ConnectionState, dialled bool) error {
	if err := m.permit(o, state.VerifiedChains, dialled); err != nil {
		return &tls.CertificateVerificationError{UnverifiedCertificates: state.PeerCertificates, Err: err}
	}
	return nil
}

// serverConfig returns the settings for one connection to this node, and puts
// the name that the client asks for into dialled.
func (m *material) serverConfig(o *CredentialsOptions, dialled *string) *tls.Config {
	return &tls.Config{
		MinVersion:   tls.VersionTLS13,
		Certificates: []tls.Certificate{m.cert},
		ClientAuth:   tls.RequireAndVerifyClientCert,
		ClientCAs:    m.roots,
		// A resumed session would outlive a certificate.
		SessionTicketsDisabled: true,
		VerifyConnection:       func(state tls.ConnectionState) error { return m.verifyPermit(o, state, false) },
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			*dialled = hello.ServerName
			return nil, nil
		},
	}
}

// alertConn explains the alert by which a server refuses this node.
type alertConn struct {
	net.Conn
	c    *Credentials
	h    handshake
	told bool
}

// Read implements net.Conn. gRPC reads from one goroutine.
func (a *alertConn) Read(p []byte) (int, error) {
	n, err := a.Conn.Read(p)
	if err == nil || a.told || remoteAlert(err) == "" {
		return n, err
	}
	a.told = true
	refused := a.h.explain(err)
	a.c.refused(false, refused)
	return n, refused
}

const (
	// lingerTime and lingerBytes bound how long a refused client is listened to.
	lingerTime  = time.Second
	lingerBytes = 64 << 10
	// recordAlert and recordHandshake are TLS record types, as they stand in the
	// first byte of a connection; tlsMajor follows.
	recordAlert     = 0x15
	recordHandshake = 0x16
	tlsMajor        = 0x03
)

// plainAlert is a TLS record with the fatal alert "protocol version". To a
// client that speaks no TLS, it is the sign that this node does.
var plainAlert = []byte{recordAlert, tlsMajor, 0x03, 0x00, 0x02, 0x02, byte(alertProtocolVersion)}

// lingerConn lets a refused client know: a client sends on while it is being
// refused, and closing a socket with unread data resets the connection, which
// can overtake the alert that names the cause.
type lingerConn struct {
	net.Conn
	established bool
	heard       bool
	plain       bool
}

// Read implements net.Conn, and notes whether the client speaks TLS.
func (l *lingerConn) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if n > 0 && !l.heard {
		l.heard = true
		l.plain = p[0] != recordHandshake
	}
	return n, err
}

// Close implements net.Conn.
func (l *lingerConn) Close() error {
	half, ok := l.Conn.(interface{ CloseWrite() error })
	if l.established || !ok {
		return l.Conn.Close()
	}
	if l.Conn.SetDeadline(time.Now().Add(lingerTime)) == nil {
		if l.plain {
			_, _ = l.Conn.Write(plainAlert)
		}
		if half.CloseWrite() == nil {
			_, _ = io.CopyN(io.Discard, l.Conn, lingerBytes)
		}
	}
	return l.Conn.Close()
}

// sniffConn looks for TLS in the first bytes of an insecure connection, which
// gRPC would only call garbage.
type sniffConn struct {
	net.Conn
	c      *Credentials
	server bool
	heard  bool
}

// Read implements net.Conn. gRPC reads from one goroutine.
func (s *sniffConn) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if n == 0 || s.heard {
		return n, err
	}
	s.heard = true
	if n > 1 && p[1] != tlsMajor || p[0] != recordAlert && p[0] != recordHandshake {
		if failed := authenticated(s.Conn, ""); failed != nil {
			return 0, failed
		}
		s.c.count(s.c.established(s.server))
		return n, err
	}
	refused := &RefusedError{
		Reason: ReasonTLS,
		Remote: s.RemoteAddr().String(),
		Cause:  "it uses TLS and this node does not: give this node TLS files too",
	}
	s.c.refused(s.server, refused)
	return 0, refused
}

// established returns the counter of good connections of one side.
func (c *Credentials) established(server bool) *uint64 {
	if server {
		return &c.stats.Accepted
	}
	return &c.stats.Dialled
}
