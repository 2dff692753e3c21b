package problem

import (
	"context"
	"log/slog"
	"net"
	"time"
)

// Attr is the key of the attribute of a log line that makes the line a problem. Its value is the ID of a Kind.
const Attr = "problem"

// handler is a slog.Handler that adds lines with Attr to a list.
type handler struct {
	slog.Handler
	list  *List
	attrs []slog.Attr // of the logger
	now   func() time.Time
}

// Observe returns a logger that adds the lines with Attr to the list. A line that repeats a problem with the same text is not
// logged: the log has the beginning and the end. The other lines go to log.
func (l *List) Observe(log *slog.Logger) *slog.Logger {
	return slog.New(&handler{log.Handler(), l, nil, time.Now})
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	p := Problem{Text: r.Message}
	var cause string
	read := func(a slog.Attr) bool {
		switch text := a.Value.String(); a.Key {
		case Attr:
			p.ID = text
		case "map":
			p.Map = text
		case "peer", "node":
			p.Peer = text
		case "remote", "name", "gossip_addr", "file":
			if p.Subject == "" {
				p.Subject = host(text)
			}
		case "error", "cause", "text":
			cause = text
		case "hint":
			p.Remedy = text
		}
		return true
	}
	for _, a := range h.attrs {
		read(a)
	}
	r.Attrs(read)
	if p.ID == "" {
		return h.Handler.Handle(ctx, r)
	}
	if cause != "" {
		p.Text += ": " + cause
	}
	if !h.list.Note(p, h.now()) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// host returns an address without its port: each connection of a client has another one.
func host(s string) string {
	if h, _, err := net.SplitHostPort(s); err == nil {
		return h
	}
	return s
}

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.Handler.WithAttrs(attrs), h.list, append(h.attrs[:len(h.attrs):len(h.attrs)], attrs...), h.now}
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.Handler.WithGroup(name), h.list, h.attrs, h.now}
}
