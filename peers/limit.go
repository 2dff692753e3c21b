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

// The causes for which a Limiter ends a connection, as they stand in metrics.
const (
	// RejectPending: too many connections are not authenticated yet.
	RejectPending = "pending"
	// RejectTotal: too many connections are authenticated.
	RejectTotal = "total"
	// RejectAddress: too many connections come from one address.
	RejectAddress = "address"
	// RejectCertificate: too many connections show the same certificate.
	RejectCertificate = "certificate"
	// RejectBytes: the connection sent more than it may.
	RejectBytes = "bytes"
	// RejectDeadline: the connection was open for longer than it may.
	RejectDeadline = "deadline"
)

var (
	errTooMany  = errors.New("too many connections")
	errTooLarge = fmt.Errorf("message is larger than %d bytes", gossipBytes)
)

// Limits bound the connections of one listener. A limit of 0 is none.
type Limits struct {
	// Name is the listener's name in logs.
	Name string
	// Pending and PendingPerAddr bound the connections that are not authenticated
	// yet. A newcomer beyond them replaces the oldest one: an honest client needs
	// its place for milliseconds, an idle one holds it.
	Pending, PendingPerAddr int
	// Total, PerAddr and PerCertificate bound the authenticated connections. A
	// newcomer beyond them is refused.
	Total, PerAddr, PerCertificate int
	// Bytes bounds what is read from a connection, SharedBytes what is read from
	// all connections that are open, beyond the first freeBytes of each.
	Bytes, SharedBytes int64
	// Life bounds how long a connection stays open.
	Life time.Duration
}

// freeBytes is what each connection may send whatever the others have sent.
const freeBytes = 32 << 10

// Limiter bounds the connections of a listener. Its methods may be called from
// any goroutine.
type Limiter struct {
	limits Limits
	log    *slog.Logger
	gate   *gate

	mu       sync.Mutex
	pending  *list.List // of *limitedConn, oldest first
	open     map[*limitedConn]struct{}
	waiting  map[netip.Prefix]int // pending connections by address
	accepted map[netip.Prefix]int // authenticated connections by address
	shown    map[string]int       // authenticated connections by certificate
	total    int                  // authenticated connections
	shared   int64                // bytes read by open connections beyond freeBytes
	rejected map[string]uint64
}

// NewLimiter returns a Limiter without connections. A nil logger discards.
func NewLimiter(limits Limits, log *slog.Logger) *Limiter {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Limiter{
		limits: limits, log: log, gate: newGate(logEvery),
		pending: list.New(), open: make(map[*limitedConn]struct{}),
		waiting: make(map[netip.Prefix]int), accepted: make(map[netip.Prefix]int),
		shown: make(map[string]int), rejected: limits.causes(),
	}
}

// causes returns a count of 0 for each limit.
func (l *Limits) causes() map[string]uint64 {
	counts := make(map[string]uint64)
	for cause, limited := range map[string]bool{
		RejectPending: l.Pending > 0, RejectTotal: l.Total > 0, RejectAddress: l.PendingPerAddr > 0 || l.PerAddr > 0,
		RejectCertificate: l.PerCertificate > 0, RejectBytes: l.Bytes > 0, RejectEncoding: l.Bytes > 0, RejectDeadline: l.Life > 0,
	} {
		if limited {
			counts[cause] = 0
		}
	}
	return counts
}

// Rejected returns the connections that were ended, by cause. The map is the
// caller's.
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

// add takes a connection in as pending, and ends the one that it replaces.
func (l *Limiter) add(conn net.Conn) *limitedConn {
	c := &limitedConn{Conn: conn, l: l, from: networkOf(conn.RemoteAddr())}
	if l.limits.Life > 0 {
		c.end = time.Now().Add(l.limits.Life)
		_ = conn.SetDeadline(c.end) // of a connection that is closed: its next read fails too
	}
	l.mu.Lock()
	victim, cause := l.replaced(c.from)
	if victim != nil {
		l.drop(victim)
		l.rejected[cause]++
	}
	c.place = l.pending.PushBack(c)
	l.open[c] = struct{}{}
	l.waiting[c.from]++
	l.mu.Unlock()
	if victim != nil {
		l.report(victim, cause)
		_ = victim.Conn.Close()
	}
	return c
}

// replaced returns the pending connection that has to go for another one from an
// address, and why; nil if there is room. The lock is held.
func (l *Limiter) replaced(from netip.Prefix) (*limitedConn, string) {
	if limit := l.limits.PendingPerAddr; limit > 0 && l.waiting[from] >= limit {
		for e := l.pending.Front(); e != nil; e = e.Next() {
			if c := e.Value.(*limitedConn); c.from == from {
				return c, RejectAddress
			}
		}
	}
	if limit := l.limits.Pending; limit > 0 && l.pending.Len() >= limit {
		return l.pending.Front().Value.(*limitedConn), RejectPending
	}
	return nil, ""
}

// drop takes a connection out. It may be called more than once. The lock is held.
func (l *Limiter) drop(c *limitedConn) {
	if _, open := l.open[c]; !open {
		return
	}
	delete(l.open, c)
	l.shared -= c.charged
	if c.place != nil {
		l.pending.Remove(c.place)
		c.place = nil
		decrement(l.waiting, c.from)
		return
	}
	l.total--
	decrement(l.accepted, c.from)
	if c.certificate != "" {
		decrement(l.shown, c.certificate)
	}
}

func decrement[K comparable](counts map[K]int, key K) {
	if counts[key]--; counts[key] <= 0 {
		delete(counts, key)
	}
}

// authenticated moves a connection from the pending ones to the others, unless
// there are too many of those. The certificate may be empty.
func (l *Limiter) authenticated(c *limitedConn, certificate string) error {
	l.mu.Lock()
	if c.place == nil {
		_, open := l.open[c]
		l.mu.Unlock()
		if !open {
			return net.ErrClosed
		}
		return nil
	}
	cause := ""
	switch over := func(n, limit int) bool { return limit > 0 && n >= limit }; {
	case certificate != "" && over(l.shown[certificate], l.limits.PerCertificate):
		cause = RejectCertificate
	case over(l.accepted[c.from], l.limits.PerAddr):
		cause = RejectAddress
	case over(l.total, l.limits.Total):
		cause = RejectTotal
	}
	if cause != "" {
		l.rejected[cause]++
		l.mu.Unlock()
		l.report(c, cause)
		return fmt.Errorf("accept connection from %s: %w (limit %s)", c.RemoteAddr(), errTooMany, cause)
	}
	l.pending.Remove(c.place)
	c.place, c.certificate = nil, certificate
	decrement(l.waiting, c.from)
	l.total++
	l.accepted[c.from]++
	if certificate != "" {
		l.shown[certificate]++
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
		left = min(left, max(freeBytes-c.read, 0)+max(limit-l.shared, 0))
	}
	if left <= 0 {
		return 0, fmt.Errorf("read from %s after %d bytes: more than the listener accepts", c.RemoteAddr(), c.read)
	}
	return min(want, left), nil
}

// charge notes that a connection has read n bytes.
func (l *Limiter) charge(c *limitedConn, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.read += n
	if beyond := c.read - freeBytes; beyond > c.charged {
		if _, open := l.open[c]; open {
			l.shared += beyond - c.charged
		}
		c.charged = beyond
	}
}

// reject counts and logs a connection that is ended for a cause, once.
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

// report logs a rejected connection, once an interval per cause.
func (l *Limiter) report(c *limitedConn, cause string) {
	if l.gate.allow(cause) {
		l.log.Warn("connections rejected, the listener is at its limit", "listener", l.limits.Name, "limit", cause,
			"remote", c.RemoteAddr().String(), "hint", "an unknown client floods this port, or max-connections is too low")
	}
}

// limitedConn is a connection that a Limiter counts. Its fields are guarded by
// the Limiter's lock, but for those that do not change.
type limitedConn struct {
	net.Conn
	l    *Limiter
	from netip.Prefix
	end  time.Time // 0: no limit

	place       *list.Element // among the pending ones; nil once authenticated
	certificate string
	read        int64
	charged     int64 // of read, what counts for SharedBytes
	rejected    bool
}

// Authenticated says that the client has shown who it is; certificate identifies
// what it has shown and may be empty. An error means that the connection has to
// be closed.
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
	if err != nil && !c.end.IsZero() && !time.Now().Before(c.end) {
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

// CloseWrite ends what this side sends, where the connection can.
func (c *limitedConn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return c.Conn.Close()
	}
	return half.CloseWrite()
}

// SetDeadline implements net.Conn within the connection's lifetime.
func (c *limitedConn) SetDeadline(t time.Time) error { return c.Conn.SetDeadline(c.within(t)) }

// SetReadDeadline implements net.Conn within the connection's lifetime.
func (c *limitedConn) SetReadDeadline(t time.Time) error { return c.Conn.SetReadDeadline(c.within(t)) }

// SetWriteDeadline implements net.Conn within the connection's lifetime.
func (c *limitedConn) SetWriteDeadline(t time.Time) error {
	return c.Conn.SetWriteDeadline(c.within(t))
}

func (c *limitedConn) within(t time.Time) time.Time {
	if !c.end.IsZero() && (t.IsZero() || t.After(c.end)) {
		return c.end
	}
	return t
}

// networkOf returns what counts as one address: an IPv4 address, or the /64 of an
// IPv6 one, all of which one host may have.
func networkOf(addr net.Addr) netip.Prefix {
	ap, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return netip.Prefix{} // a unix socket's: all count as one
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
