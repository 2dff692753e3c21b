package replicate

import (
	"fmt"
	"time"

	"mapsync/printable"
	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

const (
	// maxReportedExceptions bounds the exceptions in a report.
	maxReportedExceptions = 16
	// reportPause is the minimum time between two reports of a map with new numbers.
	// positionReportPause is the minimum time between two reports in which only the position is new.
	reportPause         = 200 * time.Millisecond
	positionReportPause = time.Second
)

// Report is the last report of a peer about its copy of a map. It shows an operator what a
// failover to the peer would lose.
type Report struct {
	// At is when the report arrived, by this node's clock; zero: no report has arrived.
	At time.Time
	// Position is a position of this node's table, as the peer states it. The numbers are not older than the peer's
	// acknowledgement of it.
	Position uint64
	// Live is the number of live records in the peer's table.
	Live uint64
	// Failed is the number of this node's live records that the peer's kernel map has no room for or refuses. Evicted is the
	// number of those that its LRU map has evicted. A peer of an older release reports the Failed records of all owners together.
	Failed, Evicted uint64
	// FailedOfAll is the number of live records, of all owners, that the peer's kernel map has no room for or refuses.
	FailedOfAll uint64
	// Displaced is the number of records, of all owners, ever displaced from its kernel map.
	Displaced uint64
	// Refused is the number of this node's entries that the peer cannot hold.
	Refused uint64
	// Exceptions are some of the Refused entries, at most maxReportedExceptions.
	Exceptions []Exception
	// Kernel is the peer's kernel map.
	Kernel KernelMap
	// State is the state of the peer.
	State NodeState
}

// NotHeld returns the number of this node's entries that the peer's kernel map does not hold. A failover to the
// peer loses them.
func (r *Report) NotHeld() uint64 { return r.Failed + r.Evicted + r.Refused }

// reporting is the reporting state of an inbound map stream. inboundStream.mu guards it. It begins
// anew with each subscription, so the first report of a subscription is always sent.
type reporting struct {
	// last are the numbers of the last report. An equal sample needs no report.
	last reportNumbers
	// position is the position of the last report.
	position uint64
	// sampled is when the numbers were last read. zero: not on this subscription.
	sampled time.Time
	// sent is when the last report on this stream was sent; zero: none.
	sent time.Time
	// due reports that there is something to report once the pauses allow it. idle then wakes the
	// goroutine within housekeepingInterval.
	due bool
}

// reportNumbers are the numbers of a report that make a new one due when they change. The number of
// live records is not among them: it changes all the time.
type reportNumbers struct {
	// They are fields of the MapReport about this node's copy, all read in one call of report.
	failed, displaced, refused, senderFailed, senderEvicted uint64
	kernel                                                  KernelMap
	state                                                   NodeState
}

// appendReports appends the reports that are due for this node's maps. Only the requesting
// goroutine calls it. It takes inboundStream.mu. A peer of an older release gets none.
func (s *inboundStream) appendReports(out []*mapsyncv1.SubscribeRequest, now time.Time) []*mapsyncv1.SubscribeRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.supportsReports {
		return out
	}
	for index, in := range s.byIndex {
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

// report returns the next report, or nil if none is due. It reads the acknowledged position before
// the numbers. The caller holds inboundStream.mu. So the numbers of a report are at least as new as
// its position, and a sender may conclude from them what the peer holds of all changes up to that
// position.
func (in *inboundMap) report(now time.Time) *mapsyncv1.MapReport {
	r := &in.reporting
	// The numbers are read at most once in reportPause.
	if now.Sub(r.sampled) < reportPause {
		r.due = true
		return nil
	}
	r.sampled = now
	st := in.m.table.Stats()
	cur := reportNumbers{failed: uint64(st.Failed), displaced: st.Displaced, refused: uint64(in.exceptions.count())}
	// A newer record of the key makes a failed record dirty for a moment. The report must not show fewer failures
	// meanwhile.
	if st.Dirty > st.Failed {
		cur.failed = max(cur.failed, min(r.last.failed, uint64(st.Dirty)))
	}
	in.m.table.View(func(tx *table.Tx) {
		_, failed, evicted := tx.RecordsOf(in.stream.peer.Node)
		cur.senderFailed, cur.senderEvicted = uint64(failed), uint64(evicted)
	})
	if in.m.layout.Kernel != nil {
		cur.kernel = in.m.layout.Kernel()
	}
	if state := in.stream.r.opt.State; state != nil {
		cur.state = state()
	}
	// A new position alone is less urgent than new numbers.
	moved := in.ackedPosition != r.position
	if !r.sent.IsZero() && cur == r.last && (!moved || now.Sub(r.sent) < positionReportPause) {
		r.due = moved
		return nil
	}
	r.last, r.position, r.sent, r.due = cur, in.ackedPosition, now, false
	m := &mapsyncv1.MapReport{
		Position: in.ackedPosition, Live: uint64(st.Live), MaxEntries: uint64(cur.kernel.MaxEntries),
		Failed: cur.failed, Displaced: cur.displaced, Refused: cur.refused,
		SenderFailed: cur.senderFailed, SenderEvicted: cur.senderEvicted,
		Type: cur.kernel.Type, Flags: cur.kernel.Flags, State: cur.state,
	}
	in.exceptions.each(maxReportedExceptions, func(key, reason string) {
		m.Exceptions = append(m.Exceptions, &mapsyncv1.MapException{Key: []byte(key), Reason: reason})
	})
	return m
}

// handleReport stores a report. The caller holds outboundStream.mu. The errors wrap errProtocol.
// They end the stream. Numbers are not checked: lastReport bounds them.
func (s *outboundStream) handleReport(m *mapsyncv1.MapReport) error {
	if m.GetMap() == 0 || m.GetMap() > s.lastIndex {
		return fmt.Errorf("report on unknown subscription %d: %w", m.GetMap(), errProtocol)
	}
	// The limits bound the memory that a peer can make this node keep.
	if len(m.GetExceptions()) > maxReportedExceptions {
		return fmt.Errorf("report of %d exceptions, more than %d: %w", len(m.GetExceptions()), maxReportedExceptions, errProtocol)
	}
	for _, x := range m.GetExceptions() {
		if len(x.GetKey()) > maxExceptionKey || len(x.GetReason()) > maxReason {
			return fmt.Errorf("report an exception of %d + %d bytes: %w", len(x.GetKey()), len(x.GetReason()), errProtocol)
		}
	}
	out := s.findMap(m.GetMap())
	switch {
	case out == nil:
		return nil // it has ended in the meantime
	case out.observe:
		return fmt.Errorf("report on map %q by an observer: %w", out.name, errProtocol)
	}
	// The report replaces the previous one as a whole. The time is this node's, so the age of a
	// report does not depend on the peer's clock.
	out.peerReport.Store(&receivedReport{m, time.Now()})
	return nil
}

// receivedReport is a report and the time of its arrival. It does not change.
type receivedReport struct {
	// m is the message. handleReport has checked its sizes. Its numbers are as the peer states them: lastReport bounds them.
	m *mapsyncv1.MapReport
	// at is the time of the arrival by this node's clock.
	at time.Time
}

// maxCount bounds the numbers of a report, so that sums of them are exact in JSON.
const maxCount = 1 << 52

// lastReport returns the last report of the peer about a map that is served. It returns the zero
// Report if there is none. The caller holds outboundStream.mu.
func (out *outboundMap) lastReport() (r Report) {
	got := out.peerReport.Load()
	if got == nil {
		return r
	}
	m := got.m
	// The peer can send any numbers.
	count := func(n uint64) uint64 { return min(n, maxCount) }
	r = Report{
		At: got.at, Position: m.GetPosition(), Live: count(m.GetLive()), Failed: count(m.GetSenderFailed()), Evicted: count(m.GetSenderEvicted()),
		FailedOfAll: count(m.GetFailed()), Displaced: count(m.GetDisplaced()), Refused: count(m.GetRefused()),
		Kernel: KernelMap{MaxEntries: int(count(m.GetMaxEntries())), Type: m.GetType(), Flags: m.GetFlags()},
		State:  m.GetState(),
	}
	if r.State == NodeStateUnknown {
		r.Failed = count(m.GetFailed())
	}
	for _, x := range m.GetExceptions() {
		// The key is in the encoding of this node, which has sent it.
		r.Exceptions = append(r.Exceptions, Exception{Key: out.m.keyPrinter.key(x.GetKey()), Reason: printable.Text(x.GetReason())})
	}
	return r
}
