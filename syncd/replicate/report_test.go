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

// TestReportsAreSentWhenTheyChange: news within 200 ms, a moved position alone within a second.
func TestReportsAreSentWhenTheyChange(t *testing.T) {
	x := newStreamless(t)
	room := 5
	x.in.m.layout.Room = func() int { return room }
	now := time.Now()
	report := func(what string, due bool) *mapsyncv1.MapReport {
		t.Helper()
		m := x.in.report(now)
		if (m == nil) == due {
			t.Fatalf("%s: report %v", what, m)
		}
		return m
	}
	after := func(d time.Duration) { now = now.Add(d) }
	if m := report("the first", true); m.GetMaxEntries() != 5 || m.GetLive() != 0 || m.GetFailed() != 0 || m.GetRefused() != 0 || x.in.reporting.due {
		t.Errorf("report %v", m)
	}
	after(reportPause - 1)
	room = 6
	if report("too soon", false); !x.in.reporting.due {
		t.Error("a report that is to come is forgotten")
	}
	after(1)
	if m := report("more room", true); m.GetMaxEntries() != 6 {
		t.Errorf("report %v", m)
	}
	after(reportPause)
	if report("no change", false); x.in.reporting.due {
		t.Error("a report is to come, though nothing has changed")
	}
	x.take(stockBatch(x.in.index, 0, 10, 1, 2))
	x.write()
	x.acked()
	after(reportPause)
	if report("the position alone, too soon", false); !x.in.reporting.due {
		t.Error("the position is forgotten")
	}
	now = x.in.reporting.sent.Add(restPause - 1)
	report("the position alone, almost", false)
	now = x.in.reporting.sent.Add(restPause + reportPause)
	if m := report("the position", true); m.GetPosition() != 10 || m.GetLive() != 2 {
		t.Errorf("report %v", m)
	}
	after(time.Hour)
	report("no change for long", false)
	x.in.excepted.add([]byte("k"), 1, target, errors.New("why"))
	after(reportPause)
	m := report("an exception", true)
	if m.GetRefused() != 1 || len(m.GetExceptions()) != 1 || string(m.GetExceptions()[0].GetKey()) != "k" || m.GetExceptions()[0].GetReason() != "why" {
		t.Errorf("report %v", m)
	}
	for i := range maxReported + 5 {
		x.in.excepted.add(fmt.Appendf(nil, "k%d", i), 1, target, errors.New("why"))
	}
	after(reportPause)
	if m := report("many exceptions", true); m.GetRefused() != maxReported+6 || len(m.GetExceptions()) != maxReported {
		t.Errorf("report of %d, %d listed", m.GetRefused(), len(m.GetExceptions()))
	}
}

// TestReportOfAFullMap: entries that failed count as failed while they are tried again.
func TestReportOfAFullMap(t *testing.T) {
	x := newStreamless(t)
	now := time.Now()
	x.take(stockBatch(x.in.index, 0, 10, 1, 2, 3))
	var refs []table.Record
	x.tb.Update(func(tx *table.Tx) {
		var rec table.Record
		for tx.NextDirty(x.writer, &rec) {
			refs = append(refs, rec)
			tx.Applied(rec.Ref, rec.Version, errors.New("full"))
		}
	})
	if m := x.in.report(now); m.GetFailed() != 3 || m.GetLive() != 3 || m.GetMaxEntries() != 0 {
		t.Fatalf("report %v", m)
	}
	x.tb.Update(func(tx *table.Tx) {
		for _, rec := range refs[:1] {
			tx.Applied(rec.Ref, rec.Version, nil)
		}
		tx.RequeueFailed(10)
	})
	if m := x.in.report(now.Add(reportPause)); m.GetFailed() != 2 {
		t.Errorf("while they are tried again: report %v", m)
	}
}

// TestReportsOfALink: of the maps that are received, to peers that take reports.
func TestReportsOfALink(t *testing.T) {
	x := newStreamless(t)
	now := time.Now()
	x.in.state = StateCaughtUp
	if out := x.l.reports(nil, now); len(out) != 0 {
		t.Errorf("to a peer that takes none: %v", out)
	}
	x.l.wantsReports = true
	for _, state := range []State{StateWaiting, StatePending, StateFailed, StateRefused} {
		x.in.state = state
		if out := x.l.reports(nil, now); len(out) != 0 {
			t.Errorf("of a map that is %s: %v", state, out)
		}
	}
	for _, state := range []State{StateSyncing, StateCaughtUp} {
		x.in.state, x.in.reporting = state, reporting{}
		if out := x.l.reports(nil, now); len(out) != 1 || out[0].GetReport().GetMap() != x.in.index {
			t.Errorf("of a map that is %s: %v", state, out)
		}
	}
	if out := x.l.reports(nil, now); len(out) != 0 {
		t.Errorf("a second one at once: %v", out)
	}
	if x.in.reset(); !reflect.DeepEqual(x.in.reporting, reporting{}) {
		t.Error("a new stream begins without a report")
	}
}

// TestReportsAreKept: the status has the last report, with text that is safe to print.
func TestReportsAreKept(t *testing.T) {
	o := newOut(t)
	o.run()
	if r := o.f.lastReport(); !r.At.IsZero() {
		t.Errorf("before any: %+v", r)
	}
	begun := time.Now()
	send := func(m *mapsyncv1.MapReport) {
		t.Helper()
		if err := o.s.handle(&mapsyncv1.SubscribeRequest{Message: &mapsyncv1.SubscribeRequest_Report{Report: m}}); err != nil {
			t.Fatal(err)
		}
	}
	m := &mapsyncv1.MapReport{Map: 1, Position: 3, Live: 4, MaxEntries: 5, Failed: 6, Displaced: 7, Refused: 8}
	for range maxReported {
		m.Exceptions = append(m.Exceptions, &mapsyncv1.MapException{Key: make([]byte, maxExceptionKey), Reason: string(make([]byte, maxReason))})
	}
	m.Exceptions[0] = &mapsyncv1.MapException{Key: wireBytes(key(1)), Reason: "no \x1broom"}
	send(m)
	r := o.f.lastReport()
	if r.At.Before(begun) || r.Position != 3 || r.Live != 4 || r.MaxEntries != 5 || r.Failed != 6 || r.Displaced != 7 || r.Refused != 8 || r.NotHeld() != 14 {
		t.Errorf("%+v", r)
	}
	if len(r.Exceptions) != maxReported || r.Exceptions[0].Key == "" || r.Exceptions[0].Reason != "no ?room" {
		t.Errorf("%d exceptions, %q", len(r.Exceptions), r.Exceptions[0])
	}
	o.s.remove(o.f)
	send(m) // of a subscription that has ended
	observer := newOut(t, func(m *mapsyncv1.MapSubscription) { m.Observe = true })
	if err := observer.s.reported(&mapsyncv1.MapReport{Map: 1}); !errors.Is(err, errProtocol) || observer.f.report.Load() != nil {
		t.Errorf("by an observer: %v", err)
	}
}
