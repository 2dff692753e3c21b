package replicate

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	mapsyncv1 "mapsync/proto/mapsync/v1"
	"mapsync/syncd/table"
)

// TestReportsAreSentWhenTheyChange checks that new numbers are reported within 200 ms, and a new
// position alone within 1 s.
func TestReportsAreSentWhenTheyChange(t *testing.T) {
	x := newInboundFixture(t)
	room := 5
	x.in.m.layout.Kernel = func() KernelMap { return KernelMap{MaxEntries: room} }
	now := time.Now()
	report := func(what string, due bool) *mapsyncv1.MapReport {
		t.Helper()
		m := x.in.report(now)
		if (m == nil) == due {
			t.Fatalf("%s: got report %v, want a report: %t", what, m, due)
		}
		return m
	}
	after := func(d time.Duration) { now = now.Add(d) }
	if m := report("first report", true); m.GetMaxEntries() != 5 || m.GetLive() != 0 || m.GetFailed() != 0 || m.GetRefused() != 0 || x.in.reporting.due {
		t.Errorf("first report: got %v, want max entries 5, no live, failed or refused entries, and none due", m)
	}
	after(reportPause - 1)
	room = 6
	if report("within the pause", false); !x.in.reporting.due {
		t.Error("report within the pause: got not due, want due")
	}
	after(1)
	if m := report("more room", true); m.GetMaxEntries() != 6 {
		t.Errorf("report of more room: got %v, want max entries 6", m)
	}
	after(reportPause)
	if report("no change", false); x.in.reporting.due {
		t.Error("report without a change: got due, want not due")
	}
	x.handle(stockBatch(x.in.index, 0, 10, 1, 2))
	x.writeAll()
	x.newAck()
	after(reportPause)
	if report("position only, within the pause", false); !x.in.reporting.due {
		t.Error("report of a position within the pause: got not due, want due")
	}
	now = x.in.reporting.sent.Add(positionReportPause - 1)
	report("position only, just before the end of the pause", false)
	// The numbers were just read, so the position is due in the next pause of the numbers.
	x.in.reporting.sampled = time.Time{}
	now = x.in.reporting.sent.Add(positionReportPause)
	if m := report("position only", true); m.GetPosition() != 10 || m.GetLive() != 2 {
		t.Errorf("report of a position: got %v, want position 10 and 2 live", m)
	}
	after(time.Hour)
	report("no change for long", false)
	x.in.exceptions.add([]byte("k"), 1, target, errors.New("why"))
	after(reportPause)
	m := report("an exception", true)
	if m.GetRefused() != 1 || len(m.GetExceptions()) != 1 || string(m.GetExceptions()[0].GetKey()) != "k" || m.GetExceptions()[0].GetReason() != "why" {
		t.Errorf("report of an exception: got %v, want 1 refused, with key k and reason why", m)
	}
	for i := range maxReportedExceptions + 5 {
		x.in.exceptions.add(fmt.Appendf(nil, "k%d", i), 1, target, errors.New("why"))
	}
	after(reportPause)
	if m := report("many exceptions", true); m.GetRefused() != maxReportedExceptions+6 || len(m.GetExceptions()) != maxReportedExceptions {
		t.Errorf("report of many exceptions: got %d, listed %d, want %d and %d", m.GetRefused(), len(m.GetExceptions()), maxReportedExceptions+6, maxReportedExceptions)
	}
}

// TestReportOfFullMap checks that failed entries count as failed while they are retried.
func TestReportOfFullMap(t *testing.T) {
	x := newInboundFixture(t)
	now := time.Now()
	x.handle(stockBatch(x.in.index, 0, 10, 1, 2, 3))
	var refs []table.Record
	x.tb.Update(func(tx *table.Tx) {
		var rec table.Record
		for tx.NextDirty(x.writer, &rec) {
			refs = append(refs, rec)
			tx.Applied(rec.Ref, rec.Version, errors.New("full"))
		}
	})
	if m := x.in.report(now); m.GetFailed() != 3 || m.GetSenderFailed() != 3 || m.GetLive() != 3 || m.GetMaxEntries() != 0 {
		t.Fatalf("report of a full map: got %v, want 3 failed, 3 of the sender, 3 live and max entries 0", m)
	}
	x.tb.Update(func(tx *table.Tx) {
		for _, rec := range refs[:1] {
			tx.Applied(rec.Ref, rec.Version, nil)
		}
		tx.RequeueFailed(10)
	})
	if m := x.in.report(now.Add(reportPause)); m.GetFailed() != 2 {
		t.Errorf("report during a retry: got %v, want 2 failed", m)
	}
	// A newer record makes the failed one dirty, and the kernel map still does not hold it.
	newer := stockBatch(x.in.index, 10, 20, 2)
	newer.GetBatch().GetDeltas()[0].Version++
	x.handle(newer)
	x.in.ackedPosition = 20
	if m := x.in.report(now.Add(reportPause + positionReportPause)); m.GetFailed() != 2 {
		t.Errorf("report after a newer record: got %v, want 2 failed", m)
	}
}

// TestReportOfSender checks that a report has the evicted entries of its receiver, and the state of this node and its map.
func TestReportOfSender(t *testing.T) {
	x := newInboundFixture(t)
	x.in.m.layout.Kernel = func() KernelMap { return KernelMap{MaxEntries: 9, Type: MapTypeLRUHash, Flags: 2} }
	state := NodeStateNotReady
	x.in.stream.r.opt.State = func() NodeState { return state }
	x.handle(stockBatch(x.in.index, 0, 10, 1, 2, 3))
	x.writeAll()
	now := time.Now()
	x.tb.Update(func(tx *table.Tx) {
		other := tx.Intern(table.Owner{Node: "other", Incarnation: 1})
		tx.Remote(&table.Delta{Key: key(9), Value: value(9), Version: table.Version(now.UnixNano()), Owner: other}, now.UnixNano(), table.RemoteOptions{})
		for _, k := range [][]byte{key(1), key(9)} {
			tx.Local(&table.Change{Key: k, Op: table.OpEvict, Time: now.Add(time.Second).UnixNano()})
		}
	})
	m := x.in.report(now)
	if m.GetSenderEvicted() != 1 || m.GetSenderFailed() != 0 || m.GetState() != state || m.GetType() != MapTypeLRUHash || m.GetFlags() != 2 || m.GetMaxEntries() != 9 {
		t.Errorf("report: got %v, want 1 evicted entry, none failed, not ready, and an LRU map of 9 entries with flags 2", m)
	}
	state = NodeStateDrained
	if m := x.in.report(now.Add(reportPause)); m.GetState() != state {
		t.Errorf("report of a drain: got %v, want drained", m)
	}
}

// TestAppendReports checks that reports are sent for received maps, to peers that accept reports.
func TestAppendReports(t *testing.T) {
	x := newInboundFixture(t)
	now := time.Now()
	x.in.state = StateCaughtUp
	if out := x.stream.appendReports(nil, now); len(out) != 0 {
		t.Errorf("reports to a peer that accepts none: got %v, want none", out)
	}
	x.stream.supportsReports = true
	for _, state := range []State{StateWaiting, StatePending, StateFailed, StateRefused} {
		x.in.state = state
		if out := x.stream.appendReports(nil, now); len(out) != 0 {
			t.Errorf("reports of a map in state %s: got %v, want none", state, out)
		}
	}
	for _, state := range []State{StateSyncing, StateCaughtUp} {
		x.in.state, x.in.reporting = state, reporting{}
		if out := x.stream.appendReports(nil, now); len(out) != 1 || out[0].GetReport().GetMap() != x.in.index {
			t.Errorf("reports of a map in state %s: got %v, want one", state, out)
		}
	}
	if out := x.stream.appendReports(nil, now); len(out) != 0 {
		t.Errorf("second report at once: got %v, want none", out)
	}
	if x.in.reset(); !reflect.DeepEqual(x.in.reporting, reporting{}) {
		t.Error("reset: got the state of the earlier stream, want none")
	}
}

// TestStatusContainsLastReport checks that the status has the last report, with printable text.
func TestStatusContainsLastReport(t *testing.T) {
	o := newOutboundFixture(t)
	o.sendPending()
	if r := o.m.lastReport(); !r.At.IsZero() {
		t.Errorf("status before a report: got %+v, want none", r)
	}
	begun := time.Now()
	send := func(m *mapsyncv1.MapReport) {
		t.Helper()
		if err := o.s.handle(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Report{Report: m}}); err != nil {
			t.Fatalf("handle message: got error %v, want nil", err)
		}
	}
	m := &mapsyncv1.MapReport{
		Map: 1, Position: 3, Live: 4, MaxEntries: 5, Failed: 60, Displaced: 7, Refused: 8,
		SenderFailed: 6, SenderEvicted: 9, Type: MapTypeLRUHash, Flags: 2, State: NodeStateReady,
	}
	for range maxReportedExceptions {
		m.Exceptions = append(m.Exceptions, &mapsyncv1.MapException{Key: make([]byte, maxExceptionKey), Reason: string(make([]byte, maxReason))})
	}
	m.Exceptions[0] = &mapsyncv1.MapException{Key: wireBytes(key(1)), Reason: "no \x1broom"}
	send(m)
	r := o.m.lastReport()
	if r.At.Before(begun) || r.NotHeld() != 23 {
		t.Errorf("status: got a report at %s of %d entries that are not held, want 23, not before %s", r.At, r.NotHeld(), begun)
	}
	want := Report{
		At: r.At, Position: 3, Live: 4, Failed: 6, Evicted: 9, FailedOfAll: 60, Displaced: 7, Refused: 8, Exceptions: r.Exceptions,
		Kernel: KernelMap{MaxEntries: 5, Type: MapTypeLRUHash, Flags: 2}, State: NodeStateReady,
	}
	if !reflect.DeepEqual(r, want) {
		t.Errorf("status: got %+v, want %+v", r, want)
	}
	if len(r.Exceptions) != maxReportedExceptions || r.Exceptions[0].Key == "" || r.Exceptions[0].Reason != `no \u001broom` {
		t.Errorf("exceptions: got %d, the first %q, want %d, the first with a key and reason no \\u001broom",
			len(r.Exceptions), r.Exceptions[0], maxReportedExceptions)
	}
	m.State = NodeStateUnknown
	send(m)
	if r := o.m.lastReport(); r.Failed != 60 {
		t.Errorf("report of an older release: got %d failed entries, want those of all owners, 60", r.Failed)
	}
	o.s.removeMap(o.m)
	send(m) // the subscription has ended
	observer := newOutboundFixture(t, func(m *mapsyncv1.MapSubscription) { m.Observe = true })
	if err := observer.s.handleReport(&mapsyncv1.MapReport{Map: 1}); !errors.Is(err, errProtocol) || observer.m.peerReport.Load() != nil {
		t.Errorf("report of an observer: got %v, want a protocol error", err)
	}
}
