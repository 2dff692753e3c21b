package kmap

import (
	"cmp"
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
	owners   []uint32 // whose pins are accepted, besides root's and this process's user's
	interval time.Duration
	current  uint32
	asked    bool
	gone     bool   // that there is no map has been reported
	last     string // text of the error reported last

	// Of a map by name or id, which nothing but this process may hold: see usage.go.
	usage    usage         // of the current map
	letGo    uint32        // map that was reported as gone and may still be there, 0: none
	letGoAt  time.Time     // when
	freeTime time.Duration // that the kernel has to free it
}

// NewWatcher returns a Watcher that asks at the given interval (at least 10 ms). It
// accepts the pins that [Resolve] accepts.
func NewWatcher(ref Ref, interval time.Duration, pinOwners ...uint32) *Watcher {
	return &Watcher{ref: ref, owners: pinOwners, interval: max(interval, 10*time.Millisecond), freeTime: freeTime}
}

// Next waits for the next change. The first one, and the first after Forget, is that the map has appeared
// or, with the ID 0, that there is none. An error
// other than ctx's (no privilege, an ambiguous name) is returned once, however long it
// lasts; the caller reports it and calls Next again. A map by name or id that programs have
// used is reported as gone when none does any more and no pin holds it, and the caller must let
// go of it: one that is still there some seconds later appears again.
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
func (w *Watcher) Forget() { w.current, w.letGo = 0, 0 }

// poll asks once. The zero Event says that nothing changed.
func (w *Watcher) poll() (Event, error) {
	m, err := resolve(w.ref, cmp.Or(w.current, w.letGo), w.owners)
	if errors.Is(err, ErrNotFound) {
		was := w.current
		w.Forget()
		if w.gone {
			return Event{}, nil
		}
		w.gone = true
		return Event{Kind: Gone, ID: was}, nil
	}
	if err != nil {
		return Event{}, err
	}
	info, err := infoOf(m.FD())
	if err != nil {
		return Event{}, errors.Join(err, m.Close())
	}
	now := time.Now()
	switch info.id {
	case w.current:
		if w.ref.PinPath == "" && w.usage.left(now) {
			w.current, w.letGo, w.letGoAt, w.gone = 0, info.id, now, true
			return Event{Kind: Gone, ID: info.id}, m.Close()
		}
		return Event{}, m.Close()
	case w.letGo:
		if !w.takeAgain(now) {
			return Event{}, m.Close()
		}
	}
	e := Event{Kind: Replaced, Map: m, ID: info.id}
	if w.current == 0 {
		e.Kind = Appeared
	}
	w.current, w.letGo, w.usage, w.gone = info.id, 0, usage{id: info.id}, false
	return e, nil
}

// takeAgain reports whether somebody else holds the map that was let go: it is in use
// again, or there although it could have been freed.
func (w *Watcher) takeAgain(now time.Time) bool {
	programs, pinned, err := usersOf(w.letGo)
	return err == nil && (len(programs) > 0 || pinned) || now.Sub(w.letGoAt) >= w.freeTime
}
