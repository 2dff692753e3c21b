package kmap

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
)

// EventKind says what became of a watched reference.
type EventKind uint8

// The kinds of events.
const (
	Appeared EventKind = iota + 1 // there was no map, now there is
	Replaced                      // the reference now means another map
	Gone                          // there is no map any more
)

// String returns the kind in lower case.
func (k EventKind) String() string {
	switch k {
	case Appeared:
		return "appeared"
	case Replaced:
		return "replaced"
	case Gone:
		return "gone"
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// Event is a change of the map that a reference means.
type Event struct {
	Kind EventKind
	// Map is the map now meant, which the receiver closes; nil for Gone.
	Map *ebpf.Map
	// ID is the map's id; for Gone that of the map that was.
	ID uint32
}

// Watcher follows the map that a reference means, by asking again and again: the
// kernel announces neither maps nor pins. It is used by one goroutine.
type Watcher struct {
	ref      Ref
	interval time.Duration
	current  uint32
	asked    bool
	last     string // text of the error reported last
}

// NewWatcher returns a Watcher that asks at the given interval (at least 10 ms).
func NewWatcher(ref Ref, interval time.Duration) *Watcher {
	return &Watcher{ref: ref, interval: max(interval, 10*time.Millisecond)}
}

// Next waits for the next change, beginning with the map's first appearance. An error
// other than ctx's (no privilege, an ambiguous name) is returned once, however long it
// lasts; the caller reports it and calls Next again. A map that this process holds by
// name or id is not seen to go: it stays for as long as it is held.
func (w *Watcher) Next(ctx context.Context) (Event, error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	if w.asked {
		timer.Reset(w.interval)
	}
	for {
		select {
		case <-ctx.Done():
			return Event{}, ctx.Err()
		case <-timer.C:
		}
		w.asked = true
		e, err := w.poll()
		if err != nil && err.Error() != w.last {
			w.last = err.Error()
			return Event{}, err
		}
		if err == nil {
			w.last = ""
		}
		if e.Kind != 0 {
			return e, nil
		}
		timer.Reset(w.interval)
	}
}

// Forget has Next report the map that is there as if it had just appeared: for a
// caller that could not take it and wants to try again.
func (w *Watcher) Forget() { w.current = 0 }

// poll asks once. The zero Event says that nothing changed.
func (w *Watcher) poll() (Event, error) {
	m, err := resolve(w.ref, w.current)
	if errors.Is(err, ErrNotFound) {
		was := w.current
		w.current = 0
		if was == 0 {
			return Event{}, nil
		}
		return Event{Kind: Gone, ID: was}, nil
	}
	if err != nil {
		return Event{}, err
	}
	info, err := infoOf(m.FD())
	if err != nil {
		return Event{}, errors.Join(err, m.Close())
	}
	if info.id == w.current {
		return Event{}, m.Close()
	}
	e := Event{Kind: Replaced, Map: m, ID: info.id}
	if w.current == 0 {
		e.Kind = Appeared
	}
	w.current = info.id
	return e, nil
}
