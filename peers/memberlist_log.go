package peers

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"

	"golang.org/x/time/rate"

	"mapsync/printable"
)

// Errors that JoinError wraps if the gossip keys of two nodes do not match.
var (
	// ErrKeyDiffers means that both nodes encrypt gossip with different keys.
	ErrKeyDiffers = errors.New("gossip key differs from the peer's")
	// ErrPeerUnencrypted means that only this node has a gossip key.
	ErrPeerUnencrypted = errors.New("peer sends plain gossip, but this node has a gossip key")
	// ErrPeerEncrypted means that only the peer has a gossip key.
	ErrPeerEncrypted = errors.New("peer encrypts gossip, but this node has no gossip key")
)

// keyMismatch distinguishes the ways in which the gossip keys of two nodes do not match.
type keyMismatch int

const (
	keyDiffers keyMismatch = iota
	peerUnencrypted
	peerEncrypted
	keyMismatches
)

var keyErrors = [keyMismatches]error{ErrKeyDiffers, ErrPeerUnencrypted, ErrPeerEncrypted}

var keyHints = [keyMismatches]string{
	keyDiffers:      "give all nodes the same gossip key, and while keys are changed the old and the new one",
	peerUnencrypted: "give the peer this node's gossip key",
	peerEncrypted:   "give this node the peer's gossip key",
}

// classifyKeyMismatch detects a gossip key mismatch in an error or a log line of memberlist. The texts
// come from net.go and security.go of memberlist, which has no error values to compare with. A node
// with a key first takes an unencrypted datagram for an encrypted one, and its message type for the
// encryption version. acceptsPacket detects an encrypted datagram to a node without a key.
func classifyKeyMismatch(text string) (keyMismatch, bool) {
	switch {
	case strings.Contains(text, "no installed keys could decrypt"):
		return keyDiffers, true
	case strings.Contains(text, "encryption is configured but remote state is not encrypted"),
		strings.Contains(text, "Decrypt packet failed: unsupported encryption version"),
		strings.Contains(text, "Decrypt packet failed: payload is too small"):
		return peerUnencrypted, true
	case strings.Contains(text, "remote state is encrypted and encryption is not configured"):
		return peerEncrypted, true
	}
	return 0, false
}

// reportKeyMismatch counts a key mismatch with a peer and logs it, once per interval.
func (c *Cluster) reportKeyMismatch(t keyMismatch, peer string) {
	c.counters.keyMismatch[t].Add(1)
	if !c.logLimit.allow(keyErrors[t].Error() + hostOf(peer)) {
		return
	}
	switch t {
	case keyDiffers:
		c.log.Error("gossip key differs from that of a peer", "remote", peer, "problem", "gossip-key-differs", "hint", keyHints[t])
	case peerUnencrypted:
		c.log.Error("peer sends plain gossip, but this node has a gossip key", "remote", peer, "problem", "gossip-key-differs", "hint", keyHints[t])
	case peerEncrypted:
		c.log.Error("peer encrypts gossip, but this node has no gossip key", "remote", peer, "problem", "gossip-key-differs", "hint", keyHints[t])
	}
}

const (
	// linesPerSecond and lineBurst limit the memberlist lines logged above debug level. Any host that
	// reaches the port can cause such lines.
	linesPerSecond = 1
	lineBurst      = 20
)

// memberlistLog converts memberlist's log lines into slog records. Lines whose cause this package
// reports itself become debug records.
type memberlistLog struct {
	c          *Cluster
	limit      *rate.Limiter
	suppressed atomic.Uint64
}

func newMemberlistLog(c *Cluster) *memberlistLog {
	return &memberlistLog{c: c, limit: rate.NewLimiter(linesPerSecond, lineBurst)}
}

// Write accepts one line from log.Logger.
func (w *memberlistLog) Write(p []byte) (int, error) {
	if w.c.stopped.Load() {
		return len(p), nil
	}
	level, text := splitLine(string(p))
	if t, ok := classifyKeyMismatch(text); ok {
		// The joining node reports a failed join.
		if !strings.HasPrefix(text, "failed to join ") {
			w.c.reportKeyMismatch(t, peerOfLine(text))
		}
		level = slog.LevelDebug
	}
	if isDuplicateLine(text) {
		level = slog.LevelDebug
	}
	if !w.c.log.Enabled(context.Background(), level) {
		return len(p), nil
	}
	if level > slog.LevelDebug && !w.limit.Allow() {
		w.suppressed.Add(1)
		return len(p), nil
	}
	w.c.logGossip(level, printable.Truncated(text, maxCause))
	return len(p), nil
}

// logGossip logs a line of memberlist.
func (c *Cluster) logGossip(level slog.Level, text string) {
	switch level {
	case slog.LevelDebug:
		c.log.Debug("gossip detail", "text", text)
	case slog.LevelInfo:
		c.log.Info("gossip event", "text", text)
	default:
		c.log.Warn("gossip warning", "text", text)
	}
}

// suppressedCount returns how many lines were suppressed.
func (w *memberlistLog) suppressedCount() uint64 { return w.suppressed.Load() }

// splitLine separates the level from a line's text. It never returns the error level. An error of
// memberlist means one failed message, and memberlist retries.
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

// isDuplicateLine reports whether this package reports the event of a line itself.
func isDuplicateLine(text string) bool {
	return strings.HasPrefix(text, "Conflicting address for ") ||
		strings.HasPrefix(text, "ignoring alive message for ") ||
		strings.Contains(text, clusterError("").Error()) ||
		strings.HasPrefix(text, "Updating address for left or failed node ")
}

// peerOfLine returns the peer of a line: the address at its end, or the node in a failed state
// exchange.
func peerOfLine(text string) string {
	if _, addr, ok := strings.Cut(text, "from="); ok {
		if host, _, err := net.SplitHostPort(addr); err == nil {
			return host
		}
		return printable.Truncated(addr, maxName)
	}
	if rest, ok := strings.CutPrefix(text, "Push/Pull with "); ok {
		if name, _, ok := strings.Cut(rest, " failed: "); ok {
			return printable.Truncated(name, maxName)
		}
	}
	return "unknown"
}
