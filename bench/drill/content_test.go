package drill

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// testConn returns a server with one connection, and the other end of the connection.
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
	s = &server{config: &backendsConfig{Key: 42, Sessions: 10}, conns: make([]conn, pair[0]+1)}
	s.conns[pair[0]] = conn{open: true, seq: 1}
	return s, pair[0], pair[1]
}

func TestBackendChecksEveryByte(t *testing.T) {
	for at := range frameSize {
		s, fd, _ := testConn(t)
		var f frame
		f.request(42, 3, 1)
		f[at] ^= 1
		if s.consume(fd, f[:]) == nil {
			t.Fatalf("request with wrong byte %d: accepted, want refused", at)
		}
	}
}

func TestBackendChecksOrder(t *testing.T) {
	s, fd, _ := testConn(t)
	var f frame
	f.request(42, 3, 1)
	if s.consume(fd, f[:]) != nil {
		t.Fatal("correct request: refused, want accepted")
	}
	if s.consume(fd, f[:]) == nil {
		t.Error("repeated request: accepted, want refused")
	}
	s, fd, _ = testConn(t)
	f.request(42, 10, 1)
	if s.consume(fd, f[:]) == nil {
		t.Error("request with a session out of range: accepted, want refused")
	}
}

// TestStreamInPieces checks that the answer does not depend on the division of a stream into
// pieces, and that the client accepts only this answer.
func TestStreamInPieces(t *testing.T) {
	for size := 1; size <= frameSize; size++ {
		s, fd, client := testConn(t)
		for seq := uint32(1); seq <= 2; seq++ {
			var f, got, want frame
			f.request(42, 3, seq)
			for at := 0; at < frameSize; at += size {
				if s.consume(fd, f[at:min(at+size, frameSize)]) != nil {
					t.Fatalf("correct request in pieces of %d bytes: refused, want accepted", size)
				}
			}
			if n, err := unix.Read(client, got[:]); n != frameSize || err != nil {
				t.Fatalf("answer to pieces of %d bytes: got %d bytes, %v, want a whole frame", size, n, err)
			}
			if want.answer(42, 3, seq); got != want || got == f {
				t.Fatalf("answer to pieces of %d bytes: got other bytes, want those of the answer, different from the request", size)
			}
			checkInPieces(t, got, seq, size)
		}
	}
}

func checkInPieces(t *testing.T, answer frame, seq uint32, size int) {
	t.Helper()
	c := &clients{config: &clientsConfig{Key: 42}, sessions: make([]session, 4)}
	c.sessions[3] = session{seq: seq, phase: waiting}
	for at := 0; at < frameSize; at += size {
		if !c.check(3, answer[at:min(at+size, frameSize)]) {
			t.Fatalf("correct answer in pieces of %d bytes: refused, want accepted", size)
		}
	}
	if c.check(3, answer[:1]) {
		t.Fatal("answer with an extra byte: accepted, want refused")
	}
	for at := range answer {
		c.sessions[3].got = 0
		wrong := answer
		wrong[at] ^= 0x80
		if c.check(3, wrong[:]) {
			t.Fatalf("answer with wrong byte %d: accepted, want refused", at)
		}
	}
}

// TestSessionDecisions checks that a surviving session that is lost later counts as lost, and that
// each session is counted once.
func TestSessionDecisions(t *testing.T) {
	now := monotonic()
	cut := now - int64(2*time.Second)
	c := &clients{
		config: &clientsConfig{Fresh: 1}, cut: &cutCommand{Killed: cut, Dead: cut}, undecided: 4,
		sessions: make([]session, 4), count: counts{Limit: 500 * time.Millisecond},
	}
	for i := range c.sessions {
		c.sessions[i] = session{fd: -1, seq: 2, phase: waiting, started: now}
		c.inFlight++
	}
	c.completeExchange(0)
	c.completeExchange(1)
	if c.count.Survived != 2 || c.finished() {
		t.Errorf("after the exchanges: got %+v, want 2 survived and not finished", c.count)
	}
	c.loseSession(1, reset, errEnded)
	c.loseSession(2, corrupt, errWrongAnswer)
	c.decide(2, reset)
	c.sessions[3].started -= int64(time.Second)
	c.findStalled()
	want := counts{Survived: 1, Reset: 1, Stalled: 1, Corrupt: 1, Exchanges: 2}
	got := c.count
	got.Limit, got.MaxStall, got.FirstLoss = 0, 0, ""
	if got != want || !c.finished() || c.inFlight != 0 {
		t.Errorf("after the losses: got %+v, %d in flight, want finished, 0 in flight", c.count, c.inFlight)
	}
	if c.count.MaxStall < time.Second {
		t.Errorf("longest stall: got %s, want at least 1s", c.count.MaxStall)
	}
}

// TestExchangeBegunBeforeCutDoesNotCount checks that an exchange that began before the cut does not
// decide a session.
func TestExchangeBegunBeforeCutDoesNotCount(t *testing.T) {
	c := &clients{
		config: &clientsConfig{Fresh: 1}, cut: &cutCommand{Killed: 100, Dead: 200}, undecided: 1,
		sessions: []session{{fd: -1, seq: 2, phase: waiting, started: 199}}, inFlight: 1,
	}
	c.completeExchange(0)
	if c.count.Survived != 0 || c.undecided != 1 || len(c.urgent) != 1 {
		t.Errorf("exchange that began before the cut: got %+v, %d urgent, want 0 survived, 1 urgent", c.count, len(c.urgent))
	}
}
