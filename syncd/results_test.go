package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"
)

// A command that changes something prints in one line what it has done, and with --json one JSON document.
func TestCommandsPrintResults(t *testing.T) {
	_, one := startProgram(t, 1, newTestMap(t, "cli_result1"), "--expected-peers", "n2", "--expected-peers", "n9")
	expectLine := func(want string, args ...string) {
		t.Helper()
		out, err := run(t, append(args, "--control-socket", one)...)
		if err != nil || strings.Count(out, "\n") != 1 || !regexp.MustCompile("^"+want+"\n$").MatchString(out) {
			t.Errorf("syncd %s: got error %v, output %q, want the line %q", strings.Join(args, " "), err, out, want)
		}
	}
	expectLine("ct: nothing to resync, no peer is live", "resync", "ct")
	_, two := startProgram(t, 2, newTestMap(t, "cli_result2"), "--join", address(1)+":7946")
	poll.Eventually(t, "the nodes are connected", func() bool {
		s, err := daemon.NewClient(one).Status(t.Context())
		return err == nil && len(s.Peers) == 1 && s.Peers[0].Receiving && s.Peers[0].Sending
	})
	expectExit(t, 0, "wait-ready", "--timeout", "20s", "--control-socket", two)
	const after = ` after \d+(\.\d+)?m?s`
	expectLine("ct: in sync with n2"+after, "resync", "ct")
	expectLine("in service: the node was not drained", "drain", "--undo")
	poll.Eventually(t, "the peer can take over", func() bool {
		s, err := daemon.NewClient(one).Status(t.Context())
		return err == nil && s.Redundancy.Live == 1
	})
	if out, err := run(t, "drain", "--control-socket", one); err != nil || !strings.Contains(out, "\nhanded over to 1 live peers after ") {
		t.Errorf("drain: got error %v, output %q, want the result", err, out)
	}
	expectLine("in service"+after, "drain", "--undo")
	expectLine("ct: 0 records removed", "forget", "--owner", "n9", "--yes")
	expectLine("ct: 0 records removed", "purge", "ct", "--yes")
	expectLine("reloaded", "reload")
	expectLine(`scans are paused until \S+`, "scans", "pause", "--for", "1m")
	expectLine("scans are not paused", "scans", "resume")
	for _, args := range [][]string{{"forget", "--owner", "n9", "--yes"}, {"purge", "ct", "--yes"}, {"reload"}} {
		out, err := run(t, append(args, "--json", "--control-socket", one)...)
		if decoder := json.NewDecoder(strings.NewReader(out)); err != nil || decoder.Decode(&struct{}{}) != nil || decoder.More() {
			t.Errorf("syncd %s --json: got error %v, output %q, want one JSON document", strings.Join(args, " "), err, out)
		}
	}
	file := filepath.Join(t.TempDir(), "ct.proto")
	if out, err := run(t, "schema", "export", "../bench/lb/bpf/lb_bpfel.o", "--map", "ct_map", "--output", file); err != nil || out != fmt.Sprintf("%s: types of ct_map written\n", file) {
		t.Errorf("schema export --output: got error %v, output %q, want one line", err, out)
	}
}

// A forget before a map has appeared states that it has removed nothing.
func TestForgetWithoutATable(t *testing.T) {
	socket := startDaemon(t, "cli_no_such_map", "lb9")
	poll.Eventually(t, "syncd answers", func() bool { _, err := daemon.NewClient(socket).Ready(t.Context()); return err == nil })
	out, err := run(t, "forget", "--owner", "lb9", "--yes", "--control-socket", socket)
	if err != nil || out != "no records removed: no kernel map has appeared yet\n" {
		t.Errorf("forget without a table: got error %v, output %q, want that nothing was removed", err, out)
	}
}

// A mistyped name of a map or an owner is wrong use, with a suggestion.
func TestMistypedNames(t *testing.T) {
	const name = "cli_names"
	newTestMap(t, name)
	socket := startDaemon(t, name, "lb9")
	expectExit(t, 0, "wait-ready", "--timeout", "20s", "--control-socket", socket)
	for line, want := range map[string]string{
		"dump cli_name": name, "watch cli_nmes": name, "watch cli_nmes --cluster": name, "diff cli-names": name, "resync cli_name": name, "purge cli_name --yes": name,
		"forget cli_name --owner lb9 --yes": name, "clears restore cli_name": name, "forget --owner lb8 --yes": "lb9", "diff cli_names --peer lb8": "lb9",
		"dump cli_names --where key.byte=00": "key.bytes", "schema show ../bench/lb/bpf/lb_bpfel.o --map ct_mp": "ct_map",
	} {
		args := strings.Fields(line)
		if args[0] != "schema" {
			args = append(args, "--control-socket", socket)
		}
		if out, err := run(t, args...); exitCode(err) != exitUsage || !strings.HasSuffix(err.Error(), " (did you mean "+want+"?)") {
			t.Errorf("syncd %s: got exit code %d, error %v, want %d and the suggestion %s\n%s", line, exitCode(err), err, exitUsage, want, out)
		}
	}
}
