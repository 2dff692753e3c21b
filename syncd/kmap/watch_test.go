package kmap

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The watcher reports an absent pin as gone. It then returns an error for a pin that is refused. When
// that pin is removed, the watcher reports it as gone again, so that the caller drops the error.
func TestWatchRefusedPinDisappears(t *testing.T) {
	path := filepath.Join(bpffs(t), "map")
	w := NewWatcher(Ref{PinPath: path}, 10*time.Millisecond)
	expectEvent(t, w, Gone, 0)
	if err := os.Symlink("elsewhere", path); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Next(t.Context()); !errors.Is(err, ErrPinRefused) {
		t.Fatalf("symbolic link: got error %v, want ErrPinRefused", err)
	}
	expectNoEvent(t, w)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	expectEvent(t, w, Gone, 0)
	expectNoEvent(t, w)
}

// While this process has no free file descriptor, the watcher keeps the current map.
func TestWatchWithoutFreeDescriptors(t *testing.T) {
	path := filepath.Join(bpffs(t), "map")
	w := NewWatcher(Ref{PinPath: path}, 10*time.Millisecond)
	m := newKernelMap(t, namedSpec("pinned"))
	if err := m.Pin(path); err != nil {
		t.Fatal(err)
	}
	expectEvent(t, w, Appeared, idOf(t, m))
	withoutDescriptors(t, func() { expectNoEvent(t, w) })
	expectNoEvent(t, w)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	expectEvent(t, w, Gone, idOf(t, m))
}

// withoutDescriptors calls fn while this process has no free file descriptor.
func withoutDescriptors(t *testing.T, fn func()) {
	t.Helper()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
	}()
	fn()
}
