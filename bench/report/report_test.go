package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// results are the smallest results of each program.
var results = map[string]string{
	"throughput.json": `{"cpus": 2, "kernel": "6.1", "go": "go1.26", "tls": true, "parts": [{"name": "buffers", "other_load_percent": 50}],
		"end_to_end": {"new": {"deltas_per_second": 400000}, "updated": {"deltas_per_second": 300000}},
		"ceiling_new": {"deltas_per_second": 1600000},
		"alternatives": [{"name": "net/rpc, one call each", "deltas_per_second": 10000}, {"name": "net/rpc, blocks of 8192", "deltas_per_second": 1000000},
			{"name": "net/rpc, blocks of 8192 from map to map", "deltas_per_second": 500000},
			{"name": "gRPC unary, typed", "deltas_per_second": 5000}, {"name": "gRPC unary, Any with JSON", "deltas_per_second": 4000}],
		"buffers": {"runs": [{"buffer": "ring", "pages": 16, "threads": 1, "offered": 100000, "events": 1000, "lost": 500},
				{"buffer": "ring", "pages": 1024, "threads": 1, "offered": 100000, "events": 1000, "lost": LOST},
				{"buffer": "ring", "pages": 16, "threads": 1, "events": 1000, "lost": 900},
				{"buffer": "ring", "pages": 1024, "threads": 1, "events": 1000, "lost": 900}],
			"costs": [{"buffer": "ring", "ns_per_event": 200}, {"buffer": "perf", "ns_per_event": 500}],
			"overflows": [{"buffer": "ring", "events": 100, "lost": 90, "divergent": 80, "seconds": 1}]},
		"notification": [{"name": "notification by an injector", "p50_ms": 1, "p99_ms": 2}, {"name": "scans every second", "p50_ms": 500, "p99_ms": 1000}]}`,
	"rates-native.json": `[{"way": "off", "threads": 1, "connections_per_second": 5000, "ratio": 1}, {"way": "reports", "threads": 1,
		"connections_per_second": 4900, "ratio": 0.98, "events": 70000, "lost": 0}]`,
	"rates-vm.json": `[{"way": "off", "threads": 1, "connections_per_second": 500, "ratio": 1,
		"profile": {"total_us": 900, "xdp_us": 5}}, {"way": "fexit", "threads": 1, "connections_per_second": 495, "ratio": 0.99, "syncd_cpu_percent": 3,
		"profile": {"total_us": 1000, "syncd_us": 40, "peer_us": 30, "hooks_us": 20, "xdp_us": 6}}]`,
	"sessions-builtin.json": `{"load": "builtin", "control": {"sessions": 50000}, "real": {"sessions": 50000, "survived": 50000}}`,
}

func writeResults(t *testing.T, lost string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range results {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(strings.ReplaceAll(text, "LOST", lost)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestReport checks that the page has each section, and that each figure that it shows exists and names its axes.
func TestReport(t *testing.T) {
	out := t.TempDir()
	if err := run(writeResults(t, "0"), out, true); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(out, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| fexit, virtual machine | 1 | 495 | 0.990 |", "| ring | 16 | 1 | 100,000 |", "| 50.00 % |", "Recommendation: `buffer: ring`", "2.5 times as much",
		"blocks of 8192 are 100 times as fast", "0.80 of the rate of blocks from map to map", "| notification by an injector | 1.00 | 2.00 |",
		"| builtin |", "Goal held: all sessions", "Goal held: fexit", "quick form", "Goal held: no event lost at the default size and the rates of this table, natively: 0 of 70,000 lost", "nodes of mapsync use mutual TLS",
		"| ring | 1024 | 1 | 100,000 | 0 | too short to decide |", "Goal **open**: no event lost at the default size", "full speed, ring, threads: 1: 90.00 %",
		"| off, virtual machine | 900 | 0 | 0 | 900 | 0 | 5 | 1.000 |", "| fexit, virtual machine | 1,000 | 40 | 30 | 930 | 20 | 6 | 0.900 |",
		"An injector writes the map", "used 50 % of the CPUs",
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("page: %q is missing", want)
		}
	}
	charts, err := filepath.Glob(filepath.Join(out, "*.svg"))
	if err != nil || len(charts) != strings.Count(string(page), "](")-strings.Count(string(page), ".md)")-strings.Count(string(page), ".md#")-strings.Count(string(page), "data.json)") {
		t.Errorf("charts: got %d, want each figure of the page: %v", len(charts), err)
	}
	for file, label := range map[string]string{
		"losses-paced.svg": "ring, threads: 1", "losses-fast.svg": "lost, %", "frameworks.svg": "deltas/s", "notification.svg": "p99",
		"connections.svg": "published: 0.95", "event-cost.svg": "ns",
	} {
		svg, err := os.ReadFile(filepath.Join(out, file))
		if err != nil || !strings.Contains(string(svg), label) {
			t.Errorf("%s: label %q is missing: %v", file, label, err)
		}
	}
	var d data
	text, err := os.ReadFile(filepath.Join(out, "data.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &d); err != nil || d.Throughput.EndToEnd.New.DeltasPerSecond != 400000 {
		t.Errorf("data: got %+v, %v, want the results", d.Throughput, err)
	}
}

// TestMissedGoalsAreStated checks that a result below its goal is stated, and that missing results are an error.
func TestMissedGoalsAreStated(t *testing.T) {
	out := t.TempDir()
	if err := run(writeResults(t, "1"), out, false); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(out, "README.md"))
	if err != nil || !strings.Contains(string(page), "Goal **missed**: no event lost at the default size (1024 pages) at 100,000 events a second; lost: 1.") {
		t.Errorf("page with a loss at the default size: got no missed goal, want one: %v", err)
	}
	if err := run(t.TempDir(), out, false); err == nil || !strings.Contains(err.Error(), "scripts/report") {
		t.Errorf("no results: got error %v, want one that names scripts/report", err)
	}
}
