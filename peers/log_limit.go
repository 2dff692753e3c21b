package peers

import (
	"sync"
	"time"
)

const (
	// maxLogKeys bounds the memory of a logLimiter. Keys contain addresses, so a sender with forged
	// addresses could otherwise grow it without limit.
	maxLogKeys = 128
	// logEvery is the pause between two messages about the same problem with the same peer. A peer
	// with a wrong key retries every second.
	logEvery = 30 * time.Second
	// memberLogEvery is the pause between two messages that the same member joined, changed or left. A
	// sender with the gossip key can repeat these events at any rate.
	memberLogEvery = 10 * time.Second
)

// logLimiter allows each key once per interval and counts the suppressed ones. Keys beyond maxLogKeys
// share one entry.
type logLimiter struct {
	every time.Duration

	mu          sync.Mutex
	lastAllowed map[string]time.Time
	suppressed  uint64
}

func newLogLimiter(every time.Duration) *logLimiter {
	return &logLimiter{every: every, lastAllowed: make(map[string]time.Time)}
}

// allow reports whether a message with key may be logged now.
func (g *logLimiter) allow(key string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if _, known := g.lastAllowed[key]; !known && len(g.lastAllowed) >= maxLogKeys {
		g.dropExpired(now)
		if len(g.lastAllowed) >= maxLogKeys {
			key = ""
		}
	}
	if last, known := g.lastAllowed[key]; known && now.Sub(last) < g.every {
		g.suppressed++
		return false
	}
	g.lastAllowed[key] = now
	return true
}

// dropExpired removes the keys whose interval has ended.
func (g *logLimiter) dropExpired(now time.Time) {
	for key, last := range g.lastAllowed {
		if now.Sub(last) >= g.every {
			delete(g.lastAllowed, key)
		}
	}
}

// suppressedCount returns how many messages were suppressed.
func (g *logLimiter) suppressedCount() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.suppressed
}
