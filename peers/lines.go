package peers

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"

	"golang.org/x/time/rate"
)

// Errors that JoinError wraps when the gossip keys of two nodes do not fit.
var (
	// ErrKeyDiffers means that neither node can read what the other encrypts.
	ErrKeyDiffers = errors.New("gossip key differs from the peer's")
	// ErrPeerPlain means that this node has a gossip key and the peer has none.
	ErrPeerPlain = errors.New("peer sends plain gossip, but this node has a gossip key")
	// ErrPeerEncrypted means that the peer has a gossip key and this node has none.
	ErrPeerEncrypted = errors.New("peer encrypts gossip, but this node has no gossip key")
)

// keyTrouble tells the ways in which gossip keys do not fit.
type keyTrouble int

const (
	keyDiffers keyTrouble = iota
	peerPlain
	peerEncrypted
	keyTroubles
)

var keyErrors = [keyTroubles]error{ErrKeyDiffers, ErrPeerPlain, ErrPeerEncrypted}

var keyRemedies = [keyTroubles]string{
	keyDiffers:    "give all nodes the same gossip key, and while keys are changed the old and the new one",
	peerPlain:     "give the peer this node's gossip key",
	peerEncrypted: "give this node the peer's gossip key",
}

// classifyKeyTrouble recognises, in an error or a log line of memberlist, that
// gossip keys do not fit. The texts are those of its net.go and security.go;
// there are no error values to compare with. A plain datagram is first taken for
// an encrypted one, its message type for the version of the encryption; and an
// encrypted one, by a node without a key, for an indirect ping, whose type is
// the number of the encryption's version.
func classifyKeyTrouble(text string, haveKey bool) (keyTrouble, bool) {
	switch {
	case strings.Contains(text, "no installed keys could decrypt"):
		return keyDiffers, true
	case strings.Contains(text, "encryption is configured but remote state is not encrypted"),
		strings.Contains(text, "Decrypt packet failed: unsupported encryption version"),
		strings.Contains(text, "Decrypt packet failed: payload is too small"):
		return peerPlain, true
	case strings.Contains(text, "remote state is encrypted and encryption is not configured"),
		!haveKey && strings.Contains(text, "Failed to decode indirect ping request"):
		return peerEncrypted, true
	}
	return 0, false
}

// reportKeyTrouble counts trouble with a peer and logs it, once an interval.
func (c *Cluster) reportKeyTrouble(t keyTrouble, peer string) {
	c.counters.keyTrouble[t].Add(1)
	if !c.gate.allow(keyErrors[t].Error() + hostOf(peer)) {
		return
	}
	switch t {
	case keyDiffers:
		c.log.Error("gossip key differs from that of a peer", "peer", peer, "remedy", keyRemedies[t])
	case peerPlain:
		c.log.Error("peer sends plain gossip, but this node has a gossip key", "peer", peer, "remedy", keyRemedies[t])
	case peerEncrypted:
		c.log.Error("peer encrypts gossip, but this node has no gossip key", "peer", peer, "remedy", keyRemedies[t])
	}
}

const (
	// linesPerSecond and lineBurst limit the lines of memberlist that are passed
	// on as more than details: anyone who reaches the port can cause them.
	linesPerSecond = 1
	lineBurst      = 20
)

// lineWriter turns memberlist's log lines into records. Lines whose cause this
// package reports by itself become details.
type lineWriter struct {
	c          *Cluster
	limit      *rate.Limiter
	suppressed atomic.Uint64
}

func newLineWriter(c *Cluster) *lineWriter {
	return &lineWriter{c: c, limit: rate.NewLimiter(linesPerSecond, lineBurst)}
}

// Write takes one line, as log.Logger writes it.
func (w *lineWriter) Write(p []byte) (int, error) {
	if w.c.over.Load() {
		return len(p), nil
	}
	level, text := splitLine(string(p))
	if t, ok := classifyKeyTrouble(text, len(w.c.opts.GossipKeys) > 0); ok {
		// A failed join is reported by the one who joins.
		if !strings.HasPrefix(text, "failed to join ") {
			w.c.reportKeyTrouble(t, linePeer(text))
		}
		level = slog.LevelDebug
	}
	if reportedElsewhere(text) {
		level = slog.LevelDebug
	}
	if !w.c.log.Enabled(context.Background(), level) {
		return len(p), nil
	}
	if level > slog.LevelDebug && !w.limit.Allow() {
		w.suppressed.Add(1)
		return len(p), nil
	}
	switch level {
	case slog.LevelDebug:
		w.c.log.Debug("gossip detail", "text", text)
	case slog.LevelInfo:
		w.c.log.Info("gossip event", "text", text)
	default:
		w.c.log.Warn("gossip trouble", "text", text)
	}
	return len(p), nil
}

// held returns how many lines were held back.
func (w *lineWriter) held() uint64 { return w.suppressed.Load() }

// splitLine separates the level from a line's text. Nothing becomes an error:
// what memberlist calls one is a message that failed, and it tries again.
func splitLine(line string) (slog.Level, string) {
	line = strings.TrimSpace(line)
	level := slog.LevelWarn
	if tag, rest, ok := strings.Cut(line, "] "); ok && strings.HasPrefix(tag, "[") {
		line = rest
		switch tag {
		case "[DEBUG":
			level = slog.LevelDebug
		case "[INFO":
			level = slog.LevelInfo
		}
	}
	return level, strings.TrimPrefix(line, "memberlist: ")
}

// reportedElsewhere reports whether this package tells the same in its own
// words.
func reportedElsewhere(text string) bool {
	return strings.HasPrefix(text, "Conflicting address for ") ||
		strings.HasPrefix(text, "ignoring alive message for ") ||
		strings.HasPrefix(text, "Updating address for left or failed node ")
}

// linePeer finds whom a line is about: the address at its end, or the node in a
// failed state exchange.
func linePeer(text string) string {
	if _, addr, ok := strings.Cut(text, "from="); ok {
		if host, _, err := net.SplitHostPort(addr); err == nil {
			return host
		}
		return addr
	}
	if rest, ok := strings.CutPrefix(text, "Push/Pull with "); ok {
		if name, _, ok := strings.Cut(rest, " failed: "); ok {
			return name
		}
	}
	return "unknown"
}
