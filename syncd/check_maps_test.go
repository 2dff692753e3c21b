package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
)

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
	i := slices.IndexFunc(r.Maps, func(m daemon.MapCoverage) bool { return m.Name == "check_maps" })
	if i < 0 || r.Maps[i].Evictions == "-" || r.Maps[i].Scan < 10 {
		t.Fatalf("maps: got %+v, want check_maps with evictions and the bound of scans", r.Maps)
	}
	if out, _ = run(t, "check"); !strings.Contains(out, "check_maps") || !strings.Contains(out, "UNCHANGED") || !strings.Contains(out, scanTimesOf) {
		t.Errorf("check: want the map, its bounds and their condition in\n%s", out)
	}
}
