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

// TestTimeoutsOfASilentDaemon: a command with a time limit returns although the daemon accepts and does not
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
			if exitCode(err) != exitFailed {
				t.Errorf("%v: %v", args, err)
			}
		case <-time.After(20 * time.Second):
			t.Errorf("%v --timeout 100ms waits for ever", args)
		}
	}
}

// TestForgetOfAnEmptyMap: an empty name is wrong use, and does not stand for all maps.
func TestForgetOfAnEmptyMap(t *testing.T) {
	wants(t, exitUsage, "forget", "--owner", "lb9", "", "--yes", "--control-socket", filepath.Join(t.TempDir(), "none"))
}

// TestWrongUseOfOtherCommands is wrong use like any other.
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
		wants(t, exitUsage, args...)
	}
	for _, args := range [][]string{{"help"}, {"help", "schema"}, {"help", "schema", "show"}, {"completion"}, {"completion", "bash"}} {
		wants(t, 0, args...)
	}
}

// TestCheckAndRunAgree: what check calls unusable is exit code 2 of run, too.
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
				"--gossip-listen", "127.0.9.3:0", "--grpc-listen", "127.0.9.3:0", "--metrics-listen", "",
			}, more...)
			wants(t, exitUsage, args...)
		}
	}
}

// TestInterruptedDump: it is not complete, and fails.
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
		t.Errorf("exit code %d, %v after %q", exitCode(err), err, out.String())
	}
}

// TestSettingsInAPipe are refused: a reload would wait for them.
func TestSettingsInAPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "syncd.yaml")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	wants(t, exitUsage, "check", "--config", pipe)
}
