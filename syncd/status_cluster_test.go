package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"mapsync/printable"
	"mapsync/syncd/daemon"
	"mapsync/syncd/problem"
)

// answerOf returns the answer of a node with a status.
func answerOf(t *testing.T, node string, s *daemon.Status) daemon.NodeAnswer {
	t.Helper()
	s.Node = node
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return daemon.NodeAnswer{Node: node, Answer: data}
}

// wantLines checks that an output fits a terminal, and that it has no control characters.
func wantLines(t *testing.T, out string) {
	t.Helper()
	for line := range strings.Lines(out) {
		if len(line) > width+1 || strings.Contains(line, "\x1b") {
			t.Errorf("line %q: want at most %d printable characters", line, width)
		}
	}
}

// TestClusterStatusIsPrinted: one line for each node and map, the problems of each node, and no node without an answer is well.
func TestClusterStatusIsPrinted(t *testing.T) {
	good := func() *daemon.Status {
		return &daemon.Status{
			Ready: true, Version: "1.2.3", Redundancy: daemon.Redundancy{Live: 2, Expected: 2, Maps: []daemon.MapRedundancy{{Map: "ct", Live: 2, Peers: make([]daemon.Holding, 2)}}},
			Maps:  []daemon.MapStatus{{Name: "ct", State: daemon.MapReplicating, Live: 250, MaxEntries: 1000}},
			Peers: []daemon.PeerStatus{{Maps: []daemon.PeerMapStatus{{LagSeconds: 1.5, Report: &daemon.PeerReport{Failed: 3}}}}},
		}
	}
	drained := good()
	drained.Drained, drained.Problems = true, []problem.Problem{{ID: "drained", Severity: problem.Warning, Text: "since 1 h", Remedy: "syncd drain --undo", Since: time.Now()}}
	all := &daemon.ClusterAnswer{Nodes: []daemon.NodeAnswer{
		answerOf(t, "lb1", good()), answerOf(t, "lb2", drained), {Node: "lb3", Error: "lost 14 s ago"}, {Node: "lb4", Answer: json.RawMessage(`"\u001b[2J"`)},
	}}
	var out strings.Builder
	if err := new(statusOutput).reportCluster(printable.NewWriter(&out), all); !errors.Is(err, errReported) {
		t.Errorf("status with problems: got error %v, want that it is reported", err)
	}
	for _, want := range []string{
		"lb1   ready      1.2.3    2/2         250      3         1.5s      0\n",
		"lb2   DRAINED    1.2.3    2/2         250      3         1.5s      1\n",
		"lb3   NO ANSWER  -        -           -        -         -         -\n",
		"lb4   NO ANSWER",
		"ct   lb1   replicating  250      25%   2 of 2\n",
		"PROBLEMS OF lb2\nWARNING drained, for 0 s: since 1 h\n  remedy: syncd drain --undo\n",
		"PROBLEMS OF lb3\nno answer: lost 14 s ago\n",
		"PROBLEMS OF lb4\nno answer: its answer cannot be read",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("status: want %q in\n%s", want, out.String())
		}
	}
	wantLines(t, out.String())
	out.Reset()
	well := &daemon.ClusterAnswer{Nodes: []daemon.NodeAnswer{answerOf(t, "lb1", good())}}
	if err := (&statusOutput{problems: true}).reportCluster(&out, well); err != nil || out.Len() > 0 {
		t.Errorf("problems of a cluster that is well: got %q and error %v, want nothing", out.String(), err)
	}
	if err := (&statusOutput{json: true}).reportCluster(&out, all); !errors.Is(err, errReported) {
		t.Errorf("status as JSON: got error %v, want that there are problems", err)
	}
	var report clusterReport
	if err := json.Unmarshal([]byte(out.String()), &report); err != nil || report.OK || len(report.Nodes) != 4 {
		t.Errorf("status as JSON: got %+v and error %v, want 4 nodes, not all well", report, err)
	}
}

// TestHostileStatusesArePrinted: a node cannot add lines about others, and its answer is not well because it says nothing.
func TestHostileStatusesArePrinted(t *testing.T) {
	var out strings.Builder
	all := &daemon.ClusterAnswer{Nodes: []daemon.NodeAnswer{
		answerOf(t, "lb5", &daemon.Status{
			Version: "1\nlb1\tready", Maps: []daemon.MapStatus{{Name: "ct\nlb1 is well"}}, Problems: []problem.Problem{{ID: "x", Text: "y\nPROBLEMS OF lb1\n"}},
		}),
		{Node: "lb6", Answer: json.RawMessage("null")},
		{Node: "lb7", Answer: json.RawMessage(`{"node":"lb1","ready":true}`)},
		{Node: "lb8", Answer: json.RawMessage(`{"node":"lb8","maps":[` + strings.Repeat("{},", maxObjects) + `{}]}`)},
	}}
	if err := new(statusOutput).reportCluster(printable.NewWriter(&out), all); !errors.Is(err, errReported) {
		t.Errorf("status: got error %v, want that it is reported", err)
	}
	for _, want := range []string{
		"lb6   NO ANSWER",
		"PROBLEMS OF lb7\nno answer: its answer is not its own status\n",
		"PROBLEMS OF lb8\nno answer: its answer has more than 50000 objects\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("status: want %q in\n%s", want, out.String())
		}
	}
	for _, forged := range []string{"\nlb1  ready", "\nlb1 is well", "\nPROBLEMS OF lb1\n"} {
		if strings.Contains(out.String(), forged) {
			t.Errorf("status: got the line %q of a peer, want no line about others, in\n%s", forged, out.String())
		}
	}
	for _, n := range all.Nodes[1:] {
		if err := new(statusOutput).reportCluster(&out, &daemon.ClusterAnswer{Nodes: []daemon.NodeAnswer{n}}); !errors.Is(err, errReported) {
			t.Errorf("status of %s alone: got error %v, want that it is reported", n.Node, err)
		}
	}
}

// TestClusterCommands runs the commands on a daemon whose expected peer is not there.
func TestClusterCommands(t *testing.T) {
	const name = "cli_cluster"
	newTestMap(t, name)
	socket := startDaemon(t, name, "lb9")
	expectExit(t, 0, "wait-ready", "--timeout", "20s", "--control-socket", socket)
	out, err := run(t, "status", "--cluster", "--control-socket", socket)
	if exitCode(err) != exitFailed || !strings.Contains(out, "lb9   NO ANSWER") || !strings.Contains(out, "this node has never seen it") {
		t.Errorf("status: got error %v, want exit code 1 and the missing node in\n%s", err, out)
	}
	out, err = run(t, "events", "--control-socket", socket)
	if err != nil || !strings.Contains(out, " INFO map attached map="+name+" ") {
		t.Errorf("events: got error %v, want the map in\n%s", err, out)
	}
	out, err = run(t, "events", "--cluster", "--json", "--control-socket", socket)
	var first nodeEvent
	line, _, _ := strings.Cut(out, "\n")
	if jsonErr := json.Unmarshal([]byte(line), &first); exitCode(err) != exitFailed || jsonErr != nil || first.Node != "cli" || !strings.Contains(out, "lb9: no answer: ") {
		t.Errorf("events of all nodes: got errors %v and %v, want exit code 1, events of cli, and the missing node in\n%s", err, jsonErr, out)
	}
	out, err = run(t, "events", "--map", "none", "--control-socket", socket)
	if err != nil || out != "" {
		t.Errorf("events of another map: got %q and error %v, want none", out, err)
	}
	if out, err = run(t, "events", "--limit", "1", "--control-socket", socket); exitCode(err) != exitFailed || !strings.Contains(out, "earlier events of the period are not shown") {
		t.Errorf("events with a limit: got error %v, want exit code 1 and a note in\n%s", err, out)
	}
	expectExit(t, exitUsage, "events", "--limit", "0", "--control-socket", socket)
	out, err = run(t, "explain", name, "0100000000000000", "--control-socket", socket)
	if exitCode(err) != exitFailed || !strings.Contains(out, "cli   none       absent") || !strings.Contains(out, "lb9   NO ANSWER") {
		t.Errorf("explain: got error %v, want exit code 1 and both nodes in\n%s", err, out)
	}
	out, err = run(t, "explain", name, "--where", "key.bytes=01", "--control-socket", socket)
	if exitCode(err) != exitFailed || !strings.Contains(out, "no node has a record that meets the conditions") {
		t.Errorf("explain an unknown entry: got error %v, want exit code 1 and that no node has it in\n%s", err, out)
	}
	expectExit(t, exitUsage, "explain", name, "--where", "nonsense=1", "--control-socket", socket)
	expectExit(t, exitUsage, "explain", "other", "01", "--control-socket", socket)
	expectExit(t, exitUsage, "explain", name, "01", "--where", "key.bytes=01", "--control-socket", socket)

	// The status appears again and again, until the command is interrupted.
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	var text bytes.Buffer
	root := newRoot()
	root.SetOut(&text)
	root.SetArgs([]string{"status", "--watch=100ms", "--control-socket", socket})
	if err := root.ExecuteContext(ctx); err != nil || strings.Count(text.String(), "node cli: ") < 2 || !strings.Contains(text.String(), "again every 100ms") {
		t.Errorf("status --watch: got error %v and %d statuses, want at least 2", err, strings.Count(text.String(), "node cli: "))
	}
}
