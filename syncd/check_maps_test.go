package main

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"mapsync/syncd/capture"
	"mapsync/syncd/config"
	"mapsync/syncd/kmap"

	"github.com/cilium/ebpf"
)

func TestCoverageOfMaps(t *testing.T) {
	c := config.Default()
	c.ScanInterval, c.ScanBudget = 10*time.Second, 5
	tracer, lb := kmap.Program{ID: 7, Name: "tracer", Type: ebpf.Kprobe}, kmap.Program{ID: 8, Name: "lb", Type: ebpf.XDP}
	unchanged := 10.
	if capture.AttachFexit.Detects(ebpf.Kprobe) {
		unchanged = 40
	}
	for name, test := range map[string]struct {
		info     kmap.Info
		programs []kmap.Program
		offer    capture.ProbeResult
		want     mapCoverage
	}{
		"kprobe": {
			kmap.Info{Type: ebpf.Hash},
			[]kmap.Program{tracer, lb},
			capture.ProbeResult{Attach: capture.AttachKprobe},
			mapCoverage{Programs: atOnce, Syscalls: atOnce, Evictions: "-", Scan: 10, ScanUnchanged: 10, Undetected: []string{"tracer (Kprobe, id 7)"}},
		},
		"fexit, LRU": {
			kmap.Info{Type: ebpf.LRUHash},
			[]kmap.Program{lb},
			capture.ProbeResult{Attach: capture.AttachFexit},
			mapCoverage{Programs: atOnce, Syscalls: atOnce, Evictions: atOnce, Scan: 10, ScanUnchanged: unchanged},
		},
		"fexit, LRU without the hook of evictions": {
			kmap.Info{Type: ebpf.LRUHash},
			nil,
			capture.ProbeResult{Attach: capture.AttachFexit, Missing: []string{"htab_lru_map_delete_node"}},
			mapCoverage{Programs: atOnce, Syscalls: atOnce, Evictions: byScan, Scan: 10, ScanUnchanged: 10},
		},
		"none": {
			kmap.Info{Type: ebpf.LRUHash},
			[]kmap.Program{tracer},
			capture.ProbeResult{Attach: capture.AttachNone},
			mapCoverage{Programs: byScan, Syscalls: byScan, Evictions: byScan, Scan: 10, ScanUnchanged: 10},
		},
		"a million entries": {
			kmap.Info{Type: ebpf.Hash, Entries: 1_000_000, MaxEntries: 2_000_000},
			nil,
			capture.ProbeResult{Attach: capture.AttachNone},
			mapCoverage{Programs: byScan, Syscalls: byScan, Evictions: "-", Scan: 28, ScanUnchanged: 28},
		},
		"unknown number of entries": {
			kmap.Info{Type: ebpf.Hash, Entries: -1, MaxEntries: 1_000_000},
			nil,
			capture.ProbeResult{Attach: capture.AttachNone},
			mapCoverage{Programs: byScan, Syscalls: byScan, Evictions: "-", Scan: 28, ScanUnchanged: 28},
		},
		"a map that cannot be replicated": {
			kmap.Info{Type: ebpf.Hash, Unsupported: errors.New("too large")},
			nil,
			capture.ProbeResult{Attach: capture.AttachFexit},
			mapCoverage{Evictions: "-", Problem: "too large"},
		},
	} {
		test.want.Type = test.info.Type.String()
		if got := coverage(&test.info, test.programs, &test.offer, &c); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, test.want)
		}
	}
}

func TestCheckListsMaps(t *testing.T) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "check_maps", Type: ebpf.LRUHash, KeySize: 8, ValueSize: 8, MaxEntries: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	out, _ := run(t, "check", "--json")
	var r report
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.MapsProblem != "" {
		t.Fatalf("list maps: got error %v, problem %q, want none", err, r.MapsProblem)
	}
	i := slices.IndexFunc(r.Maps, func(m mapCoverage) bool { return m.Name == "check_maps" })
	if i < 0 || r.Maps[i].Evictions == "-" || r.Maps[i].Scan < 10 {
		t.Fatalf("maps: got %+v, want check_maps with evictions and the bound of scans", r.Maps)
	}
	if out, _ = run(t, "check"); !strings.Contains(out, "check_maps") || !strings.Contains(out, "UNCHANGED") {
		t.Errorf("check: want the map and its bounds in\n%s", out)
	}
}
