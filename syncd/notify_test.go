package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/printable"
)

// TestNotify: each change of readiness and each problem that begins runs its command once. A command that fails or hangs does not end it.
func TestNotify(t *testing.T) {
	const name = "cli_notify"
	newTestMap(t, name)
	socket := startDaemon(t, name, "lb9") // which is missing: a problem
	expectExit(t, 0, "wait-ready", "--timeout", "20s", "--control-socket", socket)
	file := filepath.Join(t.TempDir(), "events")
	note := `printf '%s %s %s\n' "$MAPSYNC_NODE" "$MAPSYNC_STATE" "$MAPSYNC_PROBLEM" >>` + file
	events := func() string {
		data, err := os.ReadFile(file)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return string(data)
	}
	has := func(what, line string) {
		t.Helper()
		poll.Eventually(t, what, func() bool { return strings.Contains(events(), line) }, func() any { return events() })
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out bytes.Buffer
	root := newRoot()
	root.SetOut(&out)
	root.SetErr(printable.NewWriter(&out))
	root.SetArgs([]string{
		"notify", "--on-ready", note, "--on-not-ready", note + "; exit 7", "--on-problem", note + "; sleep 60", "--interval", "50ms",
		"--command-timeout", "1s", "--control-socket", socket,
	})
	done := make(chan error, 1)
	go func() { done <- root.ExecuteContext(ctx) }()
	has("the state at the start", "cli ready \n")
	has("a problem", "cli problem redundancy\n")
	if _, err := run(t, "drain", "--force", "--control-socket", socket); err != nil {
		t.Fatal(err)
	}
	has("the drain", "cli not-ready \n")
	if _, err := run(t, "drain", "--undo", "--control-socket", socket); err != nil {
		t.Fatal(err)
	}
	poll.Eventually(t, "the end of the drain", func() bool { return strings.Count(events(), "cli ready \n") == 2 }, func() any { return events() })
	time.Sleep(time.Second) // nothing happens meanwhile
	cancel()
	if err := <-done; err != nil {
		t.Errorf("notify: got error %v, want none", err)
	}
	if n := strings.Count(events(), "problem redundancy"); n != 1 {
		t.Errorf("commands for a problem that lasts: got %d, want 1, in\n%s", n, events())
	}
	if n := strings.Count(events(), "not-ready"); n != 1 {
		t.Errorf("commands for a drain: got %d, want 1, in\n%s", n, events())
	}
	if !strings.Contains(out.String(), "the command for not-ready has failed: exit status 7") || !strings.Contains(out.String(), "the command for problem has failed: ") {
		t.Errorf("output: want the commands that have failed in\n%s", out.String())
	}
	expectExit(t, exitUsage, "notify", "--control-socket", socket)
	expectExit(t, exitUsage, "notify", "--on-ready", "true", "--interval", "0s", "--control-socket", socket)
}

// TestNotifyWithoutADaemon: a daemon that does not answer is not ready.
func TestNotifyWithoutADaemon(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), poll.Lengthened(5*time.Second))
	defer cancel()
	out := &firstLine{end: cancel}
	root := newRoot()
	root.SetOut(out)
	root.SetArgs([]string{"notify", "--on-not-ready", `echo "$MAPSYNC_STATE: $MAPSYNC_TEXT"`, "--on-ready", "echo ready", "--control-socket", filepath.Join(t.TempDir(), "none.sock")})
	if err := root.ExecuteContext(ctx); err != nil || !strings.HasPrefix(out.String(), "not-ready: ") || strings.TrimSpace(out.String()) == "not-ready:" {
		t.Errorf("notify: got error %v and output %q, want not-ready and the reason", err, out.String())
	}
}
