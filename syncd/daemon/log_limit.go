package daemon

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// logBurst is the number of lines with one message that may be logged at once. logRefill is
	// the time after which one more line may be logged.
	logBurst  = 20
	logRefill = 3 * time.Second
	// maxLogKeys is the maximum number of messages that have their own budget. Messages are
	// static, so there are fewer.
	maxLogKeys = 512
)

// logLimiter limits log lines that may repeat without end: those that a remote side can cause, and
// those about one map. Messages are static, so each message has its own budget: a flood of one
// message does not suppress others. It does not limit debug lines.
type logLimiter struct {
	mu         sync.Mutex
	budgets    map[string]*logBudget
	suppressed *atomic.Uint64
	now        func() time.Time
}

// logBudget is the budget of one message.
type logBudget struct {
	left    int
	at      time.Time // time of the last refill
	dropped uint64    // lines suppressed since the last logged line
}

// limitLog returns a logger that passes the lines that the limiter allows to log.
func (l *logLimiter) limitLog(log *slog.Logger) *slog.Logger {
	return slog.New(&limitedHandler{log.Handler(), l})
}

func newLogLimiter() *logLimiter {
	return &logLimiter{budgets: make(map[string]*logBudget), suppressed: new(atomic.Uint64), now: time.Now}
}

// separate returns a logLimiter with budgets of its own. Both count suppressed lines together.
func (l *logLimiter) separate() *logLimiter {
	return &logLimiter{budgets: make(map[string]*logBudget), suppressed: l.suppressed, now: l.now}
}

// allow reports whether a line may be logged, and how many lines with its message were suppressed
// before it.
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
		l.suppressed.Add(1)
		return false, 0
	}
	b.left--
	dropped, b.dropped = b.dropped, 0
	return true, dropped
}

// held returns the number of suppressed lines, with those of separate limiters.
func (l *logLimiter) held() uint64 { return l.suppressed.Load() }

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
