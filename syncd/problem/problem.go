// Package problem has the list of the problems of a node. The status, the log, the metrics and the readiness page show it.
package problem

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"
)

// Severity is how urgent a problem is.
type Severity string

// The severities. A failure of this node, or of its peer, during a critical problem may lose sessions.
const (
	Critical Severity = "critical"
	Warning  Severity = "warning"
	Notice   Severity = "notice" // part of a planned operation
)

// Problem is one problem of a node.
type Problem struct {
	// ID is that of a Kind.
	ID       string    `json:"id"`
	Severity Severity  `json:"severity"`
	Since    time.Time `json:"since"`
	// Map, Peer and Subject are what the problem concerns; empty: the whole node. Subject is an address or a file.
	Map     string `json:"map,omitempty"`
	Peer    string `json:"peer,omitempty"`
	Subject string `json:"subject,omitempty"`
	// Text describes the problem, Remedy is a command or what to do. Details has one line for each of some entries.
	Text    string   `json:"text"`
	Remedy  string   `json:"remedy"`
	Details []string `json:"details,omitempty"`
	// Documentation is the section about the problem.
	Documentation string `json:"documentation"`
}

// String returns the problem in one line, without remedy and details.
func (p *Problem) String() string {
	s := string(p.Severity) + " " + p.ID
	for _, of := range []struct{ what, name string }{{"map", p.Map}, {"peer", p.Peer}, {"", p.Subject}} {
		if of.name != "" {
			s += ", " + strings.TrimSpace(of.what+" "+of.name)
		}
	}
	return s + ": " + p.Text
}

// OneLine returns a text of several lines as one. An error that joins others has a line for each.
func OneLine(text string) string { return strings.ReplaceAll(text, "\n", "; ") }

// key identifies a problem as long as it lasts.
type key struct{ id, mapName, peer, subject string }

func (p *Problem) key() key { return key{p.ID, p.Map, p.Peer, p.Subject} }

// lasting is a problem in the list.
type lasting struct {
	Problem
	// lastEvent is the time of the last event of a problem that Note has added; zero: Set has added it.
	lastEvent time.Time
	// logged reports that the log has the beginning.
	logged bool
}

const (
	// eventTime is the time after the last event at which a problem from events has ended.
	eventTime = 2 * time.Minute
	// maxAlike is the maximum number of problems of one kind from events. Remote sides cause them, and choose the names in them.
	maxAlike = 8
	// others is the subject of the problem that stands for all further ones of a kind.
	others = "others"
)

// List is the list of problems. Its methods are safe for concurrent use.
type List struct {
	log *slog.Logger

	mu       sync.Mutex
	problems map[key]*lasting
}

// NewList returns an empty list, which logs when a problem begins and ends.
func NewList(log *slog.Logger) *List {
	return &List{log: log, problems: make(map[key]*lasting)}
}

// Set replaces the problems from the state of the node. A problem that was in the list keeps the time of its beginning. Problems
// from events stay until their end. While starting is set, the log has no problem that begins.
func (l *List) Set(found []Problem, now time.Time, starting bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	present := make(map[key]bool, len(found))
	for i := range found {
		p := &found[i]
		k := p.key()
		present[k] = true
		l.put(k, p, time.Time{}, now)
	}
	for k, p := range l.problems {
		if p.lastEvent.IsZero() && !present[k] || !p.lastEvent.IsZero() && now.Sub(p.lastEvent) > eventTime {
			l.end(k, p, now)
		} else if kind := Of(p.ID); !starting && !p.logged && now.Sub(p.Since) >= kind.LogAfter {
			p.logged = true
			l.log.Log(context.Background(), p.level(), "problem began", p.attrs()...)
		}
	}
}

// Note adds a problem from an event, or prolongs it. It reports whether the problem is new or has another text. One problem, with the
// latest text, stands for those of a kind above maxAlike: a flood of events neither fills the list nor hides problems of other kinds.
func (l *List) Note(p Problem, now time.Time) (news bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	further := l.problems[p.key()] == nil && l.eventsOf(p.ID) >= maxAlike
	if further {
		p.Map, p.Peer, p.Subject, p.Text = "", "", others, "more problems of this kind, the latest: "+p.Text
	}
	k := p.key()
	was := l.problems[k]
	news = was == nil || was.Text != p.Text && !further
	l.put(k, &p, now, now)
	l.problems[k].logged = true // the event is in the log
	return news
}

// eventsOf returns the number of problems of a kind from events. The lock is held.
func (l *List) eventsOf(id string) (n int) {
	for _, p := range l.problems {
		if p.ID == id && !p.lastEvent.IsZero() {
			n++
		}
	}
	return n
}

// put adds or updates a problem. The lock is held.
func (l *List) put(k key, p *Problem, event, now time.Time) {
	kind := Of(p.ID)
	was := l.problems[k]
	if was == nil {
		was = &lasting{Problem: Problem{Since: now}}
		l.problems[k] = was
	}
	since := was.Since
	if !p.Since.IsZero() && p.Since.Before(since) {
		since = p.Since
	}
	was.Problem = *p
	was.Text = OneLine(p.Text)
	was.Since, was.lastEvent = since, event
	was.Severity = cmp.Or(p.Severity, kind.Severity)
	if was.Severity == Notice && kind.Planned > 0 && now.Sub(since) >= kind.Planned {
		was.Severity = Warning
	}
	was.Remedy = cmp.Or(p.Remedy, kind.remedy(p))
	was.Documentation = kind.Documentation()
}

// end removes a problem. The lock is held.
func (l *List) end(k key, p *lasting, now time.Time) {
	delete(l.problems, k)
	if p.logged {
		attrs := append(p.subject(), slog.Float64("seconds", now.Sub(p.Since).Seconds()))
		l.log.Info("problem ended", attrs...)
	}
}

// level returns the level of the log line.
func (p *Problem) level() slog.Level {
	switch p.Severity {
	case Critical:
		return slog.LevelError
	case Notice:
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

// subject returns the attributes that identify a problem in the log.
func (p *Problem) subject() []any {
	attrs := []any{slog.String("id", p.ID)}
	for name, value := range map[string]string{"map": p.Map, "peer": p.Peer, "subject": p.Subject} {
		if value != "" {
			attrs = append(attrs, slog.String(name, value))
		}
	}
	slices.SortFunc(attrs[1:], func(a, b any) int { return strings.Compare(a.(slog.Attr).Key, b.(slog.Attr).Key) })
	return attrs
}

func (p *Problem) attrs() []any {
	return append(p.subject(), slog.String("text", p.Text), slog.String("hint", p.Remedy))
}

// All returns the problems, the most severe ones first, and among these the oldest. The caller owns the list.
func (l *List) All() []Problem {
	l.mu.Lock()
	list := make([]Problem, 0, len(l.problems))
	for _, p := range l.problems {
		list = append(list, p.Problem)
	}
	l.mu.Unlock()
	slices.SortFunc(list, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Severity.order(), b.Severity.order()), a.Since.Compare(b.Since), cmp.Compare(a.ID, b.ID),
			cmp.Compare(a.Map, b.Map), cmp.Compare(a.Peer, b.Peer), cmp.Compare(a.Subject, b.Subject))
	})
	return list
}

func (s Severity) order() int {
	return slices.Index([]Severity{Critical, Warning, Notice}, s)
}
