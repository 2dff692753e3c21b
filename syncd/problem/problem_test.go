package problem

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestManyEventsOfOneKind: events with invented names have a bounded number of problems, the latest text included, and do not hide
// problems of other kinds. The log has each problem once. All of them end.
func TestManyEventsOfOneKind(t *testing.T) {
	var out strings.Builder
	l, now := NewList(slog.New(slog.NewTextHandler(&out, nil))), time.Now()
	news := 0
	for i := range 1000 {
		if l.Note(Problem{ID: "gossip-invalid", Peer: fmt.Sprint("invented-", i), Text: fmt.Sprint("refused name ", i)}, now) {
			news++
		}
	}
	if got := len(l.All()); got != maxAlike+1 || news != maxAlike+1 {
		t.Errorf("1,000 events with different names: got %d problems and %d lines for the log, want %d of each", got, news, maxAlike+1)
	}
	if last := l.problems[key{id: "gossip-invalid", subject: others}]; last == nil || !strings.HasSuffix(last.Text, "the latest: refused name 999") {
		t.Errorf("further names: got %+v, want the latest one", last)
	}
	if l.Note(Problem{ID: "gossip-invalid", Peer: "invented-0", Text: "refused name 0"}, now.Add(time.Minute)) {
		t.Error("a name that is listed: got a new problem, want the former one")
	}
	if !l.Note(Problem{ID: "connection-refused", Subject: "10.0.0.2", Text: "expired"}, now) || l.All()[0].ID != "connection-refused" {
		t.Errorf("a critical problem after the flood: got %+v, want it first", l.All()[0])
	}
	l.Set(nil, now.Add(eventTime+time.Second), false)
	if got := l.All(); len(got) != 1 || got[0].Peer != "invented-0" {
		t.Errorf("problems after %s without events: got %+v, want only the one that an event has prolonged", eventTime, got)
	}
	l.Set(nil, now.Add(time.Hour), false)
	if got := l.All(); len(got) != 0 {
		t.Errorf("problems after an hour without events: got %+v, want none", got)
	}
}

// TestTextHasOneLine: the list has one line for each problem, also for an error that joins others.
func TestTextHasOneLine(t *testing.T) {
	l := NewList(slog.New(slog.DiscardHandler))
	err := errors.Join(errors.New("read types of map ct"), errors.New("no such file"))
	l.Set([]Problem{{ID: "map-refused", Map: "ct", Text: err.Error()}}, time.Now(), false)
	if got, want := l.All()[0].Text, "read types of map ct; no such file"; got != want {
		t.Errorf("text of two errors: got %q, want %q", got, want)
	}
}
