package peers

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"mapsync/internal/testcert"
)

// TestTornCAFile: the former file stays in use, and with it all peers.
func TestTornCAFile(t *testing.T) {
	t.Parallel()
	a, b := makeCA(t, "a", nil, nil), makeCA(t, "b", nil, nil)
	cas := append(bytes.Clone(a.pem), b.pem...)
	own, _ := a.issue(t, "lb1", cas)
	other, _ := b.issue(t, "lb2", cas)
	s := load(t, own, "lb1")
	if err := calls(t, s, other, "lb2"); err != nil {
		t.Fatal(err)
	}
	write(t, own.CAFile, cas[:len(cas)-40])
	s.lookAgain()
	s.Recheck(time.Now())
	if st := s.Stats(); st.Reloads != 0 || st.Dropped[ReasonUnknownCA] != 0 {
		t.Errorf("%d reloads, %v dropped, want none", st.Reloads, st.Dropped)
	}
}

// TestFilesThatAreNone: what blocks or is too long is refused at once.
func TestFilesThatAreNone(t *testing.T) {
	t.Parallel()
	pipe, long := fileOf(t), fileOf(t)
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
			t.Errorf("%s: %v, want %q in it", path, err, want)
		}
	}
	if err := os.Truncate(long, maxTLSFile); err != nil {
		t.Fatal(err)
	}
	if data, err := readFile(long); err != nil || len(data) != maxTLSFile {
		t.Errorf("%d bytes, %v", len(data), err)
	}
}

// TestFilesThatOthersCanWrite: who writes them decides who is trusted.
func TestFilesThatOthersCanWrite(t *testing.T) {
	t.Parallel()
	ca := makeCA(t, "ca", nil, nil)
	own, _ := ca.issue(t, "lb1", ca.pem)
	o := optionsOf(own, "lb1", &logBook{})
	o.CRLFile = fileOf(t, ca.list(t, nil))
	for _, path := range o.paths() {
		if err := os.Chmod(path, 0o602); err != nil {
			t.Fatal(err)
		}
		if _, err := NewCredentials(o); err == nil || !strings.Contains(err.Error(), path+" can be written by others") {
			t.Errorf("%v, want an error that names %s", err, path)
		}
		if err := os.Chmod(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFailuresAreLoggedOnce: also where the error is another one at each look, and never as often as
// files are looked at.
func TestFailuresAreLoggedOnce(t *testing.T) {
	t.Parallel()
	s := load(t, issue(t, authority(t), "lb1", testcert.Options{}), "lb1")
	began := time.Now()
	failed := func(after time.Duration, text string, want uint64) {
		t.Helper()
		s.mu.Lock()
		s.keep(errors.New(text), began.Add(after))
		got := s.stats.ReloadErrors
		s.mu.Unlock()
		if got != want {
			t.Errorf("%d errors after %v, want %d", got, after, want)
		}
	}
	failed(0, "one", 0)
	failed(time.Second, "two", 0)
	failed(writeTime, "three", 1)
	failed(writeTime+time.Second, "three", 1)
	failed(writeTime+2*time.Second, "four", 1)
	failed(writeTime+logEvery, "five", 2)
	failed(writeTime+time.Hour, "five", 2)
}

// TestSettled: a file is read again while its time stamp is young, but not for one in the future.
func TestSettled(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for age, want := range map[time.Duration]bool{time.Second: false, 2 * time.Second: true, 0: false, -time.Second: false, -time.Hour: true} {
		var stamps fileStamps
		for i := range stamps {
			stamps[i].mtime = now.Add(-age)
		}
		if got := settled(stamps, now); got != want {
			t.Errorf("files %v old are settled: %v, want %v", age, got, want)
		}
	}
}

// TestUselessFilesAreReadSeldom: once the error is logged, and as long as nothing changes.
func TestUselessFilesAreReadSeldom(t *testing.T) {
	t.Parallel()
	pair := issue(t, authority(t), "lb1", testcert.Options{})
	s := load(t, pair, "lb1")
	write(t, pair.CAFile, []byte("none"))
	s.lookAgain()
	s.material()
	look := func(told string, last time.Duration) bool {
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
		s.looked, s.failure.read, s.failure.told = time.Time{}, before, told
		s.mu.Unlock()
		s.material()
		s.mu.Lock()
		return !s.failure.read.Equal(before)
	}
	for _, c := range []struct {
		told string
		last time.Duration
		want bool
	}{{"", time.Second, true}, {"none", time.Second, false}, {"none", retryEvery, true}} {
		if got := look(c.told, c.last); got != c.want {
			t.Errorf("logged error %q, last reading %v old: reread is %v, want %v", c.told, c.last, got, c.want)
		}
	}
}

// TestRecheckDuringAReload: a check that began before it keeps what it allows.
func TestRecheckDuringAReload(t *testing.T) {
	t.Parallel()
	ca, next := authority(t), authority(t)
	pair := trusting(t, issue(t, ca, "lb2", testcert.Options{}), ca)
	s := load(t, pair, "lb2")
	addr := serve(t, s)
	client := load(t, trusting(t, issue(t, next, "lb1", testcert.Options{}), ca, next), "lb1")
	s.recheckMu.Lock() // another check is under way
	done, stub := make(chan struct{}), dial(t, client, addr, "lb2")
	go func() { defer close(done); s.Recheck(time.Now()) }()
	time.Sleep(100 * time.Millisecond) // it waits for that now; if it does not yet, it has no former material
	write(t, pair.CAFile, read(t, client.opts.Load().CAFile))
	s.lookAgain()
	if err := call(t, stub, "lb1"); err != nil {
		t.Fatal(err)
	}
	s.recheckMu.Unlock()
	<-done
	if st := s.Stats(); st.Dropped[ReasonUnknownCA] > 0 {
		t.Errorf("a connection that the files in use allow was ended: %v", st.Dropped)
	}
}

// TestNewKeyDoesNotEncrypt: one that is not the first does so at no time, as other nodes may not have it.
// Nor does one that stays, if no key is removed before it.
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
			if k := a.ring.GetPrimaryKey(); k[0] != 'A' {
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
			for _, k := range a.ring.GetKeys() {
				ring += string(k[:1])
			}
			if ring != list {
				t.Fatalf("the ring is %s, want %s", ring, list)
			}
		}
	}
	close(stop)
	if k := <-used; k != 'A' {
		t.Errorf("key %c encrypted", k)
	}
}
