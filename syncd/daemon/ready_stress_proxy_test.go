package daemon_test

import (
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// faultyProxy forwards the streams of a peer. It can break and delay them.
type faultyProxy struct {
	t      *testing.T
	target string
	l      net.Listener

	mu    sync.Mutex
	cuts  []int // number of bytes after which to break each of the next streams
	stall time.Duration
	conns []net.Conn
}

// cut breaks all open streams.
func (w *faultyProxy) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

func newFaultyProxy(t *testing.T, address, target string) *faultyProxy {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	w := &faultyProxy{t: t, target: target, l: l}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go w.forward(conn)
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return w
}

// setFaults makes up to three of the next streams break at random positions of the full sync, and
// may delay all streams. bytes is the size of the full sync.
func (w *faultyProxy) setFaults(r *rand.Rand, bytes int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cuts, w.stall = nil, 0
	for range r.IntN(4) {
		w.cuts = append(w.cuts, r.IntN(2*bytes+1000))
	}
	if r.IntN(3) == 0 {
		w.stall = time.Duration(r.Int64N(int64(4 * time.Millisecond)))
	}
}

func (w *faultyProxy) forward(conn net.Conn) {
	defer conn.Close()
	peer, err := net.Dial("tcp", w.target)
	if err != nil {
		return
	}
	defer peer.Close()
	w.mu.Lock()
	left, stall := -1, w.stall
	if len(w.cuts) > 0 {
		left, w.cuts = w.cuts[0], w.cuts[1:]
	}
	w.conns = append(w.conns, conn)
	w.mu.Unlock()
	go func() {
		_, _ = io.Copy(peer, conn)
		peer.Close()
	}()
	for buf := make([]byte, 64<<10); left != 0; {
		n, err := peer.Read(buf)
		if left > 0 {
			n = min(n, left)
			left -= n
		}
		if _, writeErr := conn.Write(buf[:n]); err != nil || writeErr != nil {
			return
		}
		time.Sleep(stall) // a slow network
	}
}
