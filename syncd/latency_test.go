package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"mapsync/syncd/daemon"

	"github.com/google/go-cmp/cmp"
)

func TestLatencyIsPrinted(t *testing.T) {
	for name, tt := range map[string]struct {
		report latencyReport
		want   string
	}{
		"all": {latencyReport{
			Calls: []daemon.KernelCall{{Call: "program", LongestSeconds: 0.0004121}, {Call: "batch", LongestSeconds: 0.0001}},
			Softirqs: []latencyRuns{
				{Name: "TIMER", Runs: 1234, LongestSeconds: 0.02614, CPU: 1, Late: 12}, {Name: "NET_RX", Runs: 5, LongestSeconds: 0.0001}, {Name: "RCU", Runs: 1},
			},
			Timers: []latencyRuns{{Name: "estimation_timer", Runs: 5, LongestSeconds: 0.026, CPU: 1, Late: 5}},
		}, `CALL OF SYNCD  LONGEST MS
program        0.412
batch          0.100

SOFTIRQ OF THE HOST  LONGEST MS  CPU  RUNS  OF 1 MS AND MORE
TIMER                26.140      1    1234  12
NET_RX               0.100       0    5     0

FUNCTION OF A TIMER  LONGEST MS  CPU  RUNS  OF 1 MS AND MORE
estimation_timer     26.000      1    5     5
`},
		"problems": {latencyReport{CallsProblem: "no daemon", SoftirqsProblem: "not permitted"}, `CALL OF SYNCD  LONGEST MS
unknown: no daemon

SOFTIRQ OF THE HOST  LONGEST MS  CPU  RUNS  OF 1 MS AND MORE
unknown: not permitted
`},
		"nothing": {latencyReport{}, `CALL OF SYNCD  LONGEST MS
none

SOFTIRQ OF THE HOST  LONGEST MS  CPU  RUNS  OF 1 MS AND MORE
none

FUNCTION OF A TIMER  LONGEST MS  CPU  RUNS  OF 1 MS AND MORE
none
`},
	} {
		var out bytes.Buffer
		if err := tt.report.print(&out, 2); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, out.String()); diff != "" {
			t.Errorf("%s: output differs (- want, + got):\n%s", name, diff)
		}
	}
}

// TestLatencyHelpDefinesDurations: the help defines the duration of a call as package kmap measures it.
func TestLatencyHelpDefinesDurations(t *testing.T) {
	help := strings.Join(strings.Fields(newLatency().Long), " ")
	for _, want := range []string{"a call is the time for which it had a CPU, without the time of other threads", "include interrupts"} {
		if !strings.Contains(help, want) {
			t.Errorf("help: got %q, want %q in it", help, want)
		}
	}
}

// TestLatencyWithoutDaemon measures the softirqs of the host alone.
func TestLatencyWithoutDaemon(t *testing.T) {
	out, err := run(t, "latency", "--for", "1s", "--json", "--control-socket", filepath.Join(t.TempDir(), "none"))
	if err == nil || exitCode(err) != exitNoAnswer {
		t.Fatalf("latency without a daemon: got error %v, want exit code %d", err, exitNoAnswer)
	}
	_, out, _ = strings.Cut(out, "\n") // the progress
	var r latencyReport
	if err := json.NewDecoder(strings.NewReader(out)).Decode(&r); err != nil {
		t.Fatal(err)
	}
	if r.CallsProblem == "" || len(r.Calls) != 0 || len(r.Softirqs) == 0 || r.SoftirqsProblem != "" {
		t.Errorf("report: got %+v, want softirqs, and a problem instead of calls", r)
	}
}

func TestLatencyFlagsAreChecked(t *testing.T) {
	for _, args := range [][]string{{"latency", "--for", "100ms"}, {"latency", "--for", "1h"}, {"latency", "--top", "0"}} {
		_, err := run(t, args...)
		var usage usageError
		if !errors.As(err, &usage) {
			t.Errorf("%q: got error %v, want a usage error", args, err)
		}
	}
}
