package main

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"mapsync/syncd/daemon"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
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
	if out, _ = run(t, "check"); !strings.Contains(out, "check_maps") || !strings.Contains(out, "UNCHANGED") || !strings.Contains(out, scanTimesAlone) {
		t.Errorf("check: want the map, its bounds and their condition in\n%s", out)
	}
}

// TestCheckListsRefusedMaps: the list has maps of types that cannot be replicated, with the reason, and the number of those
// that it leaves out. Its lines fit into a terminal of 100 columns.
func TestCheckListsRefusedMaps(t *testing.T) {
	inner := &ebpf.MapSpec{Type: ebpf.Hash, KeySize: 4, ValueSize: 4, MaxEntries: 1}
	for _, spec := range []*ebpf.MapSpec{
		{Name: "check_lpm_routes", Type: ebpf.LPMTrie, KeySize: 8, ValueSize: 8, MaxEntries: 10, Flags: unix.BPF_F_NO_PREALLOC},
		{Name: "check_outer_maps", Type: ebpf.HashOfMaps, KeySize: 4, ValueSize: 4, MaxEntries: 1, InnerMap: inner},
		{Name: "check_hash", Type: ebpf.Hash, KeySize: 8, ValueSize: 8, MaxEntries: 10},
		{Name: "check_ring", Type: ebpf.RingBuf, MaxEntries: uint32(os.Getpagesize())},
	} {
		m, err := ebpf.NewMap(spec)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
	}
	out, _ := run(t, "check", "--json")
	var r report
	if err := json.Unmarshal([]byte(out), &r); err != nil || r.MapsProblem != "" || r.MapsOmitted == 0 {
		t.Fatalf("list maps: got %d left out, error %v, problem %q, want some left out and no problem", r.MapsOmitted, err, r.MapsProblem)
	}
	for name, want := range map[string]string{"check_lpm_route": "its type is LPMTrie", "check_outer_map": "NAME=REF[KEY]"} {
		i := slices.IndexFunc(r.Maps, func(m daemon.MapCoverage) bool { return m.Name == name })
		if i < 0 || !strings.Contains(r.Maps[i].Problem, want) || r.Maps[i].Programs != "" {
			t.Errorf("maps: got %+v, want %s with a problem that has %q, and without other statements", r.Maps, name, want)
		}
	}
	out, _ = run(t, "check")
	_, list, _ := strings.Cut(out, "\nMAP ")
	list, _, _ = strings.Cut(list, "\n\n")
	joined := strings.Join(strings.Fields(list), " ")
	for _, want := range []string{"check_lpm_route cannot be replicated: its type is LPMTrie, not one of [Hash", "to replicate an inner map", "maps that are left out: "} {
		if !strings.Contains(joined, want) || strings.Contains(joined, "check_ring") {
			t.Errorf("check: want %q, and no ring buffer, in\n%s", want, list)
		}
	}
	for line := range strings.Lines(list) {
		if len(line) > width+1 {
			t.Errorf("check: got a line of %d columns, want at most %d: %s", len(line)-1, width, line)
		}
	}
}
