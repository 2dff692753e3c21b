// Package events keeps the latest lines of a log in memory, for operators who ask what happened.
package events

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"mapsync/printable"
)

// Limits of a Log.
const (
	// Most is the number of events that a Log keeps.
	Most = 10_000
	// maxText is the maximum length of the text of an event in bytes.
	maxText = 512
)

// Event is a line of the log.
type Event struct {
	// Time is the wall clock at the line.
	Time time.Time `json:"time"`
	// Level is info, warn or error.
	Level string `json:"level"`
	// Message is the static text of the line.
	Message string `json:"message"`
	// Map and Peer are what the line is about; empty: the node.
	Map  string `json:"map,omitempty"`
	Peer string `json:"peer,omitempty"`
	// Details are the other attributes of the line, as KEY=VALUE separated by spaces.
	Details string `json:"details,omitempty"`
}

// Log keeps the latest events. It is safe for concurrent use.
type Log struct {
	mu   sync.Mutex
	ring []Event // at most Most
	next int     // index of the next event, once ring is full
	lost uint64  // events that were replaced
}

// Add adds an event, in place of the oldest one if there are Most.
func (l *Log) Add(e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.ring) < Most {
		l.ring = append(l.ring, e)
		return
	}
	l.ring[l.next] = e
	l.next = (l.next + 1) % Most
	l.lost++
}

// List is what a Log has of a period.
type List struct {
	// Events are in the order of their lines.
	Events []Event `json:"events"`
	// Complete is false if the Log has lost events of the period.
	Complete bool `json:"complete"`
}

// Since returns the events from a time on, the latest ones, at most limit.
func (l *Log) Since(t time.Time, limit int) List {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := List{Events: []Event{}, Complete: true}
	for i := range l.ring {
		if e := &l.ring[(l.next+i)%len(l.ring)]; !e.Time.Before(t) {
			list.Events = append(list.Events, *e)
		}
	}
	// If the oldest event belongs to the period, those before it may belong to it, too.
	list.Complete = l.lost == 0 || len(list.Events) < len(l.ring)
	if more := len(list.Events) - limit; more > 0 {
		list.Events, list.Complete = list.Events[more:], false
	}
	return list
}

// Shorten removes the oldest events until the others have at most size bytes as JSON.
func (l *List) Shorten(size int) {
	for i := range slices.Backward(l.Events) {
		text, err := json.Marshal(&l.Events[i])
		if size -= len(text) + 1; err != nil || size < 0 {
			l.Events, l.Complete = l.Events[i+1:], false
			return
		}
	}
}

// Handler returns a slog.Handler that adds each line from the level info on to the Log, and passes on the lines that next is enabled for.
func (l *Log) Handler(next slog.Handler) slog.Handler { return &handler{Handler: next, log: l} }

// handler implements slog.Handler.
type handler struct {
	slog.Handler
	log   *Log
	attrs []slog.Attr // of the logger
}

// Enabled implements slog.Handler.
func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo || h.Handler.Enabled(ctx, level)
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level >= slog.LevelInfo {
		h.log.Add(h.event(&r))
	}
	if !h.Handler.Enabled(ctx, r.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// event returns a line as an event.
func (h *handler) event(r *slog.Record) Event {
	e := Event{Time: r.Time, Level: strings.ToLower(r.Level.String()), Message: r.Message}
	var details strings.Builder
	read := func(a slog.Attr) bool {
		text := printable.Truncated(a.Value.Resolve().String(), maxText)
		switch {
		case a.Key == "map" && e.Map == "":
			e.Map = text
		case (a.Key == "peer" || a.Key == "node") && e.Peer == "":
			e.Peer = text
		case text != "" && details.Len() < maxText:
			if details.Len() > 0 {
				details.WriteByte(' ')
			}
			details.WriteString(a.Key + "=" + quoted(text))
		}
		return true
	}
	for _, a := range h.attrs {
		read(a)
	}
	r.Attrs(read)
	e.Details = printable.Truncated(details.String(), maxText)
	return e
}

// quoted returns a value in quotation marks if it has a space.
func quoted(text string) string {
	if strings.ContainsAny(text, " \"") {
		return `"` + strings.ReplaceAll(text, `"`, `\"`) + `"`
	}
	return text
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.Handler.WithAttrs(attrs), h.log, append(h.attrs[:len(h.attrs):len(h.attrs)], attrs...)}
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.Handler.WithGroup(name), h.log, h.attrs}
}
