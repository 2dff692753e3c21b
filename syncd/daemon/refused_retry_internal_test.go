package daemon

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/kmap"

	"github.com/cilium/ebpf"
)

// TestAwaitRetryEndsForAnotherMap: the pause before the next attempt to replicate a refused map ends as soon as another
// map is in its place, however long the pause is. Without another map it ends after its time.
func TestAwaitRetryEndsForAnotherMap(t *testing.T) {
	create := func() *ebpf.Map {
		t.Helper()
		m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "await_retry", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 10})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		return m
	}
	refused := create()
	ref, err := kmap.ParseRef("name:await_retry")
	if err != nil {
		t.Fatal(err)
	}
	w := kmap.NewWatcher(ref, time.Millisecond)
	m := &replica{daemon: &Daemon{}, log: slog.New(slog.DiscardHandler), closeFirstRead: func() {}}
	attempt := func() { // finds the map and refuses it
		t.Helper()
		e, err := w.Next(t.Context())
		if err != nil || e.Map == nil {
			t.Fatalf("find the map: got %+v, error %v, want a map", e, err)
		}
		if err := e.Map.Close(); err != nil {
			t.Fatal(err)
		}
	}
	attempt()
	began := time.Now()
	const pause = 50 * time.Millisecond
	if changed, took := m.awaitRetry(t.Context(), w, pause), time.Since(began); changed || took < pause {
		t.Errorf("pause without another map: got changed %t after %s, want false after %s", changed, took, pause)
	}
	attempt()
	ctx, cancel := context.WithTimeout(t.Context(), poll.Limit)
	defer cancel()
	changed := make(chan bool, 1)
	go func() { changed <- m.awaitRetry(ctx, w, time.Hour) }()
	if err := refused.Close(); err != nil {
		t.Fatal(err)
	}
	create()
	if !<-changed {
		t.Errorf("pause of an hour with another map: not ended within %s, want an end at once", poll.Limit)
	}
}
