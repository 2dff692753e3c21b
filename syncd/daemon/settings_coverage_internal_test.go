package daemon

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"testing"
	"time"

	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/kmap"

	"github.com/cilium/ebpf"
)

// settingsOf returns settings with a new map for each name.
func settingsOf(t *testing.T, specs map[string]*ebpf.MapSpec) *config.Config {
	t.Helper()
	c := config.Default()
	for name, spec := range specs {
		m, err := ebpf.NewMap(spec)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		info, err := m.Info()
		if err != nil {
			t.Fatal(err)
		}
		id, _ := info.ID()
		c.Maps = append(c.Maps, fmt.Sprintf("%s=id:%d", name, id))
	}
	return &c
}

// TestCoverageOfSettings: the statements about configured maps are those for their names and settings.
func TestCoverageOfSettings(t *testing.T) {
	c := settingsOf(t, map[string]*ebpf.MapSpec{
		"ct":    {Name: "kernel_name", Type: ebpf.LRUHash, KeySize: 8, ValueSize: 16, MaxEntries: 1000},
		"rules": {Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 100},
		"plain": {Type: ebpf.Hash, KeySize: 8, ValueSize: 16, MaxEntries: 1000},
		"flows": {Type: ebpf.Hash, KeySize: 8, ValueSize: 16, MaxEntries: 1000},
	})
	c.Maps = append(c.Maps, "later=/sys/fs/bpf/none")
	c.ScanInterval, c.MaxScanInterval, c.PinOwners = 3*time.Second, 7*time.Second, nil
	c.InPlace, c.Deletes, c.DrainSumsMaps = []string{"ct=hook", "rules=hook"}, []string{"rules=any"}, []string{"flows"}
	unchanged := 3.
	if capture.AttachFexit.Detects(ebpf.Kprobe) {
		unchanged = 7
	}
	statement := MapCoverage{Programs: CoverAtOnce, Syscalls: CoverAtOnce, Evictions: CoverNone, Scan: 3, ScanUnchanged: unchanged, Deletes: config.DeletesOwner}
	for problem, refused := range map[string]error{"": nil, "refused": errors.New("refused")} {
		ct, rules, plain := statement, statement, statement
		ct.Type, ct.Evictions, ct.InPlaceProblem = "LRUHash", CoverAtOnce, problem
		if refused == nil {
			ct.InPlace = 0.3
		}
		rules.Type, rules.Deletes, rules.InPlaceProblem = "Array", config.DeletesAny, errArrayLookup.Error()
		plain.Type = "Hash"
		want := map[string]MapCoverage{
			"ct": ct, "rules": rules, "plain": plain, "flows": {Type: "Hash", Evictions: CoverNone, DrainSums: true},
		}
		list, err := coverConfigured(t.Context(), c, &capture.ProbeResult{Attach: capture.AttachFexit}, refused)
		if err != nil || len(list) != len(want) {
			t.Fatalf("coverage: got %d statements, error %v, want %d, without the map that does not exist", len(list), err, len(want))
		}
		for _, got := range list {
			w := want[got.Name]
			w.ID, w.Name = got.ID, got.Name
			got.Scan, got.ScanUnchanged = math.Round(got.Scan), math.Round(got.ScanUnchanged)
			if got.ID == 0 || !reflect.DeepEqual(got, w) {
				t.Errorf("coverage of %s: got %+v, want %+v with an id", got.Name, got, w)
			}
		}
	}
}

// TestConfiguredMapsShareTheScanBudget: a scan takes as long as the scans of all configured maps together.
func TestConfiguredMapsShareTheScanBudget(t *testing.T) {
	specs := map[string]*ebpf.MapSpec{
		"a": {Type: ebpf.Hash, KeySize: 8, ValueSize: 16, MaxEntries: 1 << 20},
		"b": {Type: ebpf.Array, KeySize: 4, ValueSize: 16, MaxEntries: 100_000},
	}
	c := settingsOf(t, specs)
	c.ScanInterval, c.ScanBudget = time.Nanosecond, 10 // a stated time is that of two scans
	want := 2 * (longestScan(&kmap.Info{Type: ebpf.Hash, MaxEntries: 1 << 20}, c) +
		longestScan(&kmap.Info{Type: ebpf.Array, KeySize: 4, ValueSize: 16, Entries: 100_000}, c)).Seconds()
	list, err := coverConfigured(t.Context(), c, &capture.ProbeResult{Attach: capture.AttachNone}, nil)
	if err != nil || len(list) != len(specs) {
		t.Fatalf("coverage: got %d statements, error %v, want %d", len(list), err, len(specs))
	}
	for _, got := range list {
		if math.Abs(got.Scan-want) > 0.01 {
			t.Errorf("coverage of %s: got %v s until a scan finds a change, want %v s", got.Name, got.Scan, want)
		}
	}
}

// TestCoverSettingsProbes: the statements are those of the attach method that the settings take on this kernel.
func TestCoverSettingsProbes(t *testing.T) {
	c := settingsOf(t, map[string]*ebpf.MapSpec{"ct": {Type: ebpf.Hash, KeySize: 8, ValueSize: 16, MaxEntries: 10}})
	for _, method := range []capture.Attach{capture.AttachAuto, capture.AttachFexit, capture.AttachKprobe, capture.AttachNone} {
		offer := capture.Probe(method)[0]
		c.Attach, c.InPlace = string(method), []string{"ct=hook"}
		attach, list, err := CoverSettings(t.Context(), c)
		if (err != nil) != (offer.Err != nil) {
			t.Errorf("attach %s: got error %v, want as the probe: %v", method, err, offer.Err)
			continue
		}
		if err == nil && (attach != offer.Attach || len(list) != 1 || (list[0].InPlaceProblem == "") != (attach == capture.AttachFexit)) {
			t.Errorf("attach %s: got %s and %+v, want %s and one map, whose lookups are hooked with fexit only", method, attach, list, offer.Attach)
		}
	}
}
