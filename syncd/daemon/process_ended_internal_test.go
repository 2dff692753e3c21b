package daemon

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"mapsync/syncd/table"

	"golang.org/x/sys/unix"
)

// ownStat returns the fields of /proc/self/stat after the name, and the start of the process.
func ownStat(t *testing.T) (fields []string, start int64) {
	t.Helper()
	data, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	fields = strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	ticks, err := strconv.ParseInt(fields[19], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return fields, ticks * tick
}

// endedProcess returns the ID of a process that has ended.
func endedProcess(t *testing.T) uint32 {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^$")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	return uint32(cmd.Process.Pid)
}

// TestProcessEnded: the start time distinguishes a process from a later one with the same ID.
func TestProcessEnded(t *testing.T) {
	fields, start := ownStat(t)
	self := uint32(os.Getpid())
	file := func(text string) string {
		proc := t.TempDir()
		dir := filepath.Join(proc, strconv.Itoa(int(self)))
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "stat"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return proc
	}
	zombie := append([]string{"Z"}, fields[1:]...)
	for _, c := range []struct {
		name, proc string
		process    table.Process
		want       bool
	}{
		{"running", "/proc", table.Process{ID: self, Start: start}, false},
		{"same tick", "/proc", table.Process{ID: self, Start: start + tick - 1}, false},
		{"another start", "/proc", table.Process{ID: self, Start: start + tick}, true},
		{"zombie", file("1 (a) b) " + strings.Join(zombie, " ")), table.Process{ID: self, Start: start}, true},
		{"unreadable", file(""), table.Process{ID: self, Start: start}, false},
		{"not in proc", t.TempDir(), table.Process{ID: self, Start: start}, false},
		{"no such process", "/proc", table.Process{ID: endedProcess(t), Start: start}, true},
	} {
		if got := hasEnded(c.proc, c.process); got != c.want {
			t.Errorf("%s: process has ended: got %t, want %t", c.name, got, c.want)
		}
	}
}

// The variables pass the task to the processes of TestHiddenProcess, which have no privileges in the end.
const (
	HiddenStage   = "MAPSYNC_TEST_HIDDEN_STAGE"
	hiddenRunning = "MAPSYNC_TEST_HIDDEN_RUNNING" // the ID of a process that runs
	hiddenEnded   = "MAPSYNC_TEST_HIDDEN_ENDED"   // the ID of a process that has ended
)

// TestHiddenProcess: to a syncd that is another user, /proc hides the processes of the load balancer if it is mounted with hidepid,
// as in a unit of systemd with ProtectProc=invisible. They have not ended.
func TestHiddenProcess(t *testing.T) {
	switch os.Getenv(HiddenStage) {
	case "":
		out, err := hiddenCommand(t, "mount", &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS},
			fmt.Sprintf("%s=%d", hiddenRunning, os.Getpid()), fmt.Sprintf("%s=%d", hiddenEnded, endedProcess(t))).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "hidden process runs") {
			t.Fatalf("process of another user: got error %v, want nil\n%s", err, out)
		}
	case "mount":
		if err := unix.Mount("proc", "/proc", "proc", 0, "hidepid=2"); err != nil {
			t.Fatal(err)
		}
		attr := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := hiddenCommand(t, "look", attr).CombinedOutput()
		t.Logf("%s", out)
		if err != nil {
			t.Fatal(err)
		}
	case "look":
		running, ended := hiddenProcess(t, hiddenRunning), hiddenProcess(t, hiddenEnded)
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", running.ID)); !os.IsNotExist(err) {
			t.Fatalf("/proc of the other process: got error %v, want %v", err, os.ErrNotExist)
		}
		if hasEnded("/proc", running) {
			t.Error("hidden process has ended: got true, want false")
		}
		if !hasEnded("/proc", ended) {
			t.Error("ended process has ended: got false, want true")
		}
		t.Log("hidden process runs")
	}
}

// hiddenCommand returns the command of one stage of TestHiddenProcess.
func hiddenCommand(t *testing.T, stage string, attr *syscall.SysProcAttr, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.run=^TestHiddenProcess$")
	cmd.Env = append(append(os.Environ(), HiddenStage+"="+stage), env...)
	cmd.SysProcAttr = attr
	return cmd
}

// hiddenProcess returns the process that a variable of the environment names. Its start is not known.
func hiddenProcess(t *testing.T, name string) table.Process {
	t.Helper()
	id, err := strconv.ParseUint(os.Getenv(name), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return table.Process{ID: uint32(id)}
}
