package daemon_test

import (
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// wire is what a peer's streams go through: it breaks them and makes them wait.
type wire struct {
	t      *testing.T
	target string
	l      net.Listener

	mu    sync.Mutex
	cuts  []int // after how many bytes to break each of the next streams
	stall time.Duration
	conns []net.Conn
}

// cut breaks all streams that are up.
func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}

func newWire(t *testing.T, address, target string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{t: t, target: target, l: l}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go w.carry(conn)
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return w
}

// arm has some of the next streams break after a part of what is to be told, and all be
// slow, or none.
func (w *wire) arm(r *rand.Rand, bytes int) {
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

func (w *wire) carry(conn net.Conn) {
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
		time.Sleep(stall)
	}
}
