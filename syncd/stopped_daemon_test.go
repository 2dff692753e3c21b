package main

import (
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/internal/seccomp"
	"mapsync/syncd/daemon"

	"golang.org/x/sys/unix"
)

// programVariable makes the test binary run as syncd.
const programVariable = "SYNCD_TEST_PROGRAM"

// filterVariable makes that process deny bpf(2) to itself, if it is set.
const filterVariable = "SYNCD_TEST_FILTER"

func TestMain(m *testing.M) {
	if os.Getenv(filterVariable) != "" {
		if err := errors.Join(seccomp.Deny(unix.SYS_BPF), os.Unsetenv(filterVariable)); err != nil {
			log.Fatal(err)
		}
		log.Fatal(unix.Exec("/proc/self/exe", os.Args, os.Environ())) // the libraries examine the kernel as they start
	}
	if os.Getenv(programVariable) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// program returns a command that runs syncd as a process of its own.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), programVariable+"=1")
	return cmd
}

// address returns the address of a node. These tests may run in several processes of this machine.
func address(number int) string {
	return fmt.Sprintf("127.%d.%d.%d", 1+os.Getpid()/250%250, os.Getpid()%250, number)
}

// startProgram runs node n1, n2 and so on as a process of its own, with one map, until the end of the test.
func startProgram(t *testing.T, number int, ref string, more ...string) (p *os.Process, socket string) {
	t.Helper()
	dir := t.TempDir()
	socket = filepath.Join(dir, "syncd.sock")
	cmd := program(t, append([]string{
		"run", "--map", ref, "--attach", "none", "--node-name", fmt.Sprint("n", number), "--state-dir", dir, "--control-socket", socket,
		"--gossip-listen", address(number) + ":7946", "--grpc-listen", address(number) + ":7947", "--insecure", "--metrics-listen", "", "--pin-dir", "",
	}, more...)...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	expectExit(t, 0, "wait-ready", "--timeout", poll.Limit.String(), "--control-socket", socket)
	return cmd.Process, socket
}

func sendSignal(t *testing.T, p *os.Process, s syscall.Signal) {
	t.Helper()
	if err := p.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// stop stops a process, and waits until each of its threads has stopped.
func stop(t *testing.T, p *os.Process) {
	t.Helper()
	sendSignal(t, p, syscall.SIGSTOP)
	poll.Eventually(t, "all threads are stopped", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.Pid))
		return err == nil && len(threads) > 0 && !slices.ContainsFunc(threads, func(path string) bool {
			stat, err := os.ReadFile(path)
			return err != nil || !strings.Contains(string(stat), ") T ")
		})
	})
}

// Every command that sends requests returns 3 if the daemon is stopped, with the remedy.
func TestEveryCommandOfAStoppedDaemon(t *testing.T) {
	const name = "cli_stopped"
	newTestMap(t, name)
	p, socket := startProgram(t, 1, name)
	stop(t, p)
	eachRequest(t, func(line []string) {
		line = append(line, "--control-socket", socket)
		began := time.Now()
		out, err := run(t, line...)
		if exitCode(err) != exitNoAnswer || !strings.Contains(err.Error(), "systemctl restart syncd") {
			t.Errorf("syncd %s: got exit code %d, error %v, want %d and the remedy\n%s", strings.Join(line, " "), exitCode(err), err, exitNoAnswer, out)
		}
		if took := time.Since(began); took > poll.Limit {
			t.Errorf("syncd %s: took %s, want at most %s", strings.Join(line, " "), took, poll.Limit)
		}
	})
	var exit *exec.ExitError
	if err := program(t, "status", "--timeout", "10ms", "--control-socket", socket).Run(); !errors.As(err, &exit) || exit.ExitCode() != exitNoAnswer {
		t.Errorf("process of syncd status: got %v, want exit code %d", err, exitNoAnswer)
	}
	sendSignal(t, p, syscall.SIGCONT)
	expectExit(t, 0, "dump", name, "--timeout", poll.Limit.String(), "--control-socket", socket)
}

// A watch continues while nothing changes, and ends when the daemon stops.
func TestWatchOfAStoppedDaemon(t *testing.T) {
	const name = "cli_idle"
	newTestMap(t, name)
	p, socket := startProgram(t, 1, name)
	ended := make(chan error, 1)
	go func() {
		_, err := run(t, "watch", name, "--control-socket", socket)
		ended <- err
	}()
	poll.Stays(t, defaultAnswerTimeout+2*time.Second, "the watch continues", func() bool { return len(ended) == 0 })
	stop(t, p)
	poll.Eventually(t, "the watch ends", func() bool { return len(ended) == 1 })
	if err := <-ended; !errors.Is(err, daemon.ErrNotRunning) {
		t.Errorf("watch of a stopped daemon: got error %v, want ErrNotRunning", err)
	}
}
