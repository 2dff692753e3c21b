package events_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"mapsync/syncd/events"
)

// TestHandler checks the events of log lines, and that the log gets the lines of its level only.
func TestHandler(t *testing.T) {
	var out bytes.Buffer
	var l events.Log
	log := slog.New(l.Handler(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn})))
	begin := time.Now()
	log.Debug("not an event")
	log.With("map", "ct").Info("map attached", "id", 7, "reason", "a b")
	log.Warn("peer left or died", slog.String("peer", "lb2"), slog.Any("error", fmt.Errorf("gone\x1b[2J")), slog.String("map", ""))
	log.Error("settings not reloaded", "hint", strings.Repeat("x", 5000))
	list := l.Since(begin, 100)
	if len(list.Events) != 3 || !list.Complete {
		t.Fatalf("events: got %d, complete %t, want 3 and true", len(list.Events), list.Complete)
	}
	for i, want := range []events.Event{
		{Level: "info", Message: "map attached", Map: "ct", Details: `id=7 reason="a b"`},
		{Level: "warn", Message: "peer left or died", Peer: "lb2", Details: `error=gone\u001b[2J`},
		{Level: "error", Message: "settings not reloaded"},
	} {
		got := list.Events[i]
		if got.Time.Before(begin) || len(got.Details) > 600 {
			t.Errorf("event %d: got the time %s and %d bytes, want a later time and at most 600", i, got.Time, len(got.Details))
		}
		if got.Time = want.Time; i == 2 {
			got.Details = ""
		}
		if got != want {
			t.Errorf("event %d: got %+v, want %+v", i, got, want)
		}
	}
	if text := out.String(); strings.Contains(text, "map attached") || strings.Count(text, "\n") != 2 {
		t.Errorf("log: got %s, want the two lines above its level", text)
	}
}

// TestRing has more events than a Log keeps.
func TestRing(t *testing.T) {
	var l events.Log
	begin := time.Unix(1000, 0)
	for i := range events.Most + 10 {
		l.Add(events.Event{Time: begin.Add(time.Duration(i) * time.Second), Message: fmt.Sprint(i)})
	}
	all := l.Since(time.Time{}, 1<<30)
	if len(all.Events) != events.Most || all.Complete || all.Events[0].Message != "10" || all.Events[events.Most-1].Message != fmt.Sprint(events.Most+9) {
		t.Errorf("all: got %d events from %s, complete %t, want %d from 10, not complete", len(all.Events), all.Events[0].Message, all.Complete, events.Most)
	}
	some := l.Since(begin.Add(20*time.Second), 1<<30)
	if len(some.Events) != events.Most-10 || !some.Complete || some.Events[0].Message != "20" {
		t.Errorf("since 20 s: got %d events, complete %t, want %d, complete", len(some.Events), some.Complete, events.Most-10)
	}
	few := l.Since(begin, 3)
	if len(few.Events) != 3 || few.Complete || few.Events[2].Message != fmt.Sprint(events.Most+9) {
		t.Errorf("limit 3: got %d events, complete %t, want the latest 3, not complete", len(few.Events), few.Complete)
	}
	some.Shorten(1 << 10)
	if n := len(some.Events); n < 5 || n > 20 || some.Complete || some.Events[n-1].Message != fmt.Sprint(events.Most+9) {
		t.Errorf("shortened to 1 KiB: got %d events, complete %t, want the latest ones, not complete", n, some.Complete)
	}
	few.Complete = true
	if few.Shorten(1 << 10); len(few.Events) != 3 || !few.Complete {
		t.Errorf("few events shortened to 1 KiB: got %d, complete %t, want all", len(few.Events), few.Complete)
	}
	if none := new(events.Log).Since(begin, 3); none.Events == nil || len(none.Events) != 0 || !none.Complete {
		t.Errorf("no events: got %v, want an empty list that is complete", none)
	}
}
