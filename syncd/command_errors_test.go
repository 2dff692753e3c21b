package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A command with a time limit also returns if the daemon accepts the connection and does not
// answer.
func TestTimeoutsOfASilentDaemon(t *testing.T) {
	for _, args := range [][]string{{"wait-ready"}, {"drain"}, {"resync", "ct"}} {
		socket := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		done := make(chan error, 1)
		go func() {
			_, err := run(t, append(args, "--timeout", "100ms", "--control-socket", socket)...)
			done <- err
		}()
		select {
		case err := <-done:
			if exitCode(err) != exitNoAnswer {
				t.Errorf("%v: got error %v, want exit code 3", args, err)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%v --timeout 100ms: no return within 20 s", args)
		}
	}
}

// An empty map name is wrong use. It does not stand for all maps.
func TestForgetOfAnEmptyMap(t *testing.T) {
	expectExit(t, exitUsage, "forget", "--owner", "lb9", "", "--yes", "--control-socket", filepath.Join(t.TempDir(), "none"))
}

// The commands of cobra and of schema also return the exit code of wrong use.
func TestWrongUseOfOtherCommands(t *testing.T) {
	for _, args := range [][]string{
		{"completion", "nosuch"},
		{"completion", "bash", "surplus"},
		{"help", "nosuch"},
		{"help", "schema", "nosuch"},
		{"schema", "show", "no_such_map"},
		{"schema", "export", "no_such_map"},
		{"schema", "show", "pin:" + filepath.Join(t.TempDir(), "none")},
		{"schema", "show", "id:4000000000"},
		{"schema", "show", "../bpf/capture_x86_bpfel.o", "--map", "no_such_map"},
		{"schema", "show", "../bpf/capture_x86_bpfel.o", "--field", "no_such_map:none=volatile"},
	} {
		expectExit(t, exitUsage, args...)
	}
	for _, args := range [][]string{{"help"}, {"help", "schema"}, {"help", "schema", "show"}, {"completion"}, {"completion", "bash"}} {
		expectExit(t, 0, args...)
	}
}

// Settings that check refuses also end run, with exit code 2.
func TestCheckAndRunAgree(t *testing.T) {
	dir := t.TempDir()
	for _, more := range [][]string{
		{"--control-socket", ""},
		{"--control-socket", "@abstract"},
		{"--buffer-size", "1000"},
		{"--metrics-listen", "127.0.9.3:99999"},
		{"--grpc-listen", "127.0.9.3:service"},
		{"--dead-time", "10ms"},
		{"--join", "nonsense"},
		{"--max-records-factor", "NaN"},
		{"--expected-peers", "70000"},
		{"--expected-peers", "-1"},
		{"--expected-peers", "2.5"},
	} {
		for _, command := range []string{"check", "run"} {
			args := append([]string{
				command, "--map", "no_such_map", "--node-name", "n", "--state-dir", dir, "--control-socket", filepath.Join(dir, "s"), "--attach", "none",
				"--gossip-listen", "127.0.9.3:0", "--grpc-listen", "127.0.9.3:0", "--insecure", "--metrics-listen", "",
			}, more...)
			expectExit(t, exitUsage, args...)
		}
	}
}

// An interrupted dump is not complete and fails.
func TestInterruptedDump(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, `{"key":"a","value":"b","version":"1"}`)
		_ = http.NewResponseController(w).Flush()
		cancel()
		<-r.Context().Done()
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	var out bytes.Buffer
	root := newRoot()
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs([]string{"dump", "ct", "--control-socket", socket})
	if err := root.ExecuteContext(ctx); exitCode(err) != exitFailed {
		t.Errorf("interrupted dump: got exit code %d, error %v after output %q, want exit code 1", exitCode(err), err, out.String())
	}
}

// Settings in a pipe are refused, because a reload would block on them.
func TestSettingsInAPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "syncd.yaml")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	expectExit(t, exitUsage, "check", "--config", pipe)
}
