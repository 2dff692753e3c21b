package daemon

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"mapsync/internal/poll"
)

// requestFrom sends a request for / from a loopback address. The response is unread.
func requestFrom(t *testing.T, address string, server *httptest.Server) net.Conn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	conn, err := dialer.DialContext(t.Context(), "tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := fmt.Fprint(conn, "GET / HTTP/1.1\r\nHost: n\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	return conn
}

func (s *scrapes) inWriting() (count, bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.writing), s.bytes
}

// TestUnreadResponsesAreBounded: the oldest of too many unread responses ends, each ends after its time, and a client that
// reads receives all of its response meanwhile.
func TestUnreadResponsesAreBounded(t *testing.T) {
	const size = 16 << 20 // more than the buffers of both sides hold
	s := newScrapes(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(make([]byte, size)) }))
	s.maxBytes, s.write = 3*size, time.Hour
	var active atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		active.Add(1)
		defer active.Add(-1)
		s.ServeHTTP(w, r)
	}))
	defer server.Close()
	begun := func() net.Conn {
		t.Helper()
		conn := requestFrom(t, "127.0.0.1", server)
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	ended := func(conn net.Conn, want bool) {
		t.Helper()
		if n, _ := io.CopyN(io.Discard, conn, size); (n < size) != want {
			t.Errorf("response: got %d bytes, want it ended before its %d bytes: %t", n, size, want)
		}
	}
	var conns []net.Conn
	for range 5 {
		conns = append(conns, begun())
	}
	if n, bytes := s.inWriting(); n != 3 || bytes != 3*size {
		t.Errorf("unread responses: got %d with %d bytes, want 3 of %d", n, bytes, size)
	}
	// A response ends when its next write would block, which it does not while its client reads.
	poll.Eventually(t, "two writes have ended", func() bool { return active.Load() == 3 })
	for i, conn := range conns {
		ended(conn, i < 2)
	}
	ended(begun(), false)
	poll.Eventually(t, "all responses were written", func() bool { n, bytes := s.inWriting(); return n == 0 && bytes == 0 })
	s.write = 100 * time.Millisecond
	unread := begun()
	poll.Eventually(t, "the response ends after its time", func() bool { n, bytes := s.inWriting(); return n == 0 && bytes == 0 })
	ended(unread, true)
}

// TestOneAddressCollectsOnceAtATime: the scrapes of one address leave collections for the others.
func TestOneAddressCollectsOnceAtATime(t *testing.T) {
	began, goOn := make(chan string, 100), make(chan struct{})
	s := newScrapes(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		began <- r.RemoteAddr
		<-goOn
	}))
	server := httptest.NewServer(s)
	defer server.Close()
	waiting := func(want int) {
		t.Helper()
		poll.Eventually(t, fmt.Sprintf("%d scrapes wait", want), func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			n := 0
			for _, q := range s.queues {
				n += q.users
			}
			return n == want
		})
	}
	for range 10 {
		requestFrom(t, "127.0.0.1", server)
	}
	waiting(10)
	gone := requestFrom(t, "127.0.0.2", server)
	for range 2 {
		<-began
	}
	waiting(11)
	if len(began) > 0 || len(s.slots) != 2 {
		t.Errorf("collections of two addresses: got %d in progress, want 2", len(s.slots))
	}
	_ = gone.Close()
	close(goOn)
	waiting(0)
	if len(s.queues) != 0 || len(s.slots) != 0 {
		t.Errorf("after all scrapes: got %d queues and %d collections, want none", len(s.queues), len(s.slots))
	}
}
