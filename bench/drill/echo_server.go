package drill

import (
	"time"

	"golang.org/x/sys/unix"
)

// echoServer decides the sessions of a client that cannot decide them. It echoes the received
// bytes, which must repeat the pattern. A session that was open before the cut survives under two
// conditions: new patterns have arrived, and the client has acknowledged every byte of their echo.
// A reset that only the client receives is not detected here: such a session stalls. The longest
// stall includes the client's own pause between two messages.
type echoServer struct {
	server
	listeners map[int]bool
	states    []echoState // by descriptor, like conns
	begun     int64
	cut       *cutCommand
	openAtCut []int32 // descriptors of the sessions that were open at the cut
}

type echoState struct {
	patternAt    uint32 // position in the pattern
	afterCut     uint32 // bytes received since the cut
	lastReceived int64  // time of the last received data, CLOCK_MONOTONIC, ns
	openAtCut    bool   // open at the time of the cut
	patternDone  bool   // has sent a whole pattern
	decision     decision
}

func newEchoServer(pipe *rolePipe, o *backendsConfig, poll *poller, listeners map[int]bool) *echoServer {
	return &echoServer{server: server{config: o, pipe: pipe, poll: poll}, listeners: listeners, begun: monotonic()}
}

func (w *echoServer) run() error {
	nextReport := time.Now()
	nextCheck := nextReport
	for {
		select {
		case o, ok := <-w.pipe.commands:
			if !ok {
				return nil
			}
			w.startDecision(o.Cut)
		default:
		}
		events, err := w.poll.wait(pollInterval)
		if err != nil {
			return err
		}
		for i := range events {
			fd := int(events[i].Fd)
			if !w.listeners[fd] {
				w.echo(fd)
			} else if err := w.acceptAll(fd); err != nil {
				return err
			}
		}
		now := time.Now()
		if w.cut != nil && now.After(nextCheck) {
			nextCheck = now.Add(reportEvery / 10)
			if w.decideSessions() {
				w.report(report{Done: true})
				return nil
			}
		}
		if now.After(nextReport) {
			nextReport = now.Add(reportEvery)
			w.report(report{})
		}
	}
}

func (w *echoServer) report(r report) {
	snapshot := w.count
	r.Counts = &snapshot
	w.pipe.send(r)
}

func (w *echoServer) acceptAll(listener int) error {
	before := len(w.conns)
	if err := w.accept(listener); err != nil {
		return err
	}
	w.count.Opened = min(w.count.Opened, w.config.Sessions) // excludes connections opened after the cut
	for range len(w.conns) - before {
		w.states = append(w.states, echoState{})
	}
	return nil
}

// echo reads, checks and echoes the received bytes of a connection.
func (w *echoServer) echo(fd int) {
	for w.conns[fd].open {
		n, err := unix.Read(fd, w.buf[:])
		if err != nil && wouldBlock(err) {
			return
		}
		if err != nil || n == 0 {
			w.drop(fd, reset)
			return
		}
		if !w.matches(fd, w.buf[:n]) {
			w.drop(fd, corrupt)
			return
		}
		if sent, err := unix.Write(fd, w.buf[:n]); sent != n || err != nil {
			w.drop(fd, reset)
			return
		}
		if n < len(w.buf) {
			return
		}
	}
}

func (w *echoServer) matches(fd int, data []byte) bool {
	s := &w.states[fd]
	pattern := w.config.Pattern
	for _, b := range data {
		if b != pattern[s.patternAt] {
			return false
		}
		if s.patternAt++; int(s.patternAt) == len(pattern) {
			s.patternAt = 0
			if !s.patternDone {
				s.patternDone = true
				w.countOpened()
			}
		}
	}
	s.lastReceived = monotonic()
	if w.cut != nil && s.lastReceived > w.cut.Dead {
		s.afterCut += uint32(len(data))
	}
	return true
}

// countOpened counts a session that has exchanged data for the first time.
func (w *echoServer) countOpened() {
	if w.cut != nil {
		return // opened again by the client after the cut
	}
	w.count.Exchanges++
	if w.count.Exchanges == uint64(w.config.Sessions) {
		w.count.OpenTime = time.Duration(monotonic() - w.begun)
		w.report(report{Opened: true})
	}
}

func (w *echoServer) startDecision(cut *cutCommand) {
	w.cut = cut
	w.count.Limit = w.config.StallTimeout
	for fd := range w.states {
		if w.conns[fd].open && w.states[fd].patternDone {
			w.states[fd].openAtCut = true
			w.openAtCut = append(w.openAtCut, int32(fd))
		}
	}
	w.count.Reset = max(0, w.config.Sessions-len(w.openAtCut)) // lost before the cut
}

// drop ends a connection. Only its decision is kept, because the descriptor may be reused for
// another connection at once.
func (w *echoServer) drop(fd int, d decision) {
	w.close(fd)
	s := w.states[fd]
	w.states[fd] = echoState{decision: s.decision}
	if !s.openAtCut {
		return
	}
	if s.decision == survived {
		w.count.Survived--
	}
	w.states[fd].decision = d
	if d == corrupt {
		w.count.Corrupt++
	} else {
		w.count.Reset++
	}
}

// decideSessions decides the sessions that can be decided. It returns true if all sessions are
// decided.
func (w *echoServer) decideSessions() bool {
	now := monotonic()
	left := 0
	for _, fd := range w.openAtCut {
		s := &w.states[fd]
		if s.decision != undecided {
			continue
		}
		stall := time.Duration(max(now, s.lastReceived) - w.cut.Killed)
		switch {
		case int(s.afterCut) >= w.config.Fresh*len(w.config.Pattern) && acknowledged(int(fd)):
			s.decision = survived
			w.count.Survived++
		case stall > w.count.Limit:
			s.decision, s.openAtCut = stalled, false
			w.count.Stalled++
		default:
			left++
			continue
		}
		w.count.MaxStall = max(w.count.MaxStall, stall)
	}
	return left == 0
}

// acknowledged reports whether the peer has acknowledged all bytes that were written to it.
func acknowledged(fd int) bool {
	unsent, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	return err == nil && unsent == 0
}
