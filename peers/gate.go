package peers

import (
	"sync"
	"time"
)

const (
	// gateKeys bounds the memory of a gate: its keys hold addresses, and who
	// sends from forged addresses must not make it grow.
	gateKeys = 128
	// logEvery is the pause between two messages about the same trouble with
	// the same peer: a peer with a wrong key tries again every second.
	logEvery = 30 * time.Second
	// movesEvery is the pause between two messages that the same member came, changed
	// or went: a holder of the gossip key can repeat that as often as it likes.
	movesEvery = 10 * time.Second
)

// gate lets each key pass once an interval and counts what it held back. Keys
// beyond its bound share one.
type gate struct {
	every time.Duration

	mu         sync.Mutex
	passed     map[string]time.Time
	suppressed uint64
}

func newGate(every time.Duration) *gate {
	return &gate{every: every, passed: make(map[string]time.Time)}
}

// allow reports whether key may pass now.
func (g *gate) allow(key string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if _, known := g.passed[key]; !known && len(g.passed) >= gateKeys {
		g.forget(now)
		if len(g.passed) >= gateKeys {
			key = ""
		}
	}
	if last, known := g.passed[key]; known && now.Sub(last) < g.every {
		g.suppressed++
		return false
	}
	g.passed[key] = now
	return true
}

// forget drops the keys whose interval is over.
func (g *gate) forget(now time.Time) {
	for key, last := range g.passed {
		if now.Sub(last) >= g.every {
			delete(g.passed, key)
		}
	}
}

// held returns how many times a key was held back.
func (g *gate) held() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.suppressed
}
