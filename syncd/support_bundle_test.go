package main

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mapsync/syncd/daemon"
)

// readBundle returns the files of a bundle.
func readBundle(t *testing.T, name string) map[string]string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	compressed, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for archive := tar.NewReader(compressed); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		data, readErr := io.ReadAll(archive)
		if err := errors.Join(err, readErr); err != nil {
			t.Fatal(err)
		}
		files[h.Name] = string(data)
	}
}

// TestSupportBundle writes one of a daemon, and one without a daemon.
func TestSupportBundle(t *testing.T) {
	const name = "cli_bundle"
	newTestMap(t, name)
	socket := startDaemon(t, name)
	expectExit(t, 0, "wait-ready", "--timeout", "20s", "--control-socket", socket)
	dir := t.TempDir()
	settings, file := filepath.Join(dir, "s.yaml"), filepath.Join(dir, "b.tar.gz")
	if err := os.WriteFile(settings, []byte("map: [ct]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	expectExit(t, 0, "support-bundle", "--file", file, "--config", settings, "--control-socket", socket)
	files := readBundle(t, file)
	var all daemon.ClusterAnswer
	if err := json.Unmarshal([]byte(files["status.json"]), &all); err != nil || len(all.Nodes) != 1 || all.Nodes[0].Node != "cli" {
		t.Errorf("status.json: got %s and error %v, want the node", files["status.json"], err)
	}
	for part, want := range map[string]string{
		"version.txt": "kernel ", "syncd.yaml": "map: [ct]\n", "maps.json": `"` + name + `"`, "events.json": "map attached",
	} {
		if !strings.Contains(files[part], want) {
			t.Errorf("%s: want %q in\n%s", part, want, files[part])
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode of the file: got %v and error %v, want 0600", info.Mode(), err)
	}
	expectExit(t, exitUsage, "support-bundle", "--file", file, "--control-socket", socket) // it exists

	file = filepath.Join(dir, "none.tar.gz")
	expectExit(t, exitNoAnswer, "support-bundle", "--file", file, "--control-socket", filepath.Join(dir, "none.sock"))
	if files = readBundle(t, file); files["status.json.missing"] == "" || files["events.json.missing"] == "" || files["version.txt"] == "" {
		t.Errorf("bundle without a daemon: got %v, want the reasons and the other parts", files)
	}
	file = filepath.Join(dir, "unreadable.tar.gz")
	expectExit(t, exitFailed, "support-bundle", "--file", file, "--config", filepath.Join(dir, "none.yaml"), "--control-socket", socket)
	if files = readBundle(t, file); files["syncd.yaml.missing"] == "" || files["status.json"] == "" {
		t.Errorf("bundle without settings: got %v, want the reason and the other parts", files)
	}
}
