package vm

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"mapsync/internal/vm/guest"
	"mapsync/internal/vm/kernel"
)

// The test binary serves as the machine's init, as the program in the machine, and as the host process
// that is killed. The environment selects the role.
const roleEnv = "VM_TEST_ROLE"

func TestMain(m *testing.M) {
	if guest.IsInit() {
		guest.Main()
	}
	if role, ok := roles[os.Getenv(roleEnv)]; ok {
		os.Exit(role())
	}
	os.Exit(m.Run())
}

var roles = map[string]func() int{
	"work": work, "hang": hang, "panic": kernelPanic, "host": runUntilKilled, "clock": watchClock,
}

const outputSize = 3 << 20

// pattern returns a text with every byte value, including carriage returns and line ends.
func pattern() []byte {
	b := make([]byte, outputSize)
	for i := range b {
		b[i] = byte(i ^ i>>8)
	}
	return b
}

// work writes a large text to standard output, its observations to standard error, and the files to
// copy out.
func work() int {
	if _, err := os.Stdout.Write(pattern()); err != nil {
		return 1
	}
	modules, _ := os.ReadFile("/proc/modules")
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	given, _ := os.ReadFile("/given/file")
	data, _ := os.ReadFile("testdata/hello.txt")
	_, probes := os.Stat("/sys/kernel/tracing/kprobe_events")
	attach, reason := CanAttachNatively()
	fmt.Fprintf(os.Stderr, "veth=%v\nrelease=%s\ngiven=%s\ndata=%s\nkprobes=%v\nargs=%q\nattach=%v %s\n",
		bytes.Contains(modules, []byte("veth ")), bytes.TrimSpace(release), given, data, probes == nil, os.Args[1:], attach, reason)
	_ = os.MkdirAll("/out/dir/sub", 0o755)
	_ = os.WriteFile("/out/dir/sub/big", pattern(), 0o600)
	_ = os.WriteFile("/out/one", []byte("one"), 0o644)
	orphan := exec.Command(os.Args[0]) // keeps the output open
	orphan.Env = []string{roleEnv + "=hang"}
	orphan.Stderr = os.Stderr
	if err := orphan.Start(); err != nil {
		return 1
	}
	return 7
}

// hang reports that it is ready and runs until it is killed.
func hang() int {
	fmt.Println("ready")
	time.Sleep(time.Hour) // the test kills this process
	return 0
}

func kernelPanic() int {
	_ = os.WriteFile("/proc/sys/kernel/sysrq", []byte("1"), 0o644)
	_ = os.WriteFile("/proc/sysrq-trigger", []byte("c"), 0o644)
	time.Sleep(time.Hour) // until the panic ends the machine
	return 0
}

// runUntilKilled runs a machine until this process is killed.
func runUntilKilled() int {
	cfg, err := config("hang")
	if err == nil {
		cfg.Stdout, cfg.Stderr = os.Stdout, os.Stderr
		_, err = Run(context.Background(), cfg)
	}
	fmt.Fprintln(os.Stderr, err)
	return 1
}

func config(role string) (Config, error) {
	dir, err := kernel.DefaultDir()
	if err != nil {
		return Config{}, err
	}
	k, err := kernel.NewStore(dir, slog.Default()).Get(context.Background(), "6.1")
	if err != nil {
		return Config{}, err
	}
	self, err := os.Executable()
	return Config{
		Kernel: k, Args: []string{self, "an argument", ""}, Env: []string{roleEnv + "=" + role},
		Timeout: 2 * time.Minute, Stdout: io.Discard, Stderr: io.Discard, Log: slog.New(slog.DiscardHandler),
	}, err
}

func testConfig(t *testing.T, role string) Config {
	t.Helper()
	cfg, err := config(role)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestRun(t *testing.T) {
	cfg := testConfig(t, "work")
	var stdout, stderr bytes.Buffer
	cfg.Stdout, cfg.Stderr = &stdout, &stderr
	cfg.Modules = []string{"veth"}
	given := filepath.Join(t.TempDir(), "x")
	if err := os.WriteFile(given, []byte("from the host"), 0o644); err != nil {
		t.Fatal(err)
	}
	cfg.Files = []File{{given, "/given/file"}}
	out := t.TempDir()
	cfg.Outs = []Out{
		{Guest: "/out/dir", Host: filepath.Join(out, "dir")},
		{Guest: "/out/one", Host: filepath.Join(out, "new", "one")},
		{Guest: "/nothing", Host: filepath.Join(out, "nothing"), Optional: true},
		{Guest: "/missing", Host: filepath.Join(out, "missing")},
	}
	result, err := Run(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), "/missing") || strings.Contains(err.Error(), "/out") {
		t.Errorf("error: got %v, want one about the missing out only", err)
	}
	if result.Code != 7 || result.Signal != "" {
		t.Errorf("result: got %+v, want exit status 7", result)
	}
	if !bytes.Equal(stdout.Bytes(), pattern()) {
		t.Errorf("standard output: got %d bytes or other content, want %d bytes", stdout.Len(), outputSize)
	}
	for _, want := range []string{
		"veth=true\n", "release=" + cfg.Kernel.Version + "\n", "given=from the host\n", "data=hello, guest\n\n",
		"kprobes=true\n", `args=["an argument" ""]`, "attach=true",
	} {
		if !strings.Contains(stderr.String(), want) {
			t.Errorf("standard error: want %q in it, got %q", want, stderr.String())
		}
	}
	if b, err := os.ReadFile(filepath.Join(out, "dir", "sub", "big")); err != nil || !bytes.Equal(b, pattern()) {
		t.Errorf("file of an out directory: got %d bytes, error %v, want the %d bytes of the pattern and nil", len(b), err, outputSize)
	}
	if b, err := os.ReadFile(filepath.Join(out, "new", "one")); err != nil || string(b) != "one" {
		t.Errorf("single out file: got %q, error %v, want \"one\" and nil", b, err)
	}
}

func TestTimeoutPrintsStacks(t *testing.T) {
	cfg := testConfig(t, "hang")
	var output bytes.Buffer
	cfg.Stdout, cfg.Stderr = &output, &output
	cfg.Timeout = 30 * time.Second // includes the boot
	_, err := Run(t.Context(), cfg)
	if !errors.Is(err, ErrTimeout) {
		t.Fatalf("error: got %v, want a timeout", err)
	}
	if text := output.String(); !strings.HasPrefix(text, "ready\n") || !strings.Contains(text, "SIGQUIT") || !strings.Contains(text, "vm.hang") {
		t.Errorf("output: want a stack of the program, got %q", text)
	}
}

func TestKernelPanicIsReported(t *testing.T) {
	cfg := testConfig(t, "panic")
	_, err := Run(t.Context(), cfg)
	var failure *MachineError
	if !errors.As(err, &failure) {
		t.Fatalf("error: got %v, want a machine error", err)
	}
	if !strings.Contains(failure.Reason, "kernel panic - not syncing: sysrq") || !strings.Contains(failure.Console, "Call Trace") {
		t.Errorf("kernel panic: got %v, want a panic by sysrq, and a call trace on the console", err)
	}
}

// TestStalledMachineIsDetected verifies that a stalled machine is distinguished from a slow program.
func TestStalledMachineIsDetected(t *testing.T) {
	cfg := testConfig(t, "hang")
	cfg.StallTimeout = 15 * time.Second // several of guest.AliveInterval
	cfg.Timeout = 5 * time.Minute       // does not end the machine before StallTimeout
	var stopped atomic.Bool
	cfg.Stdout = writerFunc(func([]byte) {
		time.AfterFunc(cfg.StallTimeout+time.Second, func() {
			stopped.Store(true)
			for _, pid := range children(t, os.Getpid()) {
				_ = syscall.Kill(pid, syscall.SIGSTOP)
			}
		})
	})
	_, err := Run(t.Context(), cfg)
	var failure *MachineError
	if !errors.As(err, &failure) || !strings.Contains(failure.Reason, "machine stalled: no frame for 15s") || !stopped.Load() {
		t.Errorf("error: got %v, want one about a stalled machine; stopped: %t", err, stopped.Load())
	}
}

func TestMachineEndsWithHostProcess(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	host := exec.CommandContext(t.Context(), self)
	host.Env = append(os.Environ(), roleEnv+"=host")
	host.Stderr = os.Stderr
	out, err := host.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "ready\n" {
		t.Fatalf("host process: got %q, %v, want %q and nil", line, err, "ready\n")
	}
	machines := children(t, host.Process.Pid)
	if len(machines) != 1 {
		t.Fatalf("children of the host process: got %v, want the emulator", machines)
	}
	if err := host.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = host.Wait()
	// This module does not depend on the module of internal/poll.
	for deadline := time.Now().Add(10 * time.Second); alive(machines[0]); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("emulator %d still runs after its host process ended", machines[0])
		}
	}
}

func TestSignalsAndCancel(t *testing.T) {
	cfg := testConfig(t, "hang")
	signals := make(chan os.Signal, 1)
	cfg.Signals = signals
	cfg.Stdout = writerFunc(func(p []byte) { signals <- syscall.SIGTERM })
	result, err := Run(t.Context(), cfg)
	if err != nil || result.Signal != "SIGTERM" || result.Code != 128+int(syscall.SIGTERM) {
		t.Errorf("after a signal: got %+v, error %v, want signal SIGTERM, code %d and nil", result, err, 128+int(syscall.SIGTERM))
	}
	cfg = testConfig(t, "hang")
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	time.AfterFunc(time.Second, func() { cancel(cause) })
	if _, err := Run(ctx, cfg); !errors.Is(err, cause) {
		t.Errorf("after cancelling: got %v, want %v", err, cause)
	}
	if left := children(t, os.Getpid()); len(left) > 0 {
		t.Errorf("leftover processes: got %v, want none", left)
	}
}

type writerFunc func(p []byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }

// children returns the child processes of pid, from /proc.
func children(t *testing.T, pid int) []int {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended meanwhile
		}
		var child, parent int
		var state string
		head, rest, _ := strings.Cut(string(b), " (")
		rest = rest[strings.LastIndex(rest, ") ")+2:]
		if _, err := fmt.Sscan(head, &child); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Sscan(rest, &state, &parent); err != nil {
			t.Fatal(err)
		}
		if parent == pid {
			found = append(found, child)
		}
	}
	return found
}

// alive reports whether a process exists and is not a zombie.
func alive(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.Contains(b, []byte(") Z "))
}
