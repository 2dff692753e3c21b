package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"mapsync/syncd/daemon"

	"golang.org/x/sys/unix"
)

// terminal returns both ends of a pseudo-terminal.
func terminal(t *testing.T) (operator, command *os.File) {
	t.Helper()
	operator, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { operator.Close() })
	if err := unix.IoctlSetPointerInt(int(operator.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(operator.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	command, err = os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { command.Close() })
	return operator, command
}

// runWithAnswer runs a command line while the operator types line on a terminal.
func runWithAnswer(t *testing.T, line string, args ...string) (string, error) {
	t.Helper()
	operator, command := terminal(t)
	if _, err := operator.WriteString(line + "\n"); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	root := newRoot()
	root.SetIn(command)
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

func TestForgetAndPurgeAskForConfirmation(t *testing.T) {
	const name = "cli_remove"
	newTestMap(t, name)
	socket := startDaemon(t, name, "lb9")
	expectExit(t, 0, "wait-ready", "--timeout", "20s", "--control-socket", socket)
	for _, args := range [][]string{
		{"forget", "--owner", "lb9", "--control-socket", socket},
		{"forget", "--owner", "lb9", name, "--control-socket", socket},
		{"purge", name, "--control-socket", socket},
		{"purge", name, "--unused-for", "1h", "--force", "--control-socket", socket},
		{"purge", "--all", name, "--control-socket", socket},
	} {
		expectExit(t, exitUsage, args...) // the input of a test is not a terminal
		if _, err := run(t, args...); err == nil || !strings.Contains(err.Error(), "not a terminal") {
			t.Errorf("%q without a terminal: got error %v, want \"not a terminal\"", args, err)
		}
		out, err := runWithAnswer(t, "no", args...)
		if !errors.Is(err, errNotConfirmed) || exitCode(err) != exitFailed || !strings.Contains(out, "on every node") {
			t.Errorf("%q, answer no: got error %v, want errNotConfirmed\n%s", args, err, out)
		}
		if out, err = runWithAnswer(t, "yes", args...); err != nil || !strings.Contains(out, name+": 0 records removed") {
			t.Errorf("%q, answer yes: got error %v, want 0 records removed\n%s", args, err, out)
		}
		out, err = run(t, append(args, "--yes", "--json")...)
		var done daemon.Removed
		if err := errors.Join(err, json.Unmarshal([]byte(out), &done)); err != nil || len(done.Maps) != 1 || done.Maps[0].Map != name {
			t.Errorf("%q --yes --json: got error %v, want one map\n%s", args, err, out)
		}
	}
	yes := func(code int, args ...string) {
		t.Helper()
		expectExit(t, code, append(args, "--yes", "--control-socket", socket)...)
	}
	yes(exitUsage, "forget")                   // no owner
	yes(exitUsage, "forget", "--owner", "cli") // this node
	yes(exitUsage, "forget", "--owner", "lb8") // no such node
	yes(exitUsage, "forget", "--owner", "lb9", "other")
	yes(exitUsage, "purge", "other")
	yes(exitUsage, "purge", "other", "--unused-for", "1h")
	yes(exitUsage, "purge", name, "--unused-for", "0s")
	yes(exitUsage, "purge", name, "--unused-for", "-1h")
	yes(exitUsage, "purge", name, "--force")
	yes(exitUsage, "purge", name, "--all", "--unused-for", "1h")
	yes(exitFailed, "purge", name, "--unused-for", "1h") // no use is visible
	if _, err := run(t, "purge", name, "--unused-for", "1h", "--yes", "--control-socket", socket); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("purge of unused records without visible uses: got error %v, want one that names --force", err)
	}
	yes(exitUsage, "purge", "--all", "other")
	yes(exitUsage, "purge", "--all") // one map at a time
}
