package peers

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// transportCredentials adapts Credentials to gRPC, for a server or for dialling the node with a given
// name. It has no state of its own.
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

// OverrideServerName implements credentials.TransportCredentials. It returns an error, because the
// handshake always verifies the node's name.
func (t *transportCredentials) OverrideServerName(string) error {
	return errors.New("override server name: the node's name is verified")
}

// ClientHandshake implements credentials.TransportCredentials. Its error is a RefusedError. If the
// server refuses this node's certificate, the first read returns a RefusedError instead, because in
// TLS 1.3 the client detects the refusal only then.
func (t *transportCredentials) ClientHandshake(ctx context.Context, authority string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if !t.c.Secure() {
		conn, info, err := insecure.NewCredentials().ClientHandshake(ctx, authority, raw)
		return &sniffConn{Conn: conn, c: t.c}, info, err
	}
	m := t.c.currentState()
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
	m := t.c.currentState()
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
		// gRPC treats io.EOF as a port probe and ignores it.
		return nil, nil, io.EOF
	}
	return nil, nil, refused
}

// authenticated marks a connection as authenticated at its listener, if the listener counts
// connections.
func authenticated(conn net.Conn, certificate string) error {
	if counted, ok := conn.(interface{ Authenticated(string) error }); ok {
		return counted.Authenticated(certificate)
	}
	return nil
}

// authInfo is the verified result of a handshake. It has at least one chain.
type authInfo struct {
	credentials.TLSInfo
	until time.Time // the first of both certificates expires
}

// certificateOf returns an identifier of the peer's verified certificate.
func certificateOf(info authInfo) string {
	sum := sha256.Sum256(info.State.VerifiedChains[0][0].Raw)
	return string(sum[:])
}

// count increments a counter of c.stats.
func (c *Credentials) count(counter *uint64) {
	c.mu.Lock()
	*counter++
	c.mu.Unlock()
}

// alertConn explains the alert with which a server refuses this node.
type alertConn struct {
	net.Conn
	c        *Credentials
	h        handshake
	reported bool
}

// Read implements net.Conn. gRPC reads from one goroutine.
func (a *alertConn) Read(p []byte) (int, error) {
	n, err := a.Conn.Read(p)
	if err == nil || a.reported || remoteAlert(err) == "" {
		return n, err
	}
	a.reported = true
	refused := a.h.explain(err)
	a.c.refused(false, refused)
	return n, refused
}

const (
	// lingerTime and lingerBytes bound how long and how much the server reads from a refused client.
	lingerTime  = time.Second
	lingerBytes = 64 << 10
	// recordAlert and recordHandshake are TLS record types, the first byte of a connection. tlsMajor
	// is the second byte.
	recordAlert     = 0x15
	recordHandshake = 0x16
	tlsMajor        = 0x03
)

// plainAlert is a TLS record with the fatal alert "protocol version". It shows a client without TLS
// that this node requires TLS.
var plainAlert = []byte{recordAlert, tlsMajor, 0x03, 0x00, 0x02, 0x02, byte(alertProtocolVersion)}

// lingerConn makes the alert reach a refused client. The client may still send while the server
// refuses it. Closing a socket with unread data resets the connection. The reset can overtake the
// alert that contains the cause.
type lingerConn struct {
	net.Conn
	established  bool
	gotFirstByte bool
	plain        bool
}

// Read implements net.Conn and records whether the client uses TLS.
func (l *lingerConn) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if n > 0 && !l.gotFirstByte {
		l.gotFirstByte = true
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

// sniffConn detects TLS in the first bytes of an insecure connection. gRPC alone would report them as
// invalid data.
type sniffConn struct {
	net.Conn
	c            *Credentials
	server       bool
	gotFirstByte bool
}

// Read implements net.Conn. gRPC reads from one goroutine.
func (s *sniffConn) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if n == 0 || s.gotFirstByte {
		return n, err
	}
	s.gotFirstByte = true
	if n > 1 && p[1] != tlsMajor || p[0] != recordAlert && p[0] != recordHandshake {
		if failed := authenticated(s.Conn, ""); failed != nil {
			return 0, failed
		}
		s.c.count(s.c.establishedCounter(s.server))
		return n, err
	}
	refused := &RefusedError{
		Reason: ReasonTLS,
		Remote: s.RemoteAddr().String(),
		Cause:  "it uses TLS and this node does not: configure TLS files on this node",
	}
	s.c.refused(s.server, refused)
	return 0, refused
}

// establishedCounter returns the counter of successful handshakes of one side.
func (c *Credentials) establishedCounter(server bool) *uint64 {
	if server {
		return &c.stats.Accepted
	}
	return &c.stats.Dialled
}
