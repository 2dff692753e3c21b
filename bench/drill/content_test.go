package drill

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// testConn gives a server with one connection, and the other end of it.
func testConn(t *testing.T) (s *server, fd, client int) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, fd := range pair {
			unix.Close(fd) //nolint:errcheck // one end may be closed by the test
		}
	})
	s = &server{order: &backendsOrder{Key: 42, Sessions: 10}, conns: make([]conn, pair[0]+1)}
	s.conns[pair[0]] = conn{open: true, seq: 1}
	return s, pair[0], pair[1]
}

func TestBackendChecksEveryByte(t *testing.T) {
	for at := range frameSize {
		s, fd, _ := testConn(t)
		var f frame
		f.request(42, 3, 1)
		f[at] ^= 1
		if s.feed(fd, f[:]) == nil {
			t.Fatalf("byte %d may be wrong", at)
		}
	}
}

func TestBackendChecksOrder(t *testing.T) {
	s, fd, _ := testConn(t)
	var f frame
	f.request(42, 3, 1)
	if s.feed(fd, f[:]) != nil {
		t.Fatal("right request refused")
	}
	if s.feed(fd, f[:]) == nil {
		t.Error("repeated request accepted")
	}
	s, fd, _ = testConn(t)
	f.request(42, 10, 1)
	if s.feed(fd, f[:]) == nil {
		t.Error("session out of range accepted")
	}
}

// However a stream is cut into pieces, the answer is the same, and the client
// takes it, and nothing else.
func TestContentInPieces(t *testing.T) {
	for size := 1; size <= frameSize; size++ {
		s, fd, client := testConn(t)
		for seq := uint32(1); seq <= 2; seq++ {
			var f, got, want frame
			f.request(42, 3, seq)
			for at := 0; at < frameSize; at += size {
				if s.feed(fd, f[at:min(at+size, frameSize)]) != nil {
					t.Fatalf("pieces of %d: right request refused", size)
				}
			}
			if n, err := unix.Read(client, got[:]); n != frameSize || err != nil {
				t.Fatalf("pieces of %d: read %d bytes, %v", size, n, err)
			}
			if want.answer(42, 3, seq); got != want || got == f {
				t.Fatalf("pieces of %d: wrong answer", size)
			}
			checkInPieces(t, got, seq, size)
		}
	}
}

func checkInPieces(t *testing.T, answer frame, seq uint32, size int) {
	t.Helper()
	c := &clients{order: &clientsOrder{Key: 42}, sessions: make([]session, 4)}
	c.sessions[3] = session{seq: seq, phase: waiting}
	for at := 0; at < frameSize; at += size {
		if !c.check(3, answer[at:min(at+size, frameSize)]) {
			t.Fatalf("pieces of %d: right answer refused", size)
		}
	}
	if c.check(3, answer[:1]) {
		t.Fatal("a byte too many accepted")
	}
	for at := range answer {
		c.sessions[3].got = 0
		wrong := answer
		wrong[at] ^= 0x80
		if c.check(3, wrong[:]) {
			t.Fatalf("byte %d may be wrong", at)
		}
	}
}

// A survivor that is lost after all is no survivor, and a session is counted once.
func TestVerdicts(t *testing.T) {
	now := monotonic()
	cut := now - int64(2*time.Second)
	c := &clients{
		order: &clientsOrder{Fresh: 1}, cut: &cutOrder{Killed: cut, Dead: cut}, undecided: 4,
		sessions: make([]session, 4), count: counts{Limit: 500 * time.Millisecond},
	}
	for i := range c.sessions {
		c.sessions[i] = session{fd: -1, seq: 2, phase: waiting, started: now}
		c.inFlight++
	}
	c.complete(0)
	c.complete(1)
	if c.count.Survived != 2 || c.finished() {
		t.Errorf("%+v", c.count)
	}
	c.lose(1, reset, errEnded)
	c.lose(2, corrupt, errWrong)
	c.decide(2, reset)
	c.sessions[3].started -= int64(time.Second)
	c.findStalled()
	want := counts{Survived: 1, Reset: 1, Stalled: 1, Corrupt: 1, Exchanges: 2}
	got := c.count
	got.Limit, got.MaxStall, got.FirstLoss = 0, 0, ""
	if got != want || !c.finished() || c.inFlight != 0 {
		t.Errorf("%+v, in flight %d", c.count, c.inFlight)
	}
	if c.count.MaxStall < time.Second {
		t.Errorf("longest stall %s", c.count.MaxStall)
	}
}

// An exchange begun before the cut proves nothing about the time after it.
func TestOldExchangeProvesNothing(t *testing.T) {
	c := &clients{
		order: &clientsOrder{Fresh: 1}, cut: &cutOrder{Killed: 100, Dead: 200}, undecided: 1,
		sessions: []session{{fd: -1, seq: 2, phase: waiting, started: 199}}, inFlight: 1,
	}
	c.complete(0)
	if c.count.Survived != 0 || c.undecided != 1 || len(c.urgent) != 1 {
		t.Errorf("%+v, %d urgent", c.count, len(c.urgent))
	}
}
