package kmap

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// EventKind is the kind of change of a watched reference.
type EventKind uint8

// The kinds of events.
const (
	Appeared EventKind = iota + 1 // there was no map, now there is one
	Replaced                      // the reference now refers to another map
	Gone                          // the map no longer exists
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

// Event is a change of the map that a reference refers to.
type Event struct {
	Kind EventKind
	// Map is the current map, which the receiver closes. It is nil for Gone.
	Map *ebpf.Map
	// ID is the map's ID. For Gone it is the ID of the previous map.
	ID uint32
}

// Watcher follows the map that a reference refers to. It polls, because the kernel does not
// announce maps or pins. Only one goroutine may use it.
type Watcher struct {
	ref          Ref
	pinOwners    []uint32 // users whose pins are accepted, besides root and this process's user
	interval     time.Duration
	current      uint32
	pin          pinIdentity // of the pin of the current map, taken before the map was opened
	polled       bool
	goneReported bool   // the absence of a map has been reported
	lastError    string // text of the last reported error

	// For a map by name or ID, which this process may be the only one to hold: see usage.go.
	usage      usage         // of the current map
	releasedID uint32        // map that was reported as gone and may still exist, 0: none
	releasedAt time.Time     // time of that report
	freeGrace  time.Duration // time that the kernel may need to free it
}

// NewWatcher returns a Watcher that polls at the given interval (at least 10 ms). It accepts the
// same pins as [Resolve].
func NewWatcher(ref Ref, interval time.Duration, pinOwners ...uint32) *Watcher {
	return &Watcher{ref: ref, pinOwners: pinOwners, interval: max(interval, 10*time.Millisecond), freeGrace: freeGrace}
}

// Next waits for the next change. The first change, and the first after Forget, is that the map has
// appeared or, with ID 0, that it does not exist. Next returns an error other than ctx's (a missing
// privilege, an ambiguous name) once, however long it lasts. The caller reports it and calls Next
// again. Next reports a map that disappears after an error as gone. While there is a current map,
// Next returns no errors about a lack of descriptors or memory of this process.
//
// Next reports a map by name or ID as gone when programs have used it and neither a program nor a
// pin does any more. The caller must then close it. If the map still exists some seconds later, it
// appears again.
func (w *Watcher) Next(ctx context.Context) (Event, error) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	if w.polled {
		timer.Reset(w.interval)
	}
	for {
		select {
		case <-ctx.Done():
			return Event{}, ctx.Err()
		case <-timer.C:
		}
		w.polled = true
		e, err := w.poll()
		if w.current != 0 && exhausted(err) {
			timer.Reset(w.interval)
			continue
		}
		if err != nil && err.Error() != w.lastError {
			w.lastError, w.goneReported = err.Error(), false
			return Event{}, err
		}
		if err == nil {
			w.lastError = ""
		}
		if e.Kind != 0 {
			return e, nil
		}
		timer.Reset(w.interval)
	}
}

// exhausted reports whether an error is a lack of descriptors or memory. The map may be
// unchanged.
func exhausted(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
}

// Forget makes Next report the current map as appeared again, for a caller that could not open it
// and retries.
func (w *Watcher) Forget() { w.current, w.releasedID, w.goneReported = 0, 0, false }

// poll checks the reference once. It returns the zero Event if the map is unchanged.
func (w *Watcher) poll() (Event, error) {
	pin, pinned := identityOf(w.ref.PinPath)
	if w.current != 0 && pinned && pin == w.pin && w.ref.InnerKey == "" {
		return Event{}, nil // opening the pin again costs 30 times as much
	}
	m, err := resolve(w.ref, cmp.Or(w.current, w.releasedID), w.pinOwners)
	if errors.Is(err, ErrNotFound) {
		was, reported := w.current, w.goneReported
		w.current, w.releasedID, w.goneReported = 0, 0, true
		if reported {
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
	now := time.Now()
	w.pin = pin
	switch info.id {
	case w.current:
		// Programs use an inner map through the map of maps only.
		if w.ref.PinPath == "" && w.ref.InnerKey == "" && w.usage.abandoned(now) {
			w.current, w.releasedID, w.releasedAt, w.goneReported = 0, info.id, now, true
			return Event{Kind: Gone, ID: info.id}, m.Close()
		}
		return Event{}, m.Close()
	case w.releasedID:
		if !w.shouldReacquire(now) {
			return Event{}, m.Close()
		}
	}
	e := Event{Kind: Replaced, Map: m, ID: info.id}
	if w.current == 0 {
		e.Kind = Appeared
	}
	w.current, w.releasedID, w.usage, w.goneReported = info.id, 0, usage{id: info.id}, false
	return e, nil
}

// shouldReacquire reports whether another process holds the released map: the map is in use again,
// or it still exists after freeGrace.
func (w *Watcher) shouldReacquire(now time.Time) bool {
	programs, pinned, err := usersOf(w.releasedID)
	return err == nil && (len(programs) > 0 || pinned) || now.Sub(w.releasedAt) >= w.freeGrace
}
