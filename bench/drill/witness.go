package drill

import (
	"time"

	"golang.org/x/sys/unix"
)

// witness judges the sessions of a client that cannot judge by itself. It
// echoes what comes in, which has to be the pattern, over and over. A session
// that was there before the cut has survived once fresh patterns have come and
// the client has acknowledged every byte of their echo. A reset that only the
// client gets is not seen here: such a session stalls. The longest stall includes
// the client's own pause between two messages.
type witness struct {
	server
	listeners map[int]bool
	states    []witnessed // by descriptor, like conns
	begun     int64
	cut       *cutOrder
	old       []int32 // descriptors of the sessions that the cut met
}

type witnessed struct {
	at      uint32 // place in the pattern
	fresh   uint32 // bytes received since the cut
	heard   int64  // last time that data came, monotonic ns
	old     bool   // open when the cut came
	echoes  bool   // has sent a whole pattern
	verdict verdict
}

func newWitness(pipe *rolePipe, o *backendsOrder, poll *poller, listeners map[int]bool) *witness {
	return &witness{server: server{order: o, pipe: pipe, poll: poll}, listeners: listeners, begun: monotonic()}
}

func (w *witness) run() error {
	nextReport := time.Now()
	nextCheck := nextReport
	for {
		select {
		case o, ok := <-w.pipe.orders:
			if !ok {
				return nil
			}
			w.begin(o.Cut)
		default:
		}
		events, err := w.poll.wait(pollInterval)
		if err != nil {
			return err
		}
		for i := range events {
			fd := int(events[i].Fd)
			if !w.listeners[fd] {
				w.hear(fd)
			} else if err := w.admit(fd); err != nil {
				return err
			}
		}
		now := time.Now()
		if w.cut != nil && now.After(nextCheck) {
			nextCheck = now.Add(reportEvery / 10)
			if w.judge() {
				w.tell(report{Done: true})
				return nil
			}
		}
		if now.After(nextReport) {
			nextReport = now.Add(reportEvery)
			w.tell(report{})
		}
	}
}

func (w *witness) tell(r report) {
	snapshot := w.count
	r.Counts = &snapshot
	w.pipe.send(r)
}

func (w *witness) admit(listener int) error {
	before := len(w.conns)
	if err := w.accept(listener); err != nil {
		return err
	}
	w.count.Opened = min(w.count.Opened, w.order.Sessions) // those after the cut are none of ours
	for range len(w.conns) - before {
		w.states = append(w.states, witnessed{})
	}
	return nil
}

// hear reads, checks and echoes.
func (w *witness) hear(fd int) {
	for w.conns[fd].open {
		n, err := unix.Read(fd, w.buf[:])
		if err != nil && temporary(err) {
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

func (w *witness) matches(fd int, data []byte) bool {
	s := &w.states[fd]
	pattern := w.order.Pattern
	for _, b := range data {
		if b != pattern[s.at] {
			return false
		}
		if s.at++; int(s.at) == len(pattern) {
			s.at = 0
			if !s.echoes {
				s.echoes = true
				w.talked()
			}
		}
	}
	s.heard = monotonic()
	if w.cut != nil && s.heard > w.cut.Dead {
		s.fresh += uint32(len(data))
	}
	return true
}

// talked counts a session that has exchanged data for the first time.
func (w *witness) talked() {
	if w.cut != nil {
		return // opened again by a client that does not know of the drill
	}
	w.count.Exchanges++
	if w.count.Exchanges == uint64(w.order.Sessions) {
		w.count.OpenTime = time.Duration(monotonic() - w.begun)
		w.tell(report{Opened: true})
	}
}

func (w *witness) begin(cut *cutOrder) {
	w.cut = cut
	w.count.Limit = w.order.StallTimeout
	for fd := range w.states {
		if w.conns[fd].open && w.states[fd].echoes {
			w.states[fd].old = true
			w.old = append(w.old, int32(fd))
		}
	}
	w.count.Reset = max(0, w.order.Sessions-len(w.old)) // lost before
}

// drop ends a connection. Its descriptor may serve another one at once, so only
// the verdict stays.
func (w *witness) drop(fd int, v verdict) {
	w.close(fd)
	s := w.states[fd]
	w.states[fd] = witnessed{verdict: s.verdict}
	if !s.old {
		return
	}
	if s.verdict == survived {
		w.count.Survived--
	}
	w.states[fd].verdict = v
	if v == corrupt {
		w.count.Corrupt++
	} else {
		w.count.Reset++
	}
}

// judge decides what can be decided and says whether nothing is left.
func (w *witness) judge() bool {
	now := monotonic()
	left := 0
	for _, fd := range w.old {
		s := &w.states[fd]
		if s.verdict != undecided {
			continue
		}
		stall := time.Duration(max(now, s.heard) - w.cut.Killed)
		switch {
		case int(s.fresh) >= w.order.Fresh*len(w.order.Pattern) && acknowledged(int(fd)):
			s.verdict = survived
			w.count.Survived++
		case stall > w.count.Limit:
			s.verdict, s.old = stalled, false
			w.count.Stalled++
		default:
			left++
			continue
		}
		w.count.MaxStall = max(w.count.MaxStall, stall)
	}
	return left == 0
}

// acknowledged says whether the peer has everything that was written to it.
func acknowledged(fd int) bool {
	unsent, err := unix.IoctlGetInt(fd, unix.SIOCOUTQ)
	return err == nil && unsent == 0
}
