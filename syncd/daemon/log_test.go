package daemon_test

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
)

// unique is a log handler that notes records in which an attribute stands twice: a reader of
// JSON keeps one of the two.
type unique struct {
	slog.Handler
	keys  []string // of WithAttrs
	found *repeated
}

// repeated are the messages with such attributes.
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

// checked returns a logger whose output must have no attribute twice, as the test's end checks.
func checked(t *testing.T, h slog.Handler) *slog.Logger {
	t.Helper()
	found := &repeated{}
	t.Cleanup(func() {
		found.mu.Lock()
		defer found.mu.Unlock()
		if len(found.list) > 0 {
			t.Errorf("log attributes that stand twice in a line: %s", strings.Join(found.list, "; "))
		}
	})
	return slog.New(&unique{Handler: h, found: found})
}

// All tests of this package check the log of their daemons. This one has them say much: a map
// that fills up, comes back, is refused, and a peer that leaves.
func TestLogAttributesAreUnique(t *testing.T) {
	n1, n2, m1, _ := equalPair(t)
	small := pinned(t, n2.pin, 8, 8, 100)
	eventually(t, "the smaller map is full", func() bool { return n2.log.contains("entries do not go into the map") })
	small.Close()
	pinned(t, n2.pin, 8, 8, 1000)
	eventually(t, "the larger one is filled", func() bool { return n2.status().Maps[0].Failed == 0 && n2.status().Maps[0].MaxEntries == 1000 })
	pinned(t, n2.pin, 4, 4, 1000)
	eventually(t, "another layout is refused", func() bool { return n2.status().Maps[0].State == "refused" })
	n1.write(m1, 0, 10, 8)
	n2.stop()
	eventually(t, "the peer has left", func() bool { return len(n1.status().Peers) == 0 })

	var out bytes.Buffer
	found := &repeated{}
	log := slog.New(&unique{Handler: slog.NewTextHandler(&out, nil), found: found}).With("map", "ct")
	log.Info("fine", "peer", "n1")
	if len(found.list) != 0 {
		t.Errorf("found %q", found.list)
	}
	log.Info("twice", "map", "x")
	log.With("map", "y").Info("fine", "msg", "z")
	if !slices.Equal(found.list, []string{"twice: map", "With: map", "fine: msg"}) {
		t.Errorf("found %q", found.list)
	}
}
