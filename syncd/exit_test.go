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

// each calls fn with every command that does something, and arguments that it accepts.
func each(t *testing.T, fn func(path []string, cmd *cobra.Command, args []string)) {
	t.Helper()
	var walk func(cmd *cobra.Command, path []string)
	walk = func(cmd *cobra.Command, path []string) {
		for _, sub := range cmd.Commands() {
			walk(sub, append(path[:len(path):len(path)], sub.Name()))
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
		t.Errorf("%q accepts no arguments that the test has", path)
	}
	walk(newRoot(), nil)
}

// wants runs a command line and checks its exit code. An error must say something.
func wants(t *testing.T, code int, args ...string) {
	t.Helper()
	out, err := run(t, args...)
	if got := exitCode(err); got != code {
		t.Errorf("syncd %s: exit code %d, want %d: %v\n%s", strings.Join(args, " "), got, code, err, out)
	} else if err != nil && out == "" && strings.TrimSpace(err.Error()) == "" {
		t.Errorf("syncd %s: fails without a reason", strings.Join(args, " "))
	}
}

// Every command says 2 for a flag, a value or an argument that it does not take, and 0 for
// --help.
func TestEveryCommandRefusesBadFlags(t *testing.T) {
	wants(t, exitUsage, "no-such-command")
	wants(t, exitUsage, "schema", "no-such-command")
	wants(t, exitUsage, "--no-such-flag")
	wants(t, 0, "--help")
	wants(t, 0)
	each(t, func(path []string, cmd *cobra.Command, args []string) {
		with := func(more ...string) []string {
			return append(append(append([]string{}, path...), args...), more...)
		}
		wants(t, 0, append(path[:len(path):len(path)], "--help")...)
		wants(t, exitUsage, with("--no-such-flag")...)
		wants(t, exitUsage, with("surplus", "surplus", "surplus")...)
		if len(args) > 0 {
			wants(t, exitUsage, path...)
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			switch f.Value.Type() {
			case "string", "stringArray":
				wants(t, exitUsage, with("--"+f.Name)...) // without its value
			default:
				wants(t, exitUsage, with("--"+f.Name+"=maybe")...)
			}
		})
	})
}

// Every command that asks the daemon says 1 if no daemon answers.
func TestEveryCommandFailsWithoutADaemon(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none.sock")
	count := 0
	each(t, func(path []string, cmd *cobra.Command, args []string) {
		if cmd.Flags().Lookup("control-socket") == nil || cmd.Name() == "run" || cmd.Name() == "check" {
			return
		}
		count++
		line := append(append(append([]string{}, path...), args...), "--control-socket", socket)
		if cmd.Flags().Lookup("timeout") != nil {
			line = append(line, "--timeout", "10ms")
		}
		if cmd.Flags().Lookup("yes") != nil {
			line = append(line, "--yes")
		}
		if cmd.Flags().Lookup("owner") != nil {
			line = append(line, "--owner", "lb9")
		}
		wants(t, exitFailed, line...)
	})
	if count < 8 {
		t.Errorf("%d commands", count)
	}
}

// Values that parse and cannot be used are wrong use, too.
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
		with("--field", "nonsense"),
		with("--attach", "none", "--gossip-listen", "127.0.2.3:0", "--grpc-listen", "127.0.2.3:0", "--metrics-listen", "", "--field", "other:x=volatile"),
		{"wait-ready", "--timeout", "-1s"},
		{"drain", "--timeout", "-1s"},
		{"resync", "ct", "--timeout", "-1s"},
		{"schema", "show", filepath.Join(dir, "none.o")},
		{"schema", "show", "what:7"},
	} {
		wants(t, exitUsage, args...)
	}
}

// A running daemon refuses what it does not have as wrong use, and answers the rest.
func TestExitCodesOfARunningDaemon(t *testing.T) {
	const name = "cli_exit"
	newTestMap(t, name)
	socket := startDaemon(t, name)
	ask := func(code int, args ...string) {
		t.Helper()
		wants(t, code, append(args, "--control-socket", socket)...)
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
	ask(exitFailed, "diff", name)                  // there is no peer to compare with
	ask(exitFailed, "diff", name, "--peer", "lb9") // nor that one
	ask(0, "resync", name)
	ask(exitFailed, "drain", "--timeout", "1s") // the last node
	ask(0, "drain", "--undo")
}

// docs/operations.md has the table of --help.
func TestExitCodesAreDocumented(t *testing.T) {
	page, err := handbook.Read("../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	section := page.Find("exit-codes")
	if section == nil {
		t.Fatal("operations.md has no section on exit codes")
	}
	each(t, func(path []string, cmd *cobra.Command, _ []string) {
		if path[0] == "completion" {
			return // the library's
		}
		if command := "`" + strings.Join(path, " ") + "`"; !strings.Contains(section.Prose, command) {
			t.Errorf("the section on exit codes does not name %s", command)
		}
	})
}
