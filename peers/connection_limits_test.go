package peers

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"mapsync/internal/poll"
)

// flood opens connections to addr. It sends header and then zeros on each of them until the other side
// closes it.
func flood(t *testing.T, addr string, connections int, header []byte) (stop func()) {
	t.Helper()
	var wg sync.WaitGroup
	conns := make([]net.Conn, 0, connections)
	for range connections {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		wg.Go(func() {
			_, _ = conn.Write(header)
			zeros := make([]byte, 64<<10)
			for range 20 << 20 / len(zeros) {
				if _, err := conn.Write(zeros); err != nil {
					return
				}
			}
			_, _ = io.Copy(io.Discard, conn)
		})
	}
	return func() {
		for _, c := range conns {
			_ = c.Close()
		}
		wg.Wait()
	}
}

// TestGossipFlood verifies that clients without the gossip key use bounded memory and do not block
// nodes.
func TestGossipFlood(t *testing.T) {
	a := start(t, "a", keys(keyOne))
	runtime.GC()
	var before, now runtime.MemStats
	runtime.ReadMemStats(&before)
	header := binary.BigEndian.AppendUint32([]byte{10}, 20<<20) // memberlist's encrypted message and its size
	stop := flood(t, a.GossipAddr(), 200, header)
	defer stop()
	var peak uint64
	b := start(t, "b", keys(keyOne), joining(a))
	poll.Within(t, 20*time.Second, "b joins during the flood, and connections are rejected", func() bool {
		runtime.ReadMemStats(&now)
		peak = max(peak, now.HeapAlloc)
		return a.sees(b) && b.sees(a) && a.Stats().Rejected[RejectAddress]+a.Stats().Rejected[RejectBytes] > 0
	})
	if grown := int64(peak) - int64(before.HeapAlloc); grown > 100<<20 {
		t.Errorf("heap growth: got %d MiB, want less", grown>>20)
	}
	if n := a.limiter.Open(); n > gossipPerAddr {
		t.Errorf("open connections of one address: got %d, want at most %d", n, gossipPerAddr)
	}
	if n := a.logs.count("connections rejected"); n > 3 {
		t.Errorf("log lines about rejected connections: got %d, want at most one per limit", n)
	}
}

// listenWithLimits returns a listener with limits and a function that opens a connection to it.
func listenWithLimits(t *testing.T, limits Limits) (*Limiter, func() (client net.Conn, server *limitedConn)) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	limiter := NewLimiter(limits, nil)
	listener := limiter.Listener(inner)
	t.Cleanup(func() { _ = listener.Close() })
	return limiter, func() (net.Conn, *limitedConn) {
		client, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		server, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = client.Close(), server.Close() })
		return client, server.(*limitedConn)
	}
}

// openTime is the time for which an open connection must stay open.
const openTime = 50 * time.Millisecond

// connClosed reports whether the other side closes c within the limit: openTime if c must be open,
// poll.Limit if it must be closed.
func connClosed(t *testing.T, c net.Conn, limit time.Duration) bool {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(limit))
	_, err := c.Read(make([]byte, 1))
	var timeout net.Error
	return !errors.As(err, &timeout) || !timeout.Timeout()
}

func TestPendingConnectionsReplaceTheOldest(t *testing.T) {
	t.Parallel()
	limiter, open := listenWithLimits(t, Limits{Pending: 2, Total: 1})
	first, _ := open()
	second, member := open()
	if err := member.Authenticated("b"); err != nil {
		t.Fatal(err)
	}
	third, _ := open()
	if connClosed(t, first, openTime) {
		t.Error("connection within the limit was closed")
	}
	fourth, refused := open()
	if !connClosed(t, first, poll.Lengthened(poll.Limit)) || connClosed(t, second, openTime) || connClosed(t, third, openTime) || connClosed(t, fourth, openTime) {
		t.Error("oldest pending connection: got open, want closed")
	}
	if err := refused.Authenticated("d"); err == nil {
		t.Error("authentication beyond the limit: got nil, want an error")
	}
	_ = member.Close()
	if err := refused.Authenticated("d"); err != nil {
		t.Errorf("authentication after a close: got %v, want nil", err)
	}
	if got := limiter.Rejected(); got[RejectPending] != 1 || got[RejectTotal] != 1 {
		t.Errorf("rejected: got %v, want one each of pending and total", got)
	}
}

// connFrom is a connection from an address.
type connFrom struct {
	net.Conn
	from net.Addr
}

func (c connFrom) RemoteAddr() net.Addr { return c.from }

// TestFloodDoesNotReplaceOthers: a flood from some addresses replaces its own connections, not one that an address
// with fewer of them opened before.
func TestFloodDoesNotReplaceOthers(t *testing.T) {
	t.Parallel()
	const pending, flooders = 8, 3
	limiter := NewLimiter(Limits{Pending: pending}, nil)
	open := func(host byte) (client net.Conn, server *limitedConn) {
		client, conn := net.Pipe()
		t.Cleanup(func() { _, _ = client.Close(), conn.Close() })
		return client, limiter.add(connFrom{conn, &net.TCPAddr{IP: net.IPv4(192, 0, 2, host), Port: 1}})
	}
	slow, server := open(100)
	first, _ := open(0)
	for i := range byte(100) {
		open(i % flooders)
	}
	if connClosed(t, slow, openTime) || !connClosed(t, first, poll.Lengthened(poll.Limit)) {
		t.Error("after a flood: got the slow connection closed, or the first of the flood open, want the reverse")
	}
	if got, want := limiter.Rejected()[RejectPending], uint64(1+1+100-pending); got != want {
		t.Errorf("rejected: got %d, want %d", got, want)
	}
	if n := limiter.Open(); n != pending {
		t.Errorf("open connections: got %d, want %d", n, pending)
	}
	if err := server.Authenticated(""); err != nil {
		t.Errorf("authentication after a flood: got error %v, want nil", err)
	}
	// With one connection each, the oldest one is replaced, not one of an address with two.
	oldest, _ := open(101)
	for i := range byte(pending) {
		open(200 + i)
	}
	if !connClosed(t, oldest, poll.Lengthened(poll.Limit)) {
		t.Error("oldest connection among addresses with one each: got open, want closed")
	}
	two, _ := open(102)
	open(102)
	open(220)
	if connClosed(t, two, openTime) {
		t.Error("older connection of an address with two during a flood from many addresses: got closed, want open")
	}
}

func TestConnectionsOfOneCertificateAreBounded(t *testing.T) {
	t.Parallel()
	limiter, open := listenWithLimits(t, Limits{PerCertificate: 2})
	for i, want := range []bool{true, true, false} {
		if _, c := open(); (c.Authenticated("serial 1") == nil) != want {
			t.Errorf("connection %d: accepted: want %v", i+1, want)
		}
	}
	if _, c := open(); c.Authenticated("serial 2") != nil {
		t.Error("connection with another certificate: got an error, want nil")
	}
	if got := limiter.Rejected()[RejectCertificate]; got != 1 {
		t.Errorf("rejected: got %d, want 1", got)
	}
}

func TestBytesOfAConnectionAreBounded(t *testing.T) {
	t.Parallel()
	limiter, open := listenWithLimits(t, Limits{Bytes: 100 << 10, SharedBytes: 50 << 10})
	read := func() (*limitedConn, int64) {
		client, server := open()
		go func() { _, _ = client.Write(make([]byte, 200<<10)) }()
		n, err := io.Copy(io.Discard, server)
		if err == nil {
			t.Error("read beyond the limit: got nil, want an error")
		}
		return server, n
	}
	one, n := read()
	if n != reservedBytes+50<<10 {
		t.Errorf("first connection: got %d bytes, want its reserved bytes and all shared bytes", n)
	}
	if _, n := read(); n != reservedBytes {
		t.Errorf("second connection: got %d bytes, want its reserved %d", n, reservedBytes)
	}
	_ = one.Close()
	if _, n := read(); n != reservedBytes+50<<10 {
		t.Errorf("third connection: got %d bytes, want the bytes that the first connection released", n)
	}
	if got := limiter.Rejected()[RejectBytes]; got != 3 {
		t.Errorf("rejected: got %d, want 3", got)
	}
}

func TestConnectionLifetimeIsBounded(t *testing.T) {
	t.Parallel()
	limiter, open := listenWithLimits(t, Limits{MaxLifetime: 50 * time.Millisecond})
	_, server := open()
	if err := server.SetDeadline(time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Read(make([]byte, 1)); err == nil {
		t.Error("read from an idle client: got no error, want one")
	}
	if got := limiter.Rejected()[RejectDeadline]; got != 1 {
		t.Errorf("rejected: got %d, want 1", got)
	}
}
