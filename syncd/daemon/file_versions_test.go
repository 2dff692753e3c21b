package daemon

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mapsync/syncd/config"
)

func TestParseVersioned(t *testing.T) {
	supported := versions{1, 3, "do this"}
	for version, ok := range map[int]bool{-1: false, 0: false, 1: true, 2: true, 3: true, 4: false, math.MaxInt: false} {
		var v struct{ Name string }
		// A later version may have fields of other types.
		text := `{"version":%d,"name":"a"}`
		if version > supported.last {
			text = `{"version":%d,"name":7}`
		}
		err := parseVersioned(fmt.Appendf(nil, text, version), &v, "things", supported)
		if want := fmt.Sprintf("read the things of version %d: this syncd supports versions 1 to 3 and replaces it (do this)", version); ok != (err == nil) || !ok && err.Error() != want {
			t.Errorf("version %d: got error %v, want accepted: %t, otherwise %q", version, err, ok, want)
		}
		if (v.Name == "a") != ok {
			t.Errorf("version %d: got name %q, want it read: %t", version, v.Name, ok)
		}
	}
	for _, text := range []string{"", `{"version":"1"}`, `{"version":1,"name":7}`} {
		var v struct{ Name string }
		if err := parseVersioned([]byte(text), &v, "things", supported); err == nil || !strings.Contains(err.Error(), "parse the things") {
			t.Errorf("parse %q: got %v, want a parse error", text, err)
		}
	}
}

// TestCountersVersions checks that the counters of every earlier version are read, and that the warning about
// those of a later version names the remedy.
func TestCountersVersions(t *testing.T) {
	const other = `"counters":{"m/c_total":{"labels":[],"fields":["bytes"],"series":null,"other":[7]}}}`
	for version := range countersVersion + 2 {
		read := version >= 1 && version <= countersVersion
		var log bytes.Buffer
		d := &Daemon{log: slog.New(slog.NewTextHandler(&log, nil)), config: config.Config{StateDir: t.TempDir(), NodeName: "n"}}
		d.remoteLog = d.log
		d.config.Metrics = []config.EntryMetrics{{Map: "m", Counters: []config.EntryCounter{{Name: "c_total", Field: "bytes"}}}}
		path := filepath.Join(d.config.StateDir, "n.counters.json")
		if err := os.WriteFile(path, fmt.Appendf(nil, `{"version":%d,%s`, version, other), 0o600); err != nil {
			t.Fatal(err)
		}
		e := openEntryMetrics(d)
		if got := e.list[0].State().Other[0]; (got == 7) != read || (log.Len() == 0) != read {
			t.Errorf("version %d: got counter %d, want 7 and no warning: %t\n%s", version, got, read, &log)
		}
		if remedy := "copy the file before a node returns to an earlier release"; strings.Contains(log.String(), remedy) == read {
			t.Errorf("version %d: got log %q, want %q in it: %t", version, &log, remedy, !read)
		}
		if err := e.close(); err != nil {
			t.Fatal(err)
		}
		if data, err := os.ReadFile(path); err != nil || !bytes.Contains(data, fmt.Appendf(nil, `{"version":%d,`, countersVersion)) {
			t.Errorf("version %d: saved counters: got %s, %v, want version %d", version, data, err, countersVersion)
		}
	}
}
