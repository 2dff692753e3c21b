package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
)

// run executes a command line and returns what it printed.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	root := newRoot()
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

func TestWrongUseIsToldApart(t *testing.T) {
	for _, args := range [][]string{
		{"run"},
		{"run", "--map", "a", "--buffer", "tape"},
		{"run", "--no-such-flag"},
		{"run", "surplus"},
		{"dump"},
		{"status", "surplus"},
		{"run", "--config", filepath.Join(t.TempDir(), "none.yaml")},
	} {
		_, err := run(t, args...)
		var usage usageError
		if !errors.As(err, &usage) {
			t.Errorf("%q: %v is no usage error", args, err)
		}
	}
}

func TestEveryCommandHasExamples(t *testing.T) {
	for _, cmd := range newRoot().Commands() {
		if cmd.Example == "" || cmd.Short == "" {
			t.Errorf("%s has no example or no summary", cmd.Name())
		}
		if out, err := run(t, cmd.Name(), "--help"); err != nil || !strings.Contains(out, "Examples:") {
			t.Errorf("%s --help: %v\n%s", cmd.Name(), err, out)
		}
	}
}

func TestNoDaemonIsSaid(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none.sock")
	for _, args := range [][]string{{"status"}, {"dump", "ct"}} {
		if _, err := run(t, append(args, "--control-socket", socket)...); !errors.Is(err, daemon.ErrNotRunning) {
			t.Errorf("%q: %v", args, err)
		}
	}
}

func TestMapsListsWhatIsThere(t *testing.T) {
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "cli_test", Type: ebpf.LRUHash, KeySize: 12, ValueSize: 20, MaxEntries: 77})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	out, err := run(t, "maps", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var list []hostMap
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	for _, h := range list {
		if h.Name == "cli_test" && h.KeySize == 12 && h.ValueSize == 20 && h.MaxEntries == 77 && h.Write == "program" && h.Read == "iterator" {
			return
		}
	}
	t.Errorf("cli_test is not in %s", out)
}

func TestStatusTellsOfLossesAndScans(t *testing.T) {
	s := daemon.Status{Maps: []daemon.MapStatus{{Name: "ct", Scan: &daemon.ScanStatus{Interval: 12.5}}, {Name: "other"}}}
	s.Capture.Losses = daemon.LossStatus{Open: true, OpenSeconds: 1.25}
	var out bytes.Buffer
	if err := printStatus(&out, &s, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"SCANNING because of losses, for 1.25s", "SCANNED EVERY", "12.5s"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	s.Capture.Losses = daemon.LossStatus{Repaired: 1}
	out.Reset()
	if err := printStatus(&out, &s, false); err != nil || strings.Contains(out.String(), "SCANNING") {
		t.Errorf("%v, after all is repaired:\n%s", err, out.String())
	}
}

func TestCheckSaysWhetherItCanWork(t *testing.T) {
	out, err := run(t, "check", "--json")
	var r report
	if jsonErr := json.Unmarshal([]byte(out), &r); jsonErr != nil {
		t.Fatal(jsonErr)
	}
	if r.Usable != (err == nil) || r.Usable != (r.Attach != "") {
		t.Errorf("usable %v, attach %q, error %v", r.Usable, r.Attach, err)
	}
	if (r.Attach == "none") != (r.Warning != "") {
		t.Errorf("attach %q, warning %q", r.Attach, r.Warning)
	}
	if len(r.Observed) == 0 || len(r.Features) == 0 || r.Kernel == "" {
		t.Errorf("an empty report: %s", out)
	}
}
