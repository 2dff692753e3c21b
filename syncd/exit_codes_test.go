package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"mapsync/internal/handbook"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// eachCommand calls fn with every command without subcommands, and arguments that it accepts.
func eachCommand(t *testing.T, fn func(path []string, cmd *cobra.Command, args []string)) {
	t.Helper()
	var visit func(cmd *cobra.Command, path []string)
	visit = func(cmd *cobra.Command, path []string) {
		for _, sub := range cmd.Commands() {
			visit(sub, append(path[:len(path):len(path)], sub.Name()))
		}
		if cmd.HasSubCommands() {
			return
		}
		for _, args := range [][]string{nil, {"ct"}, {"a", "b"}} {
			if cmd.ValidateArgs(args) == nil {
				fn(path, cmd, args)
				return
			}
		}
		t.Errorf("command %q: got no accepted arguments, want none, 1 or 2 arguments to be accepted", path)
	}
	visit(newRoot(), nil)
}

// expectExit runs a command line and checks its exit code. A failure must have a reason.
func expectExit(t *testing.T, code int, args ...string) {
	t.Helper()
	out, err := run(t, args...)
	if got := exitCode(err); got != code {
		t.Errorf("syncd %s: exit code %d, want %d: %v\n%s", strings.Join(args, " "), got, code, err, out)
	} else if err != nil && out == "" && strings.TrimSpace(err.Error()) == "" {
		t.Errorf("syncd %s: got a failure without a reason, want a reason", strings.Join(args, " "))
	}
}

// Every command returns 2 for an unknown flag, an invalid value or an extra argument, and 0 for
// --help.
func TestEveryCommandRefusesBadFlags(t *testing.T) {
	expectExit(t, exitUsage, "no-such-command")
	expectExit(t, exitUsage, "schema", "no-such-command")
	expectExit(t, exitUsage, "--no-such-flag")
	expectExit(t, 0, "--help")
	expectExit(t, 0)
	eachCommand(t, func(path []string, cmd *cobra.Command, args []string) {
		with := func(more ...string) []string {
			return append(append(append([]string{}, path...), args...), more...)
		}
		expectExit(t, 0, append(path[:len(path):len(path)], "--help")...)
		expectExit(t, exitUsage, with("--no-such-flag")...)
		expectExit(t, exitUsage, with("surplus", "surplus", "surplus")...)
		if len(args) > 0 {
			expectExit(t, exitUsage, path...)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			switch f.Value.Type() {
			case "string", "stringArray":
				expectExit(t, exitUsage, with("--"+f.Name)...) // without its value
			default:
				expectExit(t, exitUsage, with("--"+f.Name+"=maybe")...)
			}
		})
	})
}

// Every command that sends requests to the daemon returns 3 if no daemon answers.
func TestEveryCommandFailsWithoutADaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none.sock")
	eachRequest(t, func(line []string) { expectExit(t, exitNoAnswer, append(line, "--control-socket", socket)...) })
}

// requests are the commands that send requests to the daemon.
var requests = map[string]bool{
	"status": true, "events": true, "explain": true, "wait-ready": true, "drain": true, "dump": true, "watch": true, "diff": true, "resync": true, "pause": true, "resume": true, "forget": true, "purge": true,
	"clears release": true, "clears restore": true, "latency": true, "scans pause": true, "scans resume": true, "reload": true,
	"support-bundle": true,
}

// eachRequest calls fn with a command line, without a socket, of each command that sends requests to the daemon. It gives up
// soon.
func eachRequest(t *testing.T, fn func(line []string)) {
	t.Helper()
	eachCommand(t, func(path []string, cmd *cobra.Command, args []string) {
		socket := cmd.Flags().Lookup("control-socket") != nil && cmd.Name() != "run" && cmd.Name() != "check" && cmd.Name() != "notify"
		if socket != requests[strings.Join(path, " ")] {
			t.Errorf("command %q: has --control-socket %t, want it in the list of commands that send requests", path, socket)
		}
		if !socket {
			return
		}
		line := append(append([]string{}, path...), args...)
		for name, value := range map[string]string{"timeout": "10ms", "answer-timeout": "10ms", "yes": "true", "owner": "lb9", "file": filepath.Join(t.TempDir(), "file")} {
			if cmd.Flags().Lookup(name) != nil {
				line = append(line, "--"+name+"="+value)
			}
		}
		if cmd.Name() == "latency" {
			line = append(line, "--for=1s")
		}
		fn(line)
	})
}

// Values that are syntactically valid but cannot be used are wrong use, too.
func TestValuesThatCannotBeUsed(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "syncd.yaml")
	if err := os.WriteFile(broken, []byte("map: [\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	settings := []string{"run", "--map", "ct", "--node-name", "n", "--state-dir", dir, "--control-socket", filepath.Join(dir, "s")}
	with := func(more ...string) []string { return append(settings[:len(settings):len(settings)], more...) }
	for _, args := range [][]string{
		{"run"},
		{"run", "--config", broken},
		with("--buffer", "tape"),
		with("--expected-peers", "2", "--expected-peers", "lb2"),
		with("--grpc-listen", "0.0.0.0:7947"), // unencrypted
		with("--join", "127.0.2.3:7946"),      // unencrypted on loopback
		with("--expected-peers", "1"),         // unencrypted on loopback
		with("--observers", "lb2"),            // unencrypted on loopback
		with("--field", "nonsense"),
		with("--attach", "none", "--gossip-listen", "127.0.2.3:0", "--grpc-listen", "127.0.2.3:0", "--metrics-listen", "", "--field", "other:x=volatile"),
		{"wait-ready", "--timeout", "-1s"},
		{"drain", "--timeout", "-1s"},
		{"resync", "ct", "--timeout", "-1s"},
		{"status", "--timeout", "0s"},
		{"wait-ready", "--answer-timeout", "-1s"},
		{"scans", "pause", "--for", "0s"},
		{"scans", "pause", "--for", "25h"},
		{"scans", "stop"},
		{"schema", "show", filepath.Join(dir, "none.o")},
		{"schema", "show", "what:7"},
	} {
		expectExit(t, exitUsage, args...)
	}
}

// A running daemon answers requests for unknown maps and fields as wrong use, and other requests
// normally.
func TestExitCodesOfARunningDaemon(t *testing.T) {
	const name = "cli_exit"
	newTestMap(t, name)
	socket := startDaemon(t, name)
	ask := func(code int, args ...string) {
		t.Helper()
		expectExit(t, code, append(args, "--control-socket", socket)...)
	}
	ask(0, "wait-ready", "--timeout", "20s")
	ask(0, "status")
	ask(0, "status", "--json")
	ask(0, "dump", name)
	ask(exitUsage, "dump", "other")
	ask(exitUsage, "watch", "other")
	ask(exitUsage, "diff", "other")
	ask(exitUsage, "resync", "other")
	ask(exitUsage, "dump", name, "--where", "nonsense")
	ask(exitFailed, "diff", name) // no peer to compare with
	ask(exitUsage, "diff", name, "--peer", "lb9")
	ask(0, "resync", name)
	ask(exitUsage, "pause", "other")
	ask(0, "pause", name)
	ask(exitFailed, "status") // the pause is a problem
	ask(0, "resume", name)
	ask(0, "resume", name)
	ask(0, "status")
	ask(0, "scans", "pause", "--for", "1h")
	ask(0, "scans", "resume")
	ask(exitFailed, "drain", "--timeout", "1s") // the last node
	ask(0, "drain", "--undo")
}

// The help of every command contains its exit codes.
func TestExitCodesAreInTheHelp(t *testing.T) {
	eachCommand(t, func(path []string, cmd *cobra.Command, _ []string) {
		if path[0] == "completion" || path[0] == "help" {
			return // commands of cobra
		}
		out, err := run(t, append(path[:len(path):len(path)], "--help")...)
		if err != nil || !strings.Contains(out, "Exit code 0: ") || !strings.Contains(out, " 2: ") && !strings.Contains(out, "\n2: ") {
			t.Errorf("help of %q: error %v, want exit codes in\n%s", path, err, out)
		}
		limit := "timeout"
		if cmd.Flags().Lookup("answer-timeout") != nil {
			limit = "answer-timeout"
		}
		if requests[strings.Join(path, " ")] != strings.Contains(out, "\n3: the daemon does not answer within --"+limit+".") {
			t.Errorf("help of %q: want exit code 3 only if the command sends requests, in\n%s", path, out)
		}
	})
}

// docs/operations.md contains the exit codes of every command.
func TestExitCodesAreDocumented(t *testing.T) {
	page, err := handbook.Read("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	section := page.Find("exit-codes")
	if section == nil {
		t.Fatal("operations.md: want a section on exit codes")
	}
	eachCommand(t, func(path []string, cmd *cobra.Command, _ []string) {
		if path[0] == "completion" {
			return // a command of cobra
		}
		if command := "`" + strings.Join(path, " ") + "`"; !strings.Contains(section.Prose, command) {
			t.Errorf("section on exit codes: want %s", command)
		}
	})
}
