package daemon

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// logBurst is how many lines with one message are logged at once, logRefill the
	// time after which another one may come.
	logBurst  = 20
	logRefill = 3 * time.Second
	// maxLogKeys bounds the messages that are limited one by one; messages are static,
	// so there are fewer.
	maxLogKeys = 512
)

// logLimiter bounds the lines that a remote side can cause. Messages are static, so each
// has a budget of its own: a flood of one hides no other. Debug lines pass.
type logLimiter struct {
	mu         sync.Mutex
	budgets    map[string]*logBudget
	suppressed uint64
	now        func() time.Time
}

// logBudget is that of one message.
type logBudget struct {
	left    int
	at      time.Time // of the last refill
	dropped uint64    // since the last line
}

// limitLog returns a logger that hands on to log what the limiter lets pass.
func (l *logLimiter) limitLog(log *slog.Logger) *slog.Logger {
	return slog.New(&limitedHandler{log.Handler(), l})
}

func newLogLimiter() *logLimiter {
	return &logLimiter{budgets: make(map[string]*logBudget), now: time.Now}
}

// allow reports whether a line may be logged, and how many were held back before it.
func (l *logLimiter) allow(message string) (ok bool, dropped uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	b := l.budgets[message]
	if b == nil {
		if len(l.budgets) >= maxLogKeys {
			message = ""
			b = l.budgets[message]
		}
		if b == nil {
			b = &logBudget{left: logBurst, at: now}
			l.budgets[message] = b
		}
	}
	if n := int(now.Sub(b.at) / logRefill); n > 0 {
		b.left, b.at = min(b.left+n, logBurst), now
	}
	if b.left == 0 {
		b.dropped++
		l.suppressed++
		return false, 0
	}
	b.left--
	dropped, b.dropped = b.dropped, 0
	return true, dropped
}

// held returns how many lines were held back.
func (l *logLimiter) held() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.suppressed
}

// limitedHandler is a slog.Handler behind a logLimiter.
type limitedHandler struct {
	slog.Handler
	l *logLimiter
}

// Handle implements slog.Handler.
func (h *limitedHandler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelInfo {
		return h.Handler.Handle(ctx, r)
	}
	ok, dropped := h.l.allow(r.Message)
	if !ok {
		return nil
	}
	if dropped > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Uint64("lines_suppressed", dropped))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *limitedHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &limitedHandler{h.Handler.WithAttrs(attrs), h.l}
}

// WithGroup implements slog.Handler.
func (h *limitedHandler) WithGroup(name string) slog.Handler {
	return &limitedHandler{h.Handler.WithGroup(name), h.l}
}
