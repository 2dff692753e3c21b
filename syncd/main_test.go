package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"mapsync/syncd/capture"
	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"
)

// run executes a command line and returns its output.
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

func TestUsageErrorsAreMarked(t *testing.T) {
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
			t.Errorf("%q: got error %v, want a usage error", args, err)
		}
	}
}

func TestEveryCommandHasExamples(t *testing.T) {
	for _, cmd := range newRoot().Commands() {
		if cmd.Example == "" || cmd.Short == "" {
			t.Errorf("command %s: want an example and a summary", cmd.Name())
		}
		if out, err := run(t, cmd.Name(), "--help"); err != nil || !strings.Contains(out, "Examples:") {
			t.Errorf("%s --help: got error %v, want examples\n%s", cmd.Name(), err, out)
		}
	}
}

func TestErrorWithoutDaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none.sock")
	for _, args := range [][]string{{"status"}, {"dump", "ct"}} {
		if _, err := run(t, append(args, "--control-socket", socket)...); !errors.Is(err, daemon.ErrNotRunning) {
			t.Errorf("%q without a daemon: got error %v, want ErrNotRunning", args, err)
		}
	}
}

func TestMapsListsHostMaps(t *testing.T) {
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
		if h.Name == "cli_test" && h.KeySize == 12 && h.ValueSize == 20 && h.MaxEntries == 77 && h.Write == "program" && h.Read == "buckets" {
			return
		}
	}
	t.Errorf("maps: got %s, want cli_test", out)
}

// TestMapsNamesUndetectedPrograms: with kprobe, the list of maps names the programs of types that hooks do not detect.
func TestMapsNamesUndetectedPrograms(t *testing.T) {
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "traced", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for name, typ := range map[string]ebpf.ProgramType{"tracer": ebpf.Kprobe, "lb": ebpf.XDP} {
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: name, Type: typ, License: "GPL",
			Instructions: asm.Instructions{asm.LoadMapPtr(asm.R1, m.FD()), asm.LoadImm(asm.R0, 0, asm.DWord), asm.Return()},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
	}
	for attach, named := range map[capture.Attach]int{capture.AttachKprobe: 1, capture.AttachNone: 0} {
		hooks := capture.ProbeResult{Attach: attach}
		if named == 0 {
			hooks.Err = errors.New("unavailable")
		}
		list, err := listMaps(t.Context(), &hooks)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(list, func(h hostMap) bool { return h.Name == "traced" })
		if i < 0 || len(list[i].Undetected) != named || named == 1 && !strings.HasPrefix(list[i].Undetected[0], "tracer (Kprobe, id ") {
			t.Fatalf("maps by %s: got %+v, want the map with %d programs that hooks do not detect, and not lb", attach, list, named)
		}
		var out bytes.Buffer
		if err := printMaps(&out, list, &hooks); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(out.String(), " traced: writes by tracer (Kprobe, id ") != (named == 1) || strings.Contains(out.String(), noHooks) == (named == 1) {
			t.Errorf("maps by %s: want %d programs, or that hooks are unavailable, in\n%s", attach, named, out.String())
		}
	}
}

func TestStatusShowsLossesAndScans(t *testing.T) {
	s := daemon.Status{Maps: []daemon.MapStatus{{Name: "ct", Scan: &daemon.ScanStatus{Interval: 12.5}}, {Name: "other"}}}
	s.Capture.Losses = daemon.LossStatus{Open: true, OpenSeconds: 1.25}
	var out bytes.Buffer
	if err := printStatus(&out, &s, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"SCANNING because of losses, for 1.25s", "SCANNED EVERY", "12.5s"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("status: want %q in\n%s", want, out.String())
		}
	}
	s.Capture.Losses = daemon.LossStatus{Repaired: 1}
	out.Reset()
	if err := printStatus(&out, &s, false); err != nil || strings.Contains(out.String(), "SCANNING") {
		t.Errorf("status after the repair: got error %v, want no SCANNING in\n%s", err, out.String())
	}
}

func TestCheckReportsUsability(t *testing.T) {
	out, err := run(t, "check", "--json")
	var r report
	if jsonErr := json.Unmarshal([]byte(out), &r); jsonErr != nil {
		t.Fatal(jsonErr)
	}
	if r.Usable != (err == nil) || r.Usable != (r.Attach != "" && r.Attach != "none") {
		t.Errorf("check: got usable %v, attach %q, error %v, want them to agree", r.Usable, r.Attach, err)
	}
	if (r.Attach == "none") != (r.Warning != "") {
		t.Errorf("check: got attach %q, warning %q, want a warning only with attach none", r.Attach, r.Warning)
	}
	if len(r.Observed) == 0 || len(r.Features) == 0 || r.Kernel == "" {
		t.Errorf("check: got an incomplete report, want observed items, features and a kernel: %s", out)
	}
}
