package main

import (
	"bytes"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/config"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// complete returns what the shell offers for the last of args, without descriptions. It fails if the user would see an error.
func complete(t *testing.T, args ...string) (offers []string, directive cobra.ShellCompDirective) {
	t.Helper()
	var out, problems bytes.Buffer
	root := newRoot()
	root.SetOut(&out)
	root.SetErr(&problems)
	root.SetArgs(append([]string{cobra.ShellCompRequestCmd}, args...))
	if err := root.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("complete %q: %v", args, err)
	}
	if text := problems.String(); !strings.HasPrefix(text, "Completion ended with directive: ") || strings.Count(text, "\n") != 1 {
		t.Errorf("complete %q: got errors %q, want none", args, text)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	n, err := strconv.Atoi(strings.TrimPrefix(lines[len(lines)-1], ":"))
	if err != nil {
		t.Fatalf("complete %q: got %q, want a directive at the end", args, out.String())
	}
	for _, line := range lines[:len(lines)-1] {
		offer, _, _ := strings.Cut(line, "\t")
		offers = append(offers, offer)
	}
	return offers, cobra.ShellCompDirective(n)
}

const (
	onlyOffers = cobra.ShellCompDirectiveNoFileComp
	files      = cobra.ShellCompDirectiveDefault
	filesOf    = cobra.ShellCompDirectiveFilterFileExt
	folders    = cobra.ShellCompDirectiveFilterDirs
	partial    = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
)

// expectOffers checks what the shell offers for the last of args.
func expectOffers(t *testing.T, directive cobra.ShellCompDirective, want []string, args ...string) {
	t.Helper()
	if offers, got := complete(t, args...); !slices.Equal(offers, want) || got != directive {
		t.Errorf("complete %q: got %q, directive %d, want %q, %d", args, offers, got, want, directive)
	}
}

// The shell offers the maps of the daemon for each argument that is a map, object files for those that may be one, and
// nothing for other arguments.
func TestCompletionOfArguments(t *testing.T) {
	const name = "cli_arguments"
	newTestMap(t, name)
	socket := startDaemon(t, name)
	expectExit(t, 0, "wait-ready", "--timeout", "20s", "--control-socket", socket)
	eachCommand(t, func(path []string, cmd *cobra.Command, args []string) {
		line := slices.Clone(path)
		if requests[strings.Join(path, " ")] {
			line = append(line, "--control-socket", socket)
		}
		_, argument, _ := strings.Cut(cmd.Use, " ")
		switch {
		case strings.HasSuffix(argument, "MAP|FILE.o"):
			expectOffers(t, filesOf, []string{"o"}, append(line, "")...)
		case strings.Contains(argument, "MAP"):
			expectOffers(t, onlyOffers, []string{name}, append(line, "")...)
		case argument == "[COMMAND]":
			return
		case argument == "NAME|FILE":
			expectOffers(t, files, config.Profiles(), append(line, "")...)
		default:
			expectOffers(t, onlyOffers, nil, append(line, "")...)
		}
		expectOffers(t, onlyOffers, nil, append(line, "a", "")...)
	})
	expectOffers(t, onlyOffers, []string{"export", "show", "suggest"}, "help", "schema", "")
	expectOffers(t, onlyOffers, nil, "help", "schema", "show", "")
}

// notCompleted are the flags without a completion, with the reason.
var notCompleted = map[string]string{
	"answer-timeout": "a duration", "timeout": "a duration", "for": "a duration", "unit": "a unit of systemd", "interval": "a duration", "unused-for": "a duration", "since": "a duration", "watch": "a duration",
	"dead-time": "a duration", "sync-timeout": "a duration", "tombstone-ttl": "a duration", "max-clock-ahead": "a duration", "evicted-ttl": "a duration",
	"scan-interval": "a duration", "max-scan-interval": "a duration", "refresh-interval": "a duration", "drain-sums-ttl": "a duration",
	"top": "a number", "limit": "a number", "times": "a number", "buffer-size": "a number", "max-records-factor": "a number", "max-tombstones": "a number",
	"max-evicted": "a number", "scan-budget": "a number", "redundancy-share": "a number", "scan-cpus": "numbers", "max-connections": "a number", "memory-limit": "a size",
	"drain-sums-max-entries": "a number",
	"gossip-listen":          "an address", "gossip-advertise": "an address", "grpc-listen": "an address", "grpc-advertise": "an address",
	"metrics-listen": "an address", "join": "an address of another host",
	"node-name": "a new name", "cluster": "a new name", "expected-peers": "names of other hosts", "pin-owner": "a user",
	"allowed-names": "a pattern", "observers": "a pattern", "read-from": "a pattern", "write-from": "a pattern",
	"map": "a reference to a map, for which each user has another form", "schema": "MAP=FILE.o: shells do not complete files after =",
	"on-ready": "a command", "on-not-ready": "a command", "on-problem": "a command", "command-timeout": "a duration",
	"field": "MAP:FIELD=ROLE of a map that need not exist yet", "takeover-expiry": "MAP=DURATION", "drain-sums": "maps that may not be set yet",
	"optional-map": "maps that may not be set yet", "referenced-map": "maps that may not exist yet", "entry-size": "MAP=KEY+VALUE",
}

// The shell offers the values of each flag, unless it is in the list of those that have none.
func TestCompletionOfFlags(t *testing.T) {
	const name, object = "cli_flags", "../bench/lb/bpf/lb_bpfel.o"
	newTestMap(t, name)
	socket := startDaemon(t, name, "lb9")
	expectExit(t, 0, "wait-ready", "--timeout", "20s", "--control-socket", socket)
	names := map[string][]string{"peer": {"lb9"}, "owner": {"lb9"}, "sum": {"bytes"}}
	unused := make(map[string]bool)
	for flag := range notCompleted {
		unused[flag] = true
	}
	eachCommand(t, func(path []string, cmd *cobra.Command, _ []string) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() == "bool" {
				return
			}
			line := slices.Clone(path)
			switch {
			case requests[path[0]] || requests[strings.Join(path, " ")]:
				line = append(line, "--control-socket", socket, name)
			case path[0] == "schema":
				line = append(line, object)
			}
			line = append(line, "--"+f.Name, "")
			values, perMap := config.Choices(f.Name)
			switch {
			case perMap:
				with := append(slices.Clone(path), "--map", "ct=id:7", "--map", "/sys/fs/bpf/lb/nat", "--"+f.Name)
				expectOffers(t, partial, []string{"ct=", "nat="}, append(with, "")...)
				expectOffers(t, onlyOffers, []string{"ct=" + values[0], "ct=" + values[1]}, append(with, "ct=")...)
			case values != nil:
				expectOffers(t, onlyOffers, values, line...)
			case f.Name == "where":
				expectOffers(t, partial, []string{"key.bytes=", "value.bytes="}, line...)
				expectOffers(t, onlyOffers, nil, append(line[:len(line)-1], "key.bytes=")...)
			case path[0] == "events" && f.Name == "map":
				expectOffers(t, onlyOffers, []string{name}, line...)
			case f.Name == "profile":
				expectOffers(t, files, config.Profiles(), line...)
			case names[f.Name] != nil:
				expectOffers(t, onlyOffers, names[f.Name], line...)
			case f.Name == "state-dir", f.Name == "pin-dir":
				expectOffers(t, folders, nil, line...)
			case f.Name == "config":
				expectOffers(t, filesOf, []string{"yaml", "yml"}, line...)
			case f.Name == "file":
				expectOffers(t, filesOf, []string{"gz"}, line...)
			case f.Name == "output":
				expectOffers(t, filesOf, []string{"proto"}, line...)
			case f.Name == "control-socket", f.Name == "gossip-key-file", strings.HasPrefix(f.Name, "tls-"):
				expectOffers(t, files, nil, append(slices.Clone(path), "--"+f.Name, "")...)
			case path[0] == "schema" && f.Name == "map":
				expectOffers(t, onlyOffers, []string{"backends", "ct_map", "stats", "vips"}, line...)
			default:
				if notCompleted[f.Name] == "" {
					t.Errorf("flag --%s of %q: want a completion, or a reason why it has none", f.Name, path)
				}
				delete(unused, f.Name)
				expectOffers(t, onlyOffers, nil, line...)
			}
		})
	})
	for flag := range unused {
		t.Errorf("flag --%s: want no reason for a completion that it has, or for a flag that does not exist", flag)
	}
}

// Without a daemon, and if it does not answer, the shell offers nothing and shows no error.
func TestCompletionWithoutADaemon(t *testing.T) {
	silent := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", silent)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	for _, socket := range []string{filepath.Join(t.TempDir(), "none"), silent} {
		began := time.Now()
		expectOffers(t, onlyOffers, nil, "dump", "--control-socket", socket, "")
		expectOffers(t, onlyOffers, nil, "forget", "--control-socket", socket, "--owner", "")
		expectOffers(t, partial, nil, "dump", "--control-socket", socket, "ct", "--where", "")
		if took := time.Since(began); took > poll.Limit {
			t.Errorf("completions without a daemon: took %s, want at most %s", took, poll.Limit)
		}
	}
}
