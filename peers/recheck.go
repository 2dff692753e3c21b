package peers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"time"
)

// recheckEvery is the pause between two checks of the certificates of open
// connections.
const recheckEvery = 5 * time.Second

// trackedConn is an authenticated connection, with what is needed to verify its
// peer's certificate again.
type trackedConn struct {
	net.Conn
	c      *Credentials
	chain  []*x509.Certificate // as shown, leaf first
	server bool                // this side accepted it

	// What the last check used. They belong to the goroutine that checks.
	checked *material
	until   time.Time // a certificate of the chain ends
}

// track registers an authenticated connection until it is closed.
func (c *Credentials) track(conn net.Conn, info authInfo, m *material, server bool) net.Conn {
	t := &trackedConn{Conn: conn, c: c, chain: info.State.PeerCertificates, server: server, checked: m}
	t.until = lastEnd(info.State.VerifiedChains)
	c.mu.Lock()
	c.tracked[t] = struct{}{}
	c.mu.Unlock()
	return t
}

// lastEnd returns when the last of the chains that verify a certificate ends.
func lastEnd(chains [][]*x509.Certificate) (end time.Time) {
	for _, chain := range chains {
		if until := firstToEnd(chain).NotAfter; until.After(end) {
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

// Run verifies the certificates of open connections again until ctx ends, and
// ends the connections whose certificate has expired, was revoked, or is no
// longer trusted or allowed. Credentials that are not run check at handshakes
// alone.
func (c *Credentials) Run(ctx context.Context) error {
	if !c.Secure() {
		<-ctx.Done()
		return nil
	}
	tick := time.NewTicker(recheckEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			c.Recheck(time.Now())
		}
	}
}

// Recheck does at once what Run does now and then.
func (c *Credentials) Recheck(now time.Time) {
	if c.material() == nil {
		return
	}
	c.recheckMu.Lock()
	defer c.recheckMu.Unlock()
	c.mu.Lock()
	m := c.current // what a reload took into use meanwhile allows connections that are tracked by now
	c.advise(m, now)
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

// verify checks a connection's certificate as a handshake would.
func (t *trackedConn) verify(m *material, now time.Time) *RefusedError {
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
		t.checked, t.until = m, lastEnd(chains)
		return nil
	}
	h := handshake{own: m, remote: t.RemoteAddr().String(), server: t.server}
	return h.explain(&tls.CertificateVerificationError{UnverifiedCertificates: t.chain, Err: err})
}

// drop ends a connection after its certificate has failed a check.
func (c *Credentials) drop(t *trackedConn, refused *RefusedError) {
	c.mu.Lock()
	c.stats.Dropped[refused.Reason]++
	c.mu.Unlock()
	if c.gate.allow("drop" + string(refused.Reason) + hostOf(refused.Remote)) {
		c.log.Error("ended the connection to a peer, certificate not accepted any longer",
			"remote", refused.Remote, "reason", string(refused.Reason), "cause", refused.Cause)
	}
	_ = t.SetDeadline(time.Now()) // a farewell must not wait for the peer
	_ = t.Close()
}
