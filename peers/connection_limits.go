package peers

import (
	"container/list"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"
)

// The causes for which a Limiter ends a connection, as metrics report them.
const (
	// RejectPending: too many connections are not yet authenticated.
	RejectPending = "pending"
	// RejectTotal: too many connections are authenticated.
	RejectTotal = "total"
	// RejectAddress: too many connections come from one address.
	RejectAddress = "address"
	// RejectCertificate: too many connections use the same certificate.
	RejectCertificate = "certificate"
	// RejectBytes: the connection sent more bytes than allowed.
	RejectBytes = "bytes"
	// RejectDeadline: the connection was open longer than allowed.
	RejectDeadline = "deadline"
)

var (
	errTooMany  = errors.New("too many connections")
	errTooLarge = fmt.Errorf("message is larger than %d bytes", gossipBytes)
)

// Limits bounds the connections of one listener. A limit of 0 means unlimited.
type Limits struct {
	// Name is the listener's name in logs.
	Name string
	// Pending and PendingPerAddr bound the connections that are not yet authenticated. A new
	// connection beyond a limit replaces another one: see connToReplace. A legitimate client stays
	// pending for milliseconds, whereas an idle client stays pending until it is replaced.
	Pending, PendingPerAddr int
	// Total, PerAddr and PerCertificate bound the authenticated connections. The listener refuses new
	// connections beyond these limits.
	Total, PerAddr, PerCertificate int
	// Bytes bounds the bytes read from one connection. SharedBytes bounds the bytes read from all open
	// connections, beyond the first reservedBytes of each.
	Bytes, SharedBytes int64
	// MaxLifetime bounds the time that a connection stays open.
	MaxLifetime time.Duration
}

// reservedBytes is the number of bytes that each connection may send regardless of the other
// connections.
const reservedBytes = 32 << 10

// Limiter bounds the connections of a listener. Its methods are safe for concurrent use.
type Limiter struct {
	limits   Limits
	log      *slog.Logger
	logLimit *logLimiter

	mu                  sync.Mutex
	pending             *list.List // of *limitedConn, oldest first
	open                map[*limitedConn]struct{}
	pendingByAddr       map[netip.Prefix]int // pending connections by address
	authenticatedByAddr map[netip.Prefix]int // authenticated connections by address
	authenticatedByCert map[string]int       // authenticated connections by certificate
	authenticatedTotal  int                  // authenticated connections
	sharedBytes         int64                // bytes read by open connections beyond reservedBytes
	rejected            map[string]uint64
}

// NewLimiter returns a Limiter without connections. A nil logger discards all messages.
func NewLimiter(limits Limits, log *slog.Logger) *Limiter {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Limiter{
		limits: limits, log: log, logLimit: newLogLimiter(logEvery),
		pending: list.New(), open: make(map[*limitedConn]struct{}),
		pendingByAddr: make(map[netip.Prefix]int), authenticatedByAddr: make(map[netip.Prefix]int),
		authenticatedByCert: make(map[string]int), rejected: limits.causes(),
	}
}

// causes returns a map with a count of 0 for each configured limit.
func (l *Limits) causes() map[string]uint64 {
	counts := make(map[string]uint64)
	for cause, limited := range map[string]bool{
		RejectPending: l.Pending > 0, RejectTotal: l.Total > 0, RejectAddress: l.PendingPerAddr > 0 || l.PerAddr > 0,
		RejectCertificate: l.PerCertificate > 0, RejectBytes: l.Bytes > 0, RejectEncoding: l.Bytes > 0, RejectCluster: l.Bytes > 0, RejectDeadline: l.MaxLifetime > 0,
	} {
		if limited {
			counts[cause] = 0
		}
	}
	return counts
}

// Rejected returns the number of connections that a limit ended, by cause. The caller owns the map.
func (l *Limiter) Rejected() map[string]uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.rejected)
}

// Open returns the number of open connections, pending and authenticated.
func (l *Limiter) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

// Listener returns inner with its connections bounded.
func (l *Limiter) Listener(inner net.Listener) net.Listener {
	return &limitedListener{Listener: inner, l: l}
}

type limitedListener struct {
	net.Listener
	l *Limiter
}

// Accept implements net.Listener.
func (ll *limitedListener) Accept() (net.Conn, error) {
	conn, err := ll.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return ll.l.add(conn), nil
}

// add registers a connection as pending and ends the connection that it replaces.
func (l *Limiter) add(conn net.Conn) *limitedConn {
	c := &limitedConn{Conn: conn, l: l, from: NetworkOf(conn.RemoteAddr().String())}
	if l.limits.MaxLifetime > 0 {
		c.deadline = time.Now().Add(l.limits.MaxLifetime)
		_ = conn.SetDeadline(c.deadline) // an error means that the connection is closed; its next read fails too
	}
	l.mu.Lock()
	victim, cause := l.connToReplace(c.from)
	if victim != nil {
		l.drop(victim)
		l.rejected[cause]++
	}
	c.pendingElem = l.pending.PushBack(c)
	l.open[c] = struct{}{}
	l.pendingByAddr[c.from]++
	l.mu.Unlock()
	if victim != nil {
		l.report(victim, cause)
		_ = victim.Conn.Close()
	}
	return c
}

// drop removes a connection from the counts. It may be called more than once. The caller holds l.mu.
func (l *Limiter) drop(c *limitedConn) {
	if _, open := l.open[c]; !open {
		return
	}
	delete(l.open, c)
	l.sharedBytes -= c.charged
	if c.pendingElem != nil {
		l.pending.Remove(c.pendingElem)
		c.pendingElem = nil
		decrement(l.pendingByAddr, c.from)
		return
	}
	l.authenticatedTotal--
	decrement(l.authenticatedByAddr, c.from)
	if c.certificate != "" {
		decrement(l.authenticatedByCert, c.certificate)
	}
}

func decrement[K comparable](counts map[K]int, key K) {
	if counts[key]--; counts[key] <= 0 {
		delete(counts, key)
	}
}

// authenticated moves a connection from the pending to the authenticated ones. It returns an error if
// a limit on authenticated connections is reached. The certificate may be empty.
func (l *Limiter) authenticated(c *limitedConn, certificate string) error {
	l.mu.Lock()
	if c.pendingElem == nil {
		_, open := l.open[c]
		l.mu.Unlock()
		if !open {
			return net.ErrClosed
		}
		return nil
	}
	cause := ""
	switch over := func(n, limit int) bool { return limit > 0 && n >= limit }; {
	case certificate != "" && over(l.authenticatedByCert[certificate], l.limits.PerCertificate):
		cause = RejectCertificate
	case over(l.authenticatedByAddr[c.from], l.limits.PerAddr):
		cause = RejectAddress
	case over(l.authenticatedTotal, l.limits.Total):
		cause = RejectTotal
	}
	if cause != "" {
		l.rejected[cause]++
		l.mu.Unlock()
		l.report(c, cause)
		return fmt.Errorf("accept connection from %s: %w (limit %s)", c.RemoteAddr(), errTooMany, cause)
	}
	l.pending.Remove(c.pendingElem)
	c.pendingElem, c.certificate = nil, certificate
	decrement(l.pendingByAddr, c.from)
	l.authenticatedTotal++
	l.authenticatedByAddr[c.from]++
	if certificate != "" {
		l.authenticatedByCert[certificate]++
	}
	l.mu.Unlock()
	return nil
}

// allowance returns how many bytes a connection may read now.
func (l *Limiter) allowance(c *limitedConn, want int64) (int64, error) {
	if l.limits.Bytes <= 0 {
		return want, nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	left := l.limits.Bytes - c.read
	if limit := l.limits.SharedBytes; limit > 0 {
		left = min(left, max(reservedBytes-c.read, 0)+max(limit-l.sharedBytes, 0))
	}
	if left <= 0 {
		return 0, fmt.Errorf("read from %s after %d bytes: more than the listener accepts", c.RemoteAddr(), c.read)
	}
	return min(want, left), nil
}

// charge records that a connection has read n bytes.
func (l *Limiter) charge(c *limitedConn, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.read += n
	if beyond := c.read - reservedBytes; beyond > c.charged {
		if _, open := l.open[c]; open {
			l.sharedBytes += beyond - c.charged
		}
		c.charged = beyond
	}
}

// reject counts and logs that a limit ends a connection. Only the first call for a connection has an
// effect.
func (l *Limiter) reject(c *limitedConn, cause string) {
	l.mu.Lock()
	again := c.rejected
	c.rejected = true
	if !again {
		l.rejected[cause]++
	}
	l.mu.Unlock()
	if !again {
		l.report(c, cause)
	}
}

// report logs a rejected connection, once per interval and cause.
func (l *Limiter) report(c *limitedConn, cause string) {
	if l.logLimit.allow(cause) {
		l.log.Warn("connections rejected, listener limit reached", "listener", l.limits.Name, "limit", cause,
			"remote", c.RemoteAddr().String(), "problem", "connections-limited", "hint", "an unknown client floods this port, or max-connections is too low")
	}
}

// limitedConn is a connection that a Limiter counts. The Limiter's lock protects its mutable fields.
type limitedConn struct {
	net.Conn
	l        *Limiter
	from     netip.Prefix
	deadline time.Time // 0: no limit

	pendingElem *list.Element // position in Limiter.pending; nil once authenticated
	certificate string
	read        int64
	charged     int64 // part of read that counts towards SharedBytes
	rejected    bool
}

// Authenticated marks the connection as authenticated. certificate identifies the client's certificate
// and may be empty. If Authenticated returns an error, the caller must close the connection.
func (c *limitedConn) Authenticated(certificate string) error {
	return c.l.authenticated(c, certificate)
}

// Read implements net.Conn.
func (c *limitedConn) Read(p []byte) (int, error) {
	n, err := c.l.allowance(c, int64(len(p)))
	if err != nil {
		c.l.reject(c, RejectBytes)
		return 0, err
	}
	got, err := c.Conn.Read(p[:n])
	if c.l.limits.Bytes > 0 {
		c.l.charge(c, int64(got))
	}
	if err != nil && !c.deadline.IsZero() && !time.Now().Before(c.deadline) {
		c.l.reject(c, RejectDeadline)
	}
	return got, err
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	c.l.mu.Lock()
	c.l.drop(c)
	c.l.mu.Unlock()
	return c.Conn.Close()
}

// CloseWrite closes the write side. It closes the whole connection if half-close is not supported.
func (c *limitedConn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return c.Conn.Close()
	}
	return half.CloseWrite()
}

// SetDeadline implements net.Conn. It caps the deadline at the connection's maximum lifetime.
func (c *limitedConn) SetDeadline(t time.Time) error { return c.Conn.SetDeadline(c.capDeadline(t)) }

// SetReadDeadline implements net.Conn. It caps the deadline at the connection's maximum lifetime.
func (c *limitedConn) SetReadDeadline(t time.Time) error {
	return c.Conn.SetReadDeadline(c.capDeadline(t))
}

// SetWriteDeadline implements net.Conn. It caps the deadline at the connection's maximum lifetime.
func (c *limitedConn) SetWriteDeadline(t time.Time) error {
	return c.Conn.SetWriteDeadline(c.capDeadline(t))
}

func (c *limitedConn) capDeadline(t time.Time) time.Time {
	if !c.deadline.IsZero() && (t.IsZero() || t.After(c.deadline)) {
		return c.deadline
	}
	return t
}

// NetworkOf returns the network that counts as one address, of a remote host:port: an IPv4 address or an IPv6 /64. One
// host may own all addresses of a /64.
func NetworkOf(remote string) netip.Prefix {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Prefix{} // a unix socket; all of them count as one address
	}
	ip := ap.Addr().Unmap().WithZone("")
	bits := 32
	if ip.Is6() {
		bits = 64
	}
	network, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return network
}
