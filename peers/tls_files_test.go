package peers

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/internal/testcert"
)

// TestTruncatedCAFileIsNotUsed verifies that the former file and all connections stay in use.
func TestTruncatedCAFileIsNotUsed(t *testing.T) {
	t.Parallel()
	a, b := makeCA(t, "a", nil, nil), makeCA(t, "b", nil, nil)
	cas := append(bytes.Clone(a.pem), b.pem...)
	own, _ := a.issue(t, "lb1", cas)
	other, _ := b.issue(t, "lb2", cas)
	s := load(t, own, "lb1")
	if err := callServer(t, s, other, "lb2"); err != nil {
		t.Fatal(err)
	}
	write(t, own.CAFile, cas[:len(cas)-40])
	s.expireFileCheck()
	s.Reverify(time.Now())
	if st := s.Stats(); st.Reloads != 0 || st.Dropped[ReasonUnknownCA] != 0 {
		t.Errorf("reloads and dropped connections: got %d and %v, want none", st.Reloads, st.Dropped)
	}
}

// TestIrregularTLSFilesAreRefused verifies that files that would block or are too large are refused at
// once.
func TestIrregularTLSFilesAreRefused(t *testing.T) {
	t.Parallel()
	pipe, long := tempFile(t), tempFile(t)
	if err := os.Remove(pipe); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(long, maxTLSFile+1); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{pipe: "not a regular file", long: "at most", t.TempDir(): "not a regular file", long + ".none": "no such file"} {
		if _, err := readFile(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("readFile(%s): got error %v, want it to contain %q", path, err, want)
		}
	}
	if err := os.Truncate(long, maxTLSFile); err != nil {
		t.Fatal(err)
	}
	if data, err := readFile(long); err != nil || len(data) != maxTLSFile {
		t.Errorf("readFile: got %d bytes, error %v, want %d and nil", len(data), err, maxTLSFile)
	}
}

// TestWorldWritableTLSFilesAreRefused verifies that files that other users can write are refused,
// because a writer could change the trust settings.
func TestWorldWritableTLSFilesAreRefused(t *testing.T) {
	t.Parallel()
	ca := makeCA(t, "ca", nil, nil)
	own, _ := ca.issue(t, "lb1", ca.pem)
	o := optionsOf(own, "lb1", &logBuffer{})
	o.CRLFile = tempFile(t, ca.crl(t, nil))
	for _, path := range o.paths() {
		if err := os.Chmod(path, 0o602); err != nil {
			t.Fatal(err)
		}
		if _, err := NewCredentials(o); err == nil || !strings.Contains(err.Error(), path+" can be written by others") {
			t.Errorf("NewCredentials: got %v, want an error that contains %s", err, path)
		}
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestReloadFailureIsLoggedOnce verifies that each error is logged once. Even an error that changes
// with each check is logged less often than the files are checked.
func TestReloadFailureIsLoggedOnce(t *testing.T) {
	t.Parallel()
	s := load(t, issue(t, authority(t), "lb1", testcert.Options{}), "lb1")
	began := time.Now()
	failed := func(after time.Duration, text string, want uint64) {
		t.Helper()
		s.mu.Lock()
		s.noteReloadFailure(errors.New(text), began.Add(after))
		got := s.stats.ReloadErrors
		s.mu.Unlock()
		if got != want {
			t.Errorf("errors: got %d after %v, want %d", got, after, want)
		}
	}
	failed(0, "one", 0)
	failed(time.Second, "two", 0)
	failed(partialWriteTime, "three", 1)
	failed(partialWriteTime+time.Second, "three", 1)
	failed(partialWriteTime+2*time.Second, "four", 1)
	failed(partialWriteTime+logEvery, "five", 2)
	failed(partialWriteTime+time.Hour, "five", 2)
}

// TestStampsReliable verifies that a file is reread while its time stamp is recent, but not for a
// time stamp in the future.
func TestStampsReliable(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for age, want := range map[time.Duration]bool{time.Second: false, 2 * time.Second: true, 0: false, -time.Second: false, -time.Hour: true} {
		var stamps fileStamps
		for i := range stamps {
			stamps[i].mtime = now.Add(-age)
		}
		if got := stampsReliable(stamps, now); got != want {
			t.Errorf("stampsReliable for files of age %v: got %v, want %v", age, got, want)
		}
	}
}

// TestInvalidTLSFilesAreRetriedSlowly verifies the retry interval after the error is logged and while
// the files do not change.
func TestInvalidTLSFilesAreRetriedSlowly(t *testing.T) {
	t.Parallel()
	pair := issue(t, authority(t), "lb1", testcert.Options{})
	s := load(t, pair, "lb1")
	write(t, pair.CAFile, []byte("none"))
	s.expireFileCheck()
	s.currentState()
	look := func(logged string, last time.Duration) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		old := time.Now().Add(-time.Hour)
		for i := range s.failure.stamps {
			s.failure.stamps[i].mtime = old
		}
		for _, path := range s.opts.Load().paths() {
			if path != "" {
				if err := os.Chtimes(path, old, old); err != nil {
					t.Fatal(err)
				}
			}
		}
		s.failure.stamps = s.opts.Load().stampFiles()
		before := time.Now().Add(-last)
		s.lastCheck, s.failure.read, s.failure.logged = time.Time{}, before, logged
		s.mu.Unlock()
		s.currentState()
		s.mu.Lock()
		return !s.failure.read.Equal(before)
	}
	for _, c := range []struct {
		logged string
		last   time.Duration
		want   bool
	}{{"", time.Second, true}, {"none", time.Second, false}, {"none", reloadRetryEvery, true}} {
		if got := look(c.logged, c.last); got != c.want {
			t.Errorf("error %q, %v after the last read: reread: got %v, want %v", c.logged, c.last, got, c.want)
		}
	}
}

// TestReverifyDuringAReload verifies that a check that started before a reload keeps the connections
// that the new files allow.
func TestReverifyDuringAReload(t *testing.T) {
	t.Parallel()
	ca, next := authority(t), authority(t)
	pair := trusting(t, issue(t, ca, "lb2", testcert.Options{}), ca)
	s := load(t, pair, "lb2")
	addr := serve(t, s)
	client := load(t, trusting(t, issue(t, next, "lb1", testcert.Options{}), ca, next), "lb1")
	s.reverifyMu.Lock() // simulates another running check
	done, stub := make(chan struct{}), dial(t, client, addr, "lb2")
	go func() { defer close(done); s.Reverify(time.Now()) }()
	poll.Eventually(t, "Reverify waits for the other check", func() bool {
		return slices.ContainsFunc(stacksOf("TestReverifyDuringAReload.func", "testing.tRunner"), func(stack string) bool {
			return strings.Contains(stack, "[sync.Mutex.Lock") && strings.Contains(stack, "Credentials).Reverify")
		})
	})
	write(t, pair.CAFile, read(t, client.opts.Load().CAFile))
	s.expireFileCheck()
	if err := call(t, stub, "lb1"); err != nil {
		t.Fatal(err)
	}
	s.reverifyMu.Unlock()
	<-done
	if st := s.Stats(); st.Dropped[ReasonUnknownCA] > 0 {
		t.Errorf("dropped connections: got %v, want none", st.Dropped)
	}
}

// TestNewKeyDoesNotEncrypt verifies that a new key that is not the first never encrypts, because other
// nodes may not have it. A key that stays does not encrypt either, if no key is removed before it.
func TestNewKeyDoesNotEncrypt(t *testing.T) {
	t.Parallel()
	key := func(b byte) []byte { return bytes.Repeat([]byte{b}, 32) }
	a := start(t, "a", keys(string(key('A')), string(key('X'))))
	stop, used := make(chan struct{}), make(chan byte, 1)
	go func() {
		for {
			select {
			case <-stop:
				used <- 'A'
				return
			default:
			}
			if k := a.keyring.GetPrimaryKey(); k[0] != 'A' {
				used <- k[0]
				return
			}
		}
	}()
	for range 2000 {
		for _, list := range []string{"AB", "AX", "AXY", "AX", "A", "AYX"} {
			var keys [][]byte
			for i := range list {
				keys = append(keys, key(list[i]))
			}
			if err := a.SetGossipKeys(keys); err != nil {
				t.Fatal(err)
			}
			ring := ""
			for _, k := range a.keyring.GetKeys() {
				ring += string(k[:1])
			}
			if ring != list {
				t.Fatalf("keyring: got %s, want %s", ring, list)
			}
		}
	}
	close(stop)
	if k := <-used; k != 'A' {
		t.Errorf("key %c: got used for encryption, want unused", k)
	}
}
