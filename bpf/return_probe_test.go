package bpf

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// countedLink is a link whose Info returns the number of its calls, or err.
type countedLink struct {
	link.Link
	calls link.ID
	err   error
}

func (l *countedLink) Info() (*link.Info, error) {
	l.calls++
	return &link.Info{ID: l.calls}, l.err
}

// lockByOther replaces the list of trace events by a file of the test, and locks it like another process until unlock.
func lockByOther(t *testing.T) (unlock func()) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kprobe_events")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	former := eventsPath
	eventsPath = func() string { return path }
	t.Cleanup(func() { eventsPath = former })
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	return func() { _ = unix.Flock(int(f.Fd()), unix.LOCK_UN) }
}

// TestInfoDoesNotWaitForTheLock: while another process has the lock of the trace events, Info returns the last result
// until that is too old.
func TestInfoDoesNotWaitForTheLock(t *testing.T) {
	unlock := lockByOther(t)
	synctest.Test(t, func(t *testing.T) {
		fake := &countedLink{}
		l := newProbeLink(fake)
		began := time.Now()
		want := func(when string, call link.ID) {
			t.Helper()
			if info, err := l.Info(); err != nil || info.ID != call {
				t.Errorf("result %s: got %v, error %v, want that of call %d", when, info, err, call)
			}
		}
		want("while another process has the lock", 1)
		time.Sleep(infoLimit - time.Millisecond)
		want("before the last one is too old", 1)
		if waited := time.Since(began); waited != infoLimit-time.Millisecond {
			t.Errorf("time of two calls and a pause: got %s, want that of the pause, %s", waited, infoLimit-time.Millisecond)
		}
		time.Sleep(time.Millisecond)
		want("after the last one is too old", 2)
		want("while that is new", 2)
		unlock()
		want("without another process", 3)
		want("without another process, again", 4)
	})
}

// TestInfoAfterErrors: without an earlier result, Info reads although another process has the lock, and an error
// replaces no result.
func TestInfoAfterErrors(t *testing.T) {
	lockByOther(t)
	fake := &countedLink{err: unix.EIO}
	l := newProbeLink(fake)
	if _, err := l.Info(); !errors.Is(err, unix.EIO) {
		t.Errorf("first result: got error %v, want %v", err, unix.EIO)
	}
	fake.err = nil
	if info, err := l.Info(); err != nil || info.ID != 3 {
		t.Errorf("result after errors: got %v, error %v, want that of call 3", info, err)
	}
	fake.err = unix.EIO
	if info, err := l.Info(); err != nil || info.ID != 3 {
		t.Errorf("result while another process has the lock: got %v, error %v, want that of call 3", info, err)
	}
}
