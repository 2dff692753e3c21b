package daemon

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func stateIn(t *testing.T, dir string) (*state, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	return openState(dir, "n", slog.New(slog.NewTextHandler(&log, nil))), &log
}

// Peers take the higher incarnation for the later: it grows also when the wall clock was set back.
func TestIncarnationsGrow(t *testing.T) {
	dir := t.TempDir()
	begin := func(now uint64) uint64 {
		s, _ := stateIn(t, dir)
		return s.begin(now, time.Hour)
	}
	for _, c := range []struct{ now, want uint64 }{{1000, 1000}, {400, 1001}, {1001, 1002}, {5000, 5000}} {
		if got := begin(c.now); got != c.want {
			t.Errorf("incarnation %d at %d, want %d", got, c.now, c.want)
		}
	}
	// What is remembered of maps and what of incarnations do not lose each other.
	s, _ := stateIn(t, dir)
	s.remember("ct", mapIdentity{ID: 7})
	s.remember("other", mapIdentity{ID: 8})
	s.forget("other")
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if got := begin(0); got != 5001 {
		t.Errorf("incarnation %d after a map was remembered, want 5001", got)
	}
	// One from a clock that was too far ahead is dropped: peers refuse it.
	if got := begin(uint64(10 * time.Hour)); got != uint64(10*time.Hour) {
		t.Errorf("incarnation %d", got)
	}
	if got := begin(uint64(8 * time.Hour)); got != uint64(8*time.Hour) {
		t.Errorf("incarnation %d after the clock was set back by two hours", got)
	}
	s, log := stateIn(t, dir)
	if !s.same("ct", mapIdentity{ID: 7}) || s.same("other", mapIdentity{ID: 8}) {
		t.Error("a map was forgotten, or one that was to be forgotten was not")
	}
	if st := s.stats(); st.ReadFailures != 0 || st.WriteErrors != 0 || log.Len() != 0 {
		t.Errorf("%+v\n%s", st, log)
	}
}

// The daemon starts although the file cannot be used.
func TestStateThatCannotBeRead(t *testing.T) {
	whole := `{"boot_id":"x","incarnation":7,"kernel_maps":{"ct":{"id":7}}}`
	for name, prepare := range map[string]func(path string) error{
		"empty":   func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"torn":    func(path string) error { return os.WriteFile(path, []byte(whole[:len(whole)-20]), 0o600) },
		"zeros":   func(path string) error { return os.WriteFile(path, make([]byte, 4096), 0o600) },
		"large":   func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte(" "), maxStateSize+1), 0o600) },
		"pipe":    func(path string) error { return unix.Mkfifo(path, 0o600) },
		"symlink": func(path string) error { return os.Symlink("/etc/passwd", path) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "n.state.json")
			if err := prepare(path); err != nil {
				t.Fatal(err)
			}
			s, log := stateIn(t, filepath.Dir(path))
			if got := s.begin(1000, time.Hour); got != 1000 {
				t.Errorf("incarnation %d", got)
			}
			if st := s.stats(); st.ReadFailures != 1 || !st.Saved || strings.Count(log.String(), "level=WARN") != 1 {
				t.Errorf("%+v\n%s", st, log)
			}
			if s, _ = stateIn(t, filepath.Dir(path)); s.begin(0, time.Hour) != 1001 {
				t.Error("the file was not replaced by a good one")
			}
		})
	}
	if data, err := os.ReadFile("/etc/passwd"); err != nil || !bytes.Contains(data, []byte("root:")) {
		t.Errorf("the file that the link leads to was written: %v", err)
	}
}

// mounted returns a directory with a file system of its own.
func mounted(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("none", dir, "tmpfs", 0, options); err != nil {
		t.Fatalf("mount (needs root): %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// A full or read-only file system is a warning; once it is mended, the state is saved.
func TestStateThatCannotBeSaved(t *testing.T) {
	dir := mounted(t, "size=64k")
	hog := filepath.Join(dir, "hog")
	if err := os.WriteFile(hog, make([]byte, 64<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	readOnly := func(on uintptr) {
		if err := unix.Mount("", dir, "", unix.MS_REMOUNT|on, ""); err != nil {
			t.Fatal(err)
		}
	}
	s, log := stateIn(t, dir)
	expect := func(when string, saved bool, failures uint64, warnings int) {
		t.Helper()
		if st := s.stats(); st.Saved != saved || st.WriteErrors != failures {
			t.Errorf("%s: %+v", when, st)
		}
		if n := strings.Count(log.String(), "failed to save the state"); n != warnings {
			t.Errorf("%s: %d warnings\n%s", when, n, log)
		}
	}
	s.begin(1000, time.Hour)
	expect("full", false, 1, 1)
	s.saveChanges()
	expect("still full", false, 2, 1)
	if err := os.Remove(hog); err != nil {
		t.Fatal(err)
	}
	readOnly(unix.MS_RDONLY)
	s.saveChanges()
	expect("read-only", false, 3, 2)
	readOnly(0)
	s.saveChanges()
	expect("mended", true, 3, 2)
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("%v is left, %v", files, err)
	}
	if again, _ := stateIn(t, dir); again.begin(0, time.Hour) != 1001 {
		t.Error("the state was not saved")
	}
}

// A temporary file that is a link is replaced, and what it leads to is left alone.
func TestStateFollowsNoLinks(t *testing.T) {
	dir := t.TempDir()
	precious := filepath.Join(dir, "precious")
	if err := os.WriteFile(precious, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(precious, filepath.Join(dir, "n.state.json.new")); err != nil {
		t.Fatal(err)
	}
	s, _ := stateIn(t, dir)
	s.begin(1000, time.Hour)
	if data, err := os.ReadFile(precious); err != nil || string(data) != "mine" {
		t.Errorf("%q, %v", data, err)
	}
	if !s.stats().Saved {
		t.Error("the state was not saved")
	}
}

func TestControlPathThatIsNoSocket(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, link, dir} {
		if _, err := listenControl(path); err == nil || !strings.Contains(err.Error(), "is not a socket") {
			t.Errorf("%s: %v", path, err)
		}
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("%s was removed: %v", path, err)
		}
	}
	// A stale socket is taken over.
	stale := filepath.Join(dir, "stale")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: stale}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Close(fd); err != nil {
		t.Fatal(err)
	}
	l, err := listenControl(stale)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}
