package peers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"time"
)

// reverifyEvery is the pause between two checks of the certificates of open connections.
const reverifyEvery = 5 * time.Second

// trackedConn is an authenticated connection, with the data that is needed to verify its peer's
// certificate again.
type trackedConn struct {
	net.Conn
	c      *Credentials
	chain  []*x509.Certificate // as received, leaf first
	server bool                // this side accepted the connection

	// State of the last check. Only the goroutine that runs Reverify accesses it.
	checked *tlsState
	until   time.Time // the time at which the chain expires
}

// track registers an authenticated connection until it is closed.
func (c *Credentials) track(conn net.Conn, info authInfo, m *tlsState, server bool) net.Conn {
	t := &trackedConn{Conn: conn, c: c, chain: info.State.PeerCertificates, server: server, checked: m}
	t.until = latestExpiry(info.State.VerifiedChains)
	c.mu.Lock()
	c.tracked[t] = struct{}{}
	c.mu.Unlock()
	return t
}

// latestExpiry returns the time at which the last of the chains of a certificate expires.
func latestExpiry(chains [][]*x509.Certificate) (end time.Time) {
	for _, chain := range chains {
		if until := earliestExpiry(chain).NotAfter; until.After(end) {
			end = until
		}
	}
	return end
}

// Close implements net.Conn.
func (t *trackedConn) Close() error {
	t.c.mu.Lock()
	delete(t.c.tracked, t)
	t.c.mu.Unlock()
	return t.Conn.Close()
}

// Run repeatedly verifies the certificates of open connections until ctx ends. It ends connections
// whose certificate has expired, was revoked, or lost its trusted CA or its permission. Without Run,
// Credentials checks certificates only in handshakes.
func (c *Credentials) Run(ctx context.Context) error {
	if !c.Secure() {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(reverifyEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			c.Reverify(time.Now())
		}
	}
}

// Reverify immediately performs the check that Run performs periodically.
func (c *Credentials) Reverify(now time.Time) {
	if c.currentState() == nil {
		return
	}
	c.reverifyMu.Lock()
	defer c.reverifyMu.Unlock()
	c.mu.Lock()
	m := c.current // tracked connections may rely on the files of a concurrent reload
	c.logAdvice(m, now)
	due := make([]*trackedConn, 0, len(c.tracked))
	for t := range c.tracked {
		if t.checked != m || now.After(t.until) {
			due = append(due, t)
		}
	}
	c.mu.Unlock()
	for _, t := range due {
		if refused := t.verify(m, now); refused != nil {
			c.drop(t, refused)
		}
	}
}

// verify checks a connection's certificate with the rules of a handshake.
func (t *trackedConn) verify(m *tlsState, now time.Time) *RefusedError {
	leaf, rest := t.chain[0], x509.NewCertPool()
	for _, cert := range t.chain[1:] {
		rest.AddCert(cert)
	}
	use := x509.ExtKeyUsageServerAuth
	if t.server {
		use = x509.ExtKeyUsageClientAuth
	}
	chains, err := leaf.Verify(x509.VerifyOptions{
		Roots: m.roots, Intermediates: rest, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{use},
	})
	if err == nil {
		err = m.permit(t.c.opts.Load(), chains, !t.server)
	}
	if err == nil {
		t.checked, t.until = m, latestExpiry(chains)
		return nil
	}
	h := handshake{own: m, remote: t.RemoteAddr().String(), server: t.server}
	return h.explain(&tls.CertificateVerificationError{UnverifiedCertificates: t.chain, Err: err})
}

// drop ends a connection whose certificate failed a check.
func (c *Credentials) drop(t *trackedConn, refused *RefusedError) {
	c.mu.Lock()
	c.stats.Dropped[refused.Reason]++
	c.mu.Unlock()
	if c.logLimit.allow("drop" + string(refused.Reason) + hostOf(refused.Remote)) {
		c.log.Error("closed connection to peer, certificate rejected",
			"remote", refused.Remote, "reason", string(refused.Reason), "cause", refused.Cause, "problem", "connection-refused")
	}
	_ = t.SetDeadline(time.Now()) // TLS must not wait for the peer while it sends its close alert
	_ = t.Close()
}
