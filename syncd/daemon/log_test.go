package daemon_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"mapsync/internal/poll"
)

// unique is a log handler that records lines in which an attribute occurs twice. A reader of JSON
// keeps only one of the two.
type unique struct {
	slog.Handler
	keys  []string // of WithAttrs
	found *repeated
}

// repeated collects the messages of such lines.
type repeated struct {
	mu   sync.Mutex
	list []string
}

func (r *repeated) add(message, key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if text := message + ": " + key; !slices.Contains(r.list, text) {
		r.list = append(r.list, text)
	}
}

func (u *unique) Handle(ctx context.Context, record slog.Record) error {
	seen := append([]string{slog.TimeKey, slog.LevelKey, slog.MessageKey}, u.keys...)
	record.Attrs(func(a slog.Attr) bool {
		if slices.Contains(seen, a.Key) {
			u.found.add(record.Message, a.Key)
		}
		seen = append(seen, a.Key)
		return true
	})
	return u.Handler.Handle(ctx, record)
}

func (u *unique) WithAttrs(attrs []slog.Attr) slog.Handler {
	keys := slices.Clone(u.keys)
	for _, a := range attrs {
		if slices.Contains(keys, a.Key) {
			u.found.add("With", a.Key)
		}
		keys = append(keys, a.Key)
	}
	return &unique{u.Handler.WithAttrs(attrs), keys, u.found}
}

// checked returns a logger. At the end of the test it fails if an attribute occurred twice in a
// line.
func checked(t *testing.T, h slog.Handler) *slog.Logger {
	t.Helper()
	found := &repeated{}
	t.Cleanup(func() {
		found.mu.Lock()
		defer found.mu.Unlock()
		if len(found.list) > 0 {
			t.Errorf("log attributes that occur twice in a line: %s", strings.Join(found.list, "; "))
		}
	})
	return slog.New(&unique{Handler: h, found: found})
}

// All tests of this package check the log of their daemons. This test makes them log much: a map
// fills up, is replaced and refused, and a peer leaves.
func TestLogAttributesAreUnique(t *testing.T) {
	n1, n2, m1, _ := syncedPair(t)
	small := pinned(t, n2.pin, 8, 8, 100)
	poll.Eventually(t, "the smaller map is full", func() bool { return n2.log.contains("failed to write entries to the kernel map") })
	small.Close()
	pinned(t, n2.pin, 8, 8, 1000)
	poll.Eventually(t, "the larger map is filled", func() bool { return n2.status().Maps[0].Failed == 0 && n2.status().Maps[0].MaxEntries == 1000 })
	pinned(t, n2.pin, 4, 4, 1000)
	poll.Eventually(t, "another layout is refused", func() bool { return n2.status().Maps[0].State == "refused" })
	n1.write(m1, 0, 10, 8)
	n2.stop()
	poll.Eventually(t, "the peer has left", func() bool { return len(n1.status().Peers) == 0 })

	var out bytes.Buffer
	found := &repeated{}
	log := slog.New(&unique{Handler: slog.NewTextHandler(&out, nil), found: found}).With("map", "ct")
	log.Info("fine", "peer", "n1")
	if len(found.list) != 0 {
		t.Errorf("repeated attributes of a line without repetition: got %q, want none", found.list)
	}
	log.Info("twice", "map", "x")
	log.With("map", "y").Info("fine", "msg", "z")
	if !slices.Equal(found.list, []string{"twice: map", "With: map", "fine: msg"}) {
		t.Errorf("repeated attributes: got %q, want one of each kind", found.list)
	}
}
