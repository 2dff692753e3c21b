package daemon

import (
	"bytes"
	"encoding/binary"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"mapsync/syncd/table"
)

// savedStop returns the stop file of a table with n entries of a peer.
func savedStop(tb testing.TB, n int) *stopFile {
	tb.Helper()
	const at = int64(table.RestoredVersions) + int64(time.Hour)
	tab, err := table.New(table.Options{Self: table.Owner{Node: "n", Incarnation: 1}, KeySize: 8, ValueSize: 8, AdoptVersion: table.RestoredVersions})
	if err != nil {
		tb.Fatal(err)
	}
	f := &stopFile{header: stopHeader{Version: stopFileVersion, Map: mapIdentity{ID: 7, Name: "ct"}}}
	tab.Update(func(tx *table.Tx) {
		peer := tx.Intern(table.Owner{Node: "p", Incarnation: 2})
		for i := range n {
			key := binary.LittleEndian.AppendUint64(nil, uint64(i))
			tx.Remote(&table.Delta{Key: key, Value: key, Version: table.Version(at), Owner: peer}, at, table.RemoteOptions{})
		}
	})
	c := tab.NewCursor(0)
	defer c.Close()
	tab.Update(func(tx *table.Tx) {
		var rec table.Record
		for tx.NextDirty(c, &rec) {
			tx.Applied(rec.Ref, rec.Version, nil)
		}
		f.stop = tx.Stop(1)
	})
	if f.stop.Len() != n {
		tb.Fatalf("entries: got %d, want %d", f.stop.Len(), n)
	}
	return f
}

func encodedStop(tb testing.TB, f *stopFile) []byte {
	tb.Helper()
	data, err := f.encode()
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

// hashed appends the hash to the content of a stop file.
func hashed(data []byte) []byte { return binary.LittleEndian.AppendUint64(data, xxh3.Hash(data)) }

// TestStopFileIsParsed: the file is read as it was written, and each shorter one is refused.
func TestStopFileIsParsed(t *testing.T) {
	f := savedStop(t, 100)
	data := encodedStop(t, f)
	got, err := parseStopFile(data)
	if err != nil {
		t.Fatal(err)
	}
	if got.header.Map != f.header.Map || got.stop.Len() != 100 || !bytes.Equal(got.stop.Entries, f.stop.Entries) || got.stop.Seed != f.stop.Seed {
		t.Errorf("stop file: got %+v, want %+v", got.header, f.header)
	}
	for n := range data {
		if _, err := parseStopFile(data[:n]); !errors.Is(err, errStopFile) {
			t.Fatalf("first %d bytes: got error %v, want errStopFile", n, err)
		}
	}
	body := data[:len(data)-8]
	for name, bad := range map[string][]byte{
		"one more entry":     hashed(append(bytes.Clone(body), make([]byte, table.StopEntrySize)...)),
		"a part of an entry": hashed(append(bytes.Clone(body), 0)),
		"a large header":     hashed(append([]byte(stopMagic), 255, 255, 255, 255)),
		"no header":          hashed(append([]byte(stopMagic), 0, 0, 0, 0)),
		"a newer version":    hashed(bytes.Replace(body, []byte(`"version":1`), []byte(`"version":2`), 1)),
		"another hash":       append(bytes.Clone(body), 1, 2, 3, 4, 5, 6, 7, 8),
	} {
		if _, err := parseStopFile(bad); !errors.Is(err, errStopFile) {
			t.Errorf("%s: got error %v, want errStopFile", name, err)
		}
	}
}

// FuzzStopFile: no content of a file makes the parser fail in another way, and what it accepts can be searched.
func FuzzStopFile(f *testing.F) {
	data := encodedStop(f, savedStop(f, 3))
	f.Add(data[:len(data)-8])
	f.Add([]byte(stopMagic))
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := parseStopFile(hashed(body))
		if err != nil {
			if !errors.Is(err, errStopFile) {
				t.Fatalf("error: got %v, want errStopFile", err)
			}
			return
		}
		tab, err := table.New(table.Options{
			Self: table.Owner{Node: "n"}, KeySize: 8, ValueSize: 8, AdoptVersion: table.RestoredVersions, Stop: got.stop,
		})
		if err != nil {
			t.Fatal(err)
		}
		tab.Update(func(tx *table.Tx) {
			for i := range uint64(3) {
				key := binary.LittleEndian.AppendUint64(nil, i)
				tx.Load(key, key)
			}
			for tx.Adopt(1) {
			}
		})
	})
}

// TestStopFileOfAnotherStart: the file counts for the start after the stop, in the same boot, if the boot is known.
func TestStopFileOfAnotherStart(t *testing.T) {
	dir := t.TempDir()
	begin := func() *state {
		s, _ := stateIn(t, dir)
		s.nextIncarnation(uint64(time.Now().UnixNano()), time.Hour)
		return s
	}
	save := func(s *state) {
		t.Helper()
		if err := s.saveStop("ct", savedStop(t, 3)); err != nil {
			t.Fatal(err)
		}
	}
	taken := func(s *state, want int) {
		t.Helper()
		if got := s.takeStop("ct", 3).stop.Len(); got != want {
			t.Errorf("entries of the last stop: got %d, want %d", got, want)
		}
		if _, err := os.Stat(s.stopPath("ct")); !os.IsNotExist(err) {
			t.Errorf("file after the start: got error %v, want none there", err)
		}
	}
	taken(begin(), 0)
	save(begin())
	if info, err := os.Stat(filepath.Join(dir, "n.ct.stop")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("stop file: got %v, error %v, want it with mode 0600", info, err)
	}
	taken(begin(), 3)
	taken(begin(), 0)
	save(begin())
	begin() // without the map, and killed
	taken(begin(), 0)
	s := begin()
	s.file.BootID = "another boot"
	save(s)
	taken(begin(), 0)
	s = begin()
	s.file.BootID = "" // unreadable, also at the next start
	save(s)
	s = begin()
	s.file.BootID = ""
	taken(s, 0)
}

// TestStopFileThatCannotBeUsed: the start continues without it. The log and a counter have the reason.
func TestStopFileThatCannotBeUsed(t *testing.T) {
	for name, prepare := range map[string]func(path string) error{
		"pipe":      func(path string) error { return unix.Mkfifo(path, 0o600) },
		"symlink":   func(path string) error { return os.Symlink("/etc/passwd", path) },
		"zeros":     func(path string) error { return os.WriteFile(path, make([]byte, 4096), 0o600) },
		"directory": func(path string) error { return os.MkdirAll(filepath.Join(path, "in"), 0o700) },
		"large": func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, maxStopHeader+1<<20))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, log := stateIn(t, t.TempDir())
			if err := prepare(s.stopPath("ct")); err != nil {
				t.Fatal(err)
			}
			if n := s.takeStop("ct", 100).stop.Len(); n != 0 {
				t.Errorf("entries: got %d, want none", n)
			}
			if s.stats().ReadFailures != 1 || !strings.Contains(log.String(), "failed to read the entries of the last stop") {
				t.Errorf("read failures: got %d, want 1 and a log line, got\n%s", s.stats().ReadFailures, log)
			}
		})
	}
	s := openState(filepath.Join(t.TempDir(), "missing"), "n", slog.New(slog.DiscardHandler))
	if err := s.saveStop("ct", savedStop(t, 1)); err == nil || s.stats().WriteErrors != 1 {
		t.Errorf("save without a directory: got error %v and %d write errors, want an error that counts", err, s.stats().WriteErrors)
	}
}

// BenchmarkStopFile measures the stop and the start of a node with a million entries.
func BenchmarkStopFile(b *testing.B) {
	const n = 1 << 20
	f := savedStop(b, n)
	dir := b.TempDir()
	s := openState(dir, "n", slog.New(slog.DiscardHandler))
	s.nextIncarnation(uint64(time.Now().UnixNano()), time.Hour)
	b.Run("save", func(b *testing.B) {
		for b.Loop() {
			if err := s.saveStop("ct", f); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("take", func(b *testing.B) {
		data := encodedStop(b, f)
		for b.Loop() {
			if _, err := parseStopFile(data); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(len(data))/n, "B/entry")
	})
}
