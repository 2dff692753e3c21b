package daemon

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestLogLinesAreLimited(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	now := time.Now()
	l := newLogLimiter()
	l.now = func() time.Time { return now }
	log := l.limitLog(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	for i := range 1000 {
		log.With("peer", i).Warn("flood", "i", i)
	}
	log.Warn("other")
	log.WithGroup("g").Debug("detail")
	if n := strings.Count(out.String(), "msg=flood"); n != logBurst {
		t.Errorf("lines of a flood: got %d, want %d", n, logBurst)
	}
	for _, want := range []string{"msg=other", "msg=detail"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("log: want %s", want)
		}
	}
	if l.held() != 1000-logBurst {
		t.Errorf("suppressed lines: got %d, want %d", l.held(), 1000-logBurst)
	}
	now = now.Add(logRefill)
	log.Warn("flood")
	log.Warn("flood")
	if n := strings.Count(out.String(), "msg=flood"); n != logBurst+1 || !strings.Contains(out.String(), fmt.Sprintf("lines_suppressed=%d", 1000-logBurst)) {
		t.Errorf("lines after logRefill: got %d, want %d and the number of suppressed lines", n, logBurst+1)
	}
	for i := range 2 * maxLogKeys {
		log.Info(fmt.Sprint("made up ", i)) //nolint:sloglint // many messages are the point
	}
	if n := len(l.budgets); n > maxLogKeys+1 {
		t.Errorf("budgets: got %d, want at most %d", n, maxLogKeys+1)
	}
}
