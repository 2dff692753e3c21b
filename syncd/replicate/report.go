package replicate

import (
	"fmt"
	"strings"
	"time"
	"unicode"

	mapsyncv1 "mapsync/proto/mapsync/v1"
)

const (
	// maxReported bounds the exceptions in a report.
	maxReported = 16
	// reportPause is the least time between two reports of a map that say something new,
	// and restPause between two that only say more exactly what is held.
	reportPause = 200 * time.Millisecond
	restPause   = time.Second
)

// Report is what a peer said last of its copy of a map.
type Report struct {
	// At is when the report came; zero: none came. The numbers are not older than the
	// peer's acknowledgement of Position.
	At       time.Time
	Position uint64
	// Live is the number of live records in the peer's table, and MaxEntries the room of
	// its kernel map; 0: it has no kernel map.
	Live, MaxEntries uint64
	// Failed is the number of live records that the peer's kernel map does not hold, and
	// Displaced how many ever made way for newer ones.
	Failed, Displaced uint64
	// Refused is the number of this node's entries that the peer cannot hold, and
	// Exceptions the first of them.
	Refused    uint64
	Exceptions []Exception
}

// NotHeld returns how many entries the peer's kernel map does not hold.
func (r *Report) NotHeld() uint64 { return r.Failed + r.Refused }

// reporting is the part of an intake that reports. The link's lock guards it.
type reporting struct {
	last     numbers
	position uint64
	sampled  time.Time
	sent     time.Time // zero: not on this stream
	due      bool      // something is to be reported as soon as the pauses allow
}

// numbers are those of a report that make a new one urgent.
type numbers struct {
	failed, displaced, refused, room uint64
}

// reports appends what peers do not know yet of this node's maps.
func (l *link) reports(out []*mapsyncv1.SubscribeRequest, now time.Time) []*mapsyncv1.SubscribeRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.wantsReports {
		return out
	}
	for index, in := range l.byIndex {
		if in.state != StateSyncing && in.state != StateCaughtUp {
			continue
		}
		if m := in.report(now); m != nil {
			m.Map = index
			out = append(out, &mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Report{Report: m}})
		}
	}
	return out
}

// report returns the next report, or nil while none is due. The acknowledged position is read
// before the numbers.
func (in *intake) report(now time.Time) *mapsyncv1.MapReport {
	r := &in.reporting
	if now.Sub(r.sampled) < reportPause {
		r.due = true
		return nil
	}
	r.sampled = now
	st := in.m.table.Stats()
	cur := numbers{failed: uint64(st.Failed), displaced: st.Displaced, refused: uint64(in.excepted.count())}
	if st.Dirty > st.Failed {
		// Some of those that failed may be about to be tried again.
		cur.failed = max(cur.failed, min(r.last.failed, uint64(st.Dirty)))
	}
	if in.m.layout.Room != nil {
		cur.room = uint64(max(0, in.m.layout.Room()))
	}
	moved := in.acked != r.position
	if !r.sent.IsZero() && cur == r.last && (!moved || now.Sub(r.sent) < restPause) {
		r.due = moved
		return nil
	}
	r.last, r.position, r.sent, r.due = cur, in.acked, now, false
	m := &mapsyncv1.MapReport{
		Position: in.acked, Live: uint64(st.Live), MaxEntries: cur.room,
		Failed: cur.failed, Displaced: cur.displaced, Refused: cur.refused,
	}
	in.excepted.each(maxReported, func(key, reason string) {
		m.Exceptions = append(m.Exceptions, &mapsyncv1.MapException{Key: []byte(key), Reason: reason})
	})
	return m
}

// reported takes in a report. The lock is held. Errors wrap errProtocol.
func (s *session) reported(m *mapsyncv1.MapReport) error {
	if m.GetMap() == 0 || m.GetMap() > s.lastIndex {
		return fmt.Errorf("report on unknown subscription %d: %w", m.GetMap(), errProtocol)
	}
	if len(m.GetExceptions()) > maxReported {
		return fmt.Errorf("report of %d exceptions, more than %d: %w", len(m.GetExceptions()), maxReported, errProtocol)
	}
	for _, x := range m.GetExceptions() {
		if len(x.GetKey()) > maxExceptionKey || len(x.GetReason()) > maxReason {
			return fmt.Errorf("report an exception of %d + %d bytes: %w", len(x.GetKey()), len(x.GetReason()), errProtocol)
		}
	}
	f := s.find(m.GetMap())
	switch {
	case f == nil:
		return nil // it ended meanwhile
	case f.observe:
		return fmt.Errorf("report on map %q by an observer: %w", f.name, errProtocol)
	}
	f.report.Store(&receivedReport{m, time.Now()})
	return nil
}

// receivedReport is a report as it came.
type receivedReport struct {
	m  *mapsyncv1.MapReport
	at time.Time
}

// maxCount bounds the numbers of a report, so that sums of them are exact in JSON.
const maxCount = 1 << 52

// lastReport returns what the peer reported last of a map that is served.
func (f *feed) lastReport() (r Report) {
	got := f.report.Load()
	if got == nil {
		return r
	}
	m := got.m
	count := func(n uint64) uint64 { return min(n, maxCount) }
	r = Report{
		At: got.at, Position: m.GetPosition(), Live: count(m.GetLive()), MaxEntries: count(m.GetMaxEntries()),
		Failed: count(m.GetFailed()), Displaced: count(m.GetDisplaced()), Refused: count(m.GetRefused()),
	}
	for _, x := range m.GetExceptions() {
		r.Exceptions = append(r.Exceptions, Exception{Key: f.m.keys.key(x.GetKey()), Reason: printable(x.GetReason())})
	}
	return r
}

// printable returns a peer's text without what would act on a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
