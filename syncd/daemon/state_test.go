package daemon

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"mapsync/syncd/table"
)

func stateIn(t *testing.T, dir string) (*state, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	return openState(dir, "n", slog.New(slog.NewTextHandler(&log, nil))), &log
}

// Peers treat the higher incarnation as the later one. Incarnations increase even if the wall
// clock was set back.
func TestIncarnationsGrow(t *testing.T) {
	dir := t.TempDir()
	begin := func(now uint64) uint64 {
		s, _ := stateIn(t, dir)
		return s.nextIncarnation(now, time.Hour)
	}
	for _, c := range []struct{ now, want uint64 }{{1000, 1000}, {400, 1001}, {1001, 1002}, {5000, 5000}} {
		if got := begin(c.now); got != c.want {
			t.Errorf("next incarnation: got %d at %d, want %d", got, c.now, c.want)
		}
	}
	// Changes of map identities and of incarnations do not overwrite each other.
	s, _ := stateIn(t, dir)
	s.setIdentity("ct", mapIdentity{ID: 7}, &table.Unheld{})
	s.setIdentity("other", mapIdentity{ID: 8}, &table.Unheld{})
	s.removeIdentity("other")
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if got := begin(0); got != 5001 {
		t.Errorf("incarnation after a map identity was saved: got %d, want 5001", got)
	}
	// A last incarnation that is too far ahead of the clock is ignored, because peers refuse it.
	if got := begin(uint64(10 * time.Hour)); got != uint64(10*time.Hour) {
		t.Errorf("incarnation at 10 h: got %d, want 10 h", got)
	}
	if got := begin(uint64(8 * time.Hour)); got != uint64(8*time.Hour) {
		t.Errorf("incarnation after the clock was set back by two hours: got %d, want 8 h", got)
	}
	s, log := stateIn(t, dir)
	if !s.sameMap("ct", mapIdentity{ID: 7}) || s.sameMap("other", mapIdentity{ID: 8}) {
		t.Error("saved map identities: want ct only")
	}
	if st := s.stats(); st.ReadFailures != 0 || st.WriteErrors != 0 || log.Len() != 0 {
		t.Errorf("state statistics: got %+v, want no errors and an empty log\n%s", st, log)
	}
}

// The daemon starts although the state file cannot be read.
func TestStateThatCannotBeRead(t *testing.T) {
	whole := `{"boot_id":"x","incarnation":7,"kernel_maps":{"ct":{"id":7}}}`
	for name, prepare := range map[string]func(path string) error{
		"empty":   func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"torn":    func(path string) error { return os.WriteFile(path, []byte(whole[:len(whole)-20]), 0o600) },
		"zeros":   func(path string) error { return os.WriteFile(path, make([]byte, 4096), 0o600) },
		"large":   func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte(" "), maxStateSize+1), 0o600) },
		"pipe":    func(path string) error { return unix.Mkfifo(path, 0o600) },
		"symlink": func(path string) error { return os.Symlink("/etc/passwd", path) },
		"damaged": func(path string) error {
			return os.WriteFile(path, bytes.Replace(withChecksum([]byte(whole)), []byte(`"id":7`), []byte(`"id":5`), 1), 0o600)
		},
		"no checksum in its field": func(path string) error { return os.WriteFile(path, []byte(`{"checksum":"",`+whole[1:]), 0o600) },
		"moved checksum": func(path string) error {
			return os.WriteFile(path, []byte(whole[:len(whole)-1]+`,"checksum":"0123456789abcdef"}`), 0o600)
		},
		"newer": func(path string) error {
			return os.WriteFile(path, []byte(`{"version":2,"boot_id":7,"incarnation":"900","kernel_maps":[]}`), 0o600)
		},
		"negative version": func(path string) error {
			return os.WriteFile(path, []byte(`{"version":-1,`+whole[1:]), 0o600)
		},
		"version is a string": func(path string) error {
			return os.WriteFile(path, []byte(`{"version":"1",`+whole[1:]), 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "n.state.json")
			if err := prepare(path); err != nil {
				t.Fatal(err)
			}
			s, log := stateIn(t, filepath.Dir(path))
			if got := s.nextIncarnation(1000, time.Hour); got != 1000 {
				t.Errorf("incarnation without a state: got %d, want 1000", got)
			}
			if st := s.stats(); st.ReadFailures != 1 || !st.Saved || strings.Count(log.String(), "level=ERROR") != 1 {
				t.Errorf("state statistics: got %+v, want one read failure, saved, and one error in the log\n%s", st, log)
			}
			if s, _ = stateIn(t, filepath.Dir(path)); s.nextIncarnation(0, time.Hour) != 1001 {
				t.Error("state file: want it replaced by a valid one")
			}
		})
	}
	if data, err := os.ReadFile("/etc/passwd"); err != nil || !bytes.Contains(data, []byte("root:")) {
		t.Errorf("target of the symbolic link: got it changed, want it unchanged: %v", err)
	}
}

// TestStateVersions checks that a state without a version, of the previous release, is read and
// saved with the current version, and that the warning about a newer state names the remedy.
func TestStateVersions(t *testing.T) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	rest := fmt.Sprintf(`"boot_id":%q,"incarnation":1000,"kernel_maps":{"ct":{"id":7,"name":"","type":"","key_size":0,"value_size":0,"max_entries":0}}}`,
		strings.TrimSpace(string(boot)))
	for name, c := range map[string]struct {
		text string
		read bool
	}{
		"none":    {"{" + rest, true},
		"zero":    {`{"version":0,` + rest, true},
		"checked": {string(withChecksum([]byte(`{"version":1,` + rest))), true},
		"current": {`{"version":1,` + rest, true},
		"next":    {`{"version":3,` + rest, false},
		"highest": {`{"version":9223372036854775807,` + rest, false},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "n.state.json")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		s, log := stateIn(t, dir)
		if got := s.sameMap("ct", mapIdentity{ID: 7}); got != c.read || (s.stats().ReadFailures == 0) != c.read || (log.Len() == 0) != c.read {
			t.Errorf("version %s: map identity found: got %t, %d read failures, want %t\n%s", name, got, s.stats().ReadFailures, c.read, log)
		}
		if remedy := "drain a node before it returns to an earlier release"; strings.Contains(log.String(), remedy) == c.read {
			t.Errorf("version %s: got log %q, want %q in it: %t", name, log, remedy, !c.read)
		}
		if got := s.nextIncarnation(500, time.Hour); (got == 1001) != c.read {
			t.Errorf("version %s: next incarnation: got %d, want 1001: %t", name, got, c.read)
		}
		data, err := os.ReadFile(path)
		if err != nil || !bytes.HasPrefix(data, []byte(checksumField)) || !bytes.Contains(data, []byte(`"version":1,`)) {
			t.Errorf("version %s: saved state: got %s, %v, want a checksum and version 1", name, data, err)
		}
	}
}

// mounted returns a directory with its own file system.
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

// A full or read-only file system causes a warning. When it is writable again, the state is
// saved.
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
			t.Errorf("%s: got %+v, want the expected saved and failures", when, st)
		}
		if n := strings.Count(log.String(), "failed to save the state"); n != warnings {
			t.Errorf("%s: got %d warnings, want another number\n%s", when, n, log)
		}
	}
	s.nextIncarnation(1000, time.Hour)
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
	expect("writable again", true, 3, 2)
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("files in the state directory: got %v, error %v, want one", files, err)
	}
	if again, _ := stateIn(t, dir); again.nextIncarnation(0, time.Hour) != 1001 {
		t.Error("state: want it saved")
	}
}

// TestIdentityLeavesAFullDisk: an identity that no longer holds leaves the file although the disk is full.
func TestIdentityLeavesAFullDisk(t *testing.T) {
	held, more := table.Unheld{Seed: 1, Hashes: make([]byte, 8)}, table.Unheld{Seed: 1, Hashes: make([]byte, 16)}
	for name, change := range map[string]func(*state){
		"removed":          func(s *state) { s.removeIdentity("ct") },
		"replaced":         func(s *state) { s.setIdentity("ct", mapIdentity{ID: 8}, &held) },
		"more unheld keys": func(s *state) { s.setIdentity("ct", mapIdentity{ID: 7}, &more) },
	} {
		dir := mounted(t, "size=64k")
		s, _ := stateIn(t, dir)
		s.nextIncarnation(1000, time.Hour)
		s.setIdentity("ct", mapIdentity{ID: 7}, &held)
		s.saveChanges()
		hog, err := os.Create(filepath.Join(dir, "hog"))
		if err != nil {
			t.Fatal(err)
		}
		for err == nil {
			_, err = hog.Write(make([]byte, 4096))
		}
		if err := hog.Close(); err != nil {
			t.Fatal(err)
		}
		s.nextIncarnation(2000, time.Hour)
		if again, _ := stateIn(t, dir); s.stats().Saved || !again.sameMap("ct", mapIdentity{ID: 7}) || len(again.unheldKeys("ct").Hashes) != 8 {
			t.Fatalf("%s: full disk: got saved %t, want the former file with its identity", name, s.stats().Saved)
		}
		change(s)
		s.saveChanges()
		again, _ := stateIn(t, dir)
		if !s.stats().Saved || again.sameMap("ct", mapIdentity{ID: 7}) && len(again.unheldKeys("ct").Hashes) == 8 {
			t.Errorf("%s: got saved %t, identity still in the file: %t, want it saved without it", name, s.stats().Saved, again.sameMap("ct", mapIdentity{ID: 7}))
		}
	}
}

// TestFormerIncarnation is the one that has replicated last: a start that fails does not count.
func TestFormerIncarnation(t *testing.T) {
	dir := t.TempDir()
	begin := func(now, want uint64) *state {
		s, _ := stateIn(t, dir)
		if s.nextIncarnation(now, time.Hour); s.former != want {
			t.Errorf("former incarnation at %d: got %d, want %d", now, s.former, want)
		}
		return s
	}
	begin(1000, 0)
	s := begin(2000, 1000) // as after a release that does not store which one has replicated
	s.noteReplicated()
	s.saveChanges()
	begin(3000, 2000)
	begin(4000, 2000)
}

// A temporary file that is a symbolic link is replaced, and its target remains unchanged.
func TestStateFollowsNoSymlinks(t *testing.T) {
	dir := t.TempDir()
	precious := filepath.Join(dir, "precious")
	if err := os.WriteFile(precious, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(precious, filepath.Join(dir, "n.state.json.new")); err != nil {
		t.Fatal(err)
	}
	s, _ := stateIn(t, dir)
	s.nextIncarnation(1000, time.Hour)
	if data, err := os.ReadFile(precious); err != nil || string(data) != "mine" {
		t.Errorf("target of the symbolic link: got %q, error %v, want \"mine\"", data, err)
	}
	if !s.stats().Saved {
		t.Error("state: got not saved, want saved")
	}
}

func TestControlPathThatIsNotASocket(t *testing.T) {
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
			t.Errorf("listen on %s: got error %v, want \"is not a socket\"", path, err)
		}
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("path %s: got it removed, want it kept: %v", path, err)
		}
	}
	// listenControl takes over a stale socket.
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
