package daemon

import (
	"encoding/base64"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Keys are read in their order. Errors name the file, the line and the remedy.
func TestGossipKeyFiles(t *testing.T) {
	key := base64.StdEncoding.EncodeToString(make([]byte, 32))
	path := filepath.Join(t.TempDir(), "keys")
	for name, c := range map[string]struct {
		text  string
		mode  fs.FileMode
		keys  int
		wants []string
	}{
		"two keys":            {"# first\n\n" + key + "\n  " + key, 0o600, 2, nil},
		"readable by a group": {key, 0o640, 1, nil},
		"readable by others":  {key, 0o644, 1, nil},
		"writable by a group": {key, 0o620, 0, []string{path, "can be written by others", "chmod 600"}},
		"writable by others":  {key, 0o602, 0, []string{path, "can be written by others", "chmod 600"}},
		"empty":               {"# none\n", 0o600, 0, []string{path, "holds no gossip key", "head -c 32"}},
		"key too short":       {key + "\nc2hvcnQ=\n", 0o600, 0, []string{path, "line 2", "5 bytes, want 16, 24 or 32", "head -c 32"}},
		"invalid base64":      {"\n???\n", 0o600, 0, []string{path, "line 2", "head -c 32"}},
		"line too long":       {strings.Repeat("A", 60<<10), 0o600, 0, []string{path, "line 1", "want 16, 24 or 32"}},
		"file too large":      {strings.Repeat("#\n", 33<<10), 0o600, 0, []string{path, "larger than 65536 bytes"}},
	} {
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, c.mode); err != nil {
			t.Fatal(err)
		}
		var log strings.Builder
		keys, err := readGossipKeys(path, slog.New(slog.NewTextHandler(&log, nil)))
		if warned := strings.Contains(log.String(), "readable by other users"); warned != (c.mode&0o004 != 0) {
			t.Errorf("%s: warning about readers: got %t, want %t", name, warned, !warned)
		}
		if len(keys) != c.keys || (err == nil) != (c.wants == nil) {
			t.Errorf("%s: got %d keys, error %v, want the keys or the error of the test", name, len(keys), err)
			continue
		}
		for _, want := range c.wants {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got error %v, want it to contain %q", name, err, want)
			}
		}
	}
	if _, err := readGossipKeys(filepath.Dir(path), slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("read a directory: got error %v, want \"not a regular file\"", err)
	}
}
