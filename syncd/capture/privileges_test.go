package capture_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"mapsync/bpf"
	"mapsync/syncd/capture"

	"golang.org/x/sys/unix"
)

// capabilityNames are the capabilities that a capture may need.
var capabilityNames = map[string]uint{
	"bpf": unix.CAP_BPF, "perfmon": unix.CAP_PERFMON, "syslog": unix.CAP_SYSLOG, "sys_admin": unix.CAP_SYS_ADMIN,
}

// privilege is one set of capabilities and the expected result of opening a capture with it. The
// process keeps user ID 0, like most containers.
type privilege struct {
	capabilities string
	paranoid     string // kernel.perf_event_paranoid
	attach       capture.Attach
	buffer       capture.Buffer
	refusal      string // part of the expected error; empty: success
}

// The kernels of Debian and Ubuntu have a perf_event_paranoid level above 2, at which perf events
// need CAP_SYS_ADMIN. Kprobes and perf buffers are perf events.
var privileges = []privilege{
	{"bpf,perfmon,syslog", "3", capture.AttachFexit, capture.BufferRing, ""},
	{"bpf,perfmon,syslog", "3", capture.AttachAuto, capture.BufferRing, ""},
	{"bpf,perfmon,syslog", "3", capture.AttachFexit, capture.BufferPerf, "lacks CAP_SYS_ADMIN"},
	{"bpf,perfmon,syslog", "3", capture.AttachKprobe, capture.BufferRing, "lacks CAP_SYS_ADMIN"},
	{"bpf,perfmon,syslog", "2", capture.AttachKprobe, capture.BufferPerf, ""},
	{"sys_admin,syslog", "3", capture.AttachKprobe, capture.BufferPerf, ""},
	{"bpf,perfmon", "2", capture.AttachFexit, capture.BufferRing, "lacks CAP_SYSLOG"},
	{"bpf,syslog", "2", capture.AttachFexit, capture.BufferRing, "lacks CAP_PERFMON"},
	{"perfmon,syslog", "2", capture.AttachFexit, capture.BufferRing, "not permitted"}, // the first map fails
}

const paranoidFile = "/proc/sys/kernel/perf_event_paranoid"

// TestPrivileges checks which capabilities are sufficient, and that an error names the missing one.
func TestPrivileges(t *testing.T) {
	for _, attach := range attaches {
		needAttach(t, attach)
	}
	before, err := os.ReadFile(paranoidFile)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(paranoidFile, before, 0); err != nil {
			t.Error(err)
		}
	})
	for _, p := range privileges {
		t.Run(fmt.Sprintf("%s, paranoid %s, %s, %s", p.capabilities, p.paranoid, p.attach, p.buffer), func(t *testing.T) {
			if p.attach != capture.AttachKprobe { // auto takes fexit
				needAttach(t, capture.AttachFexit)
			}
			p.test(t)
		})
	}
}

// TestPrivilegesWithoutHooks also runs on kernels without hooks.
func TestPrivilegesWithoutHooks(t *testing.T) {
	paranoid, err := os.ReadFile(paranoidFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []privilege{
		{"bpf", string(paranoid), capture.AttachNone, capture.BufferRing, ""},
		{"bpf,perfmon", string(paranoid), capture.AttachSyscall, capture.BufferRing, ""},
		{"bpf", string(paranoid), capture.AttachSyscall, capture.BufferRing, "lacks CAP_PERFMON"},
	} {
		t.Run(p.capabilities+", "+string(p.attach), p.test)
	}
}

func (p *privilege) test(t *testing.T) {
	if err := os.WriteFile(paranoidFile, []byte(p.paranoid), 0); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=limited %s %s", childEnv, p.attach, p.buffer))
	out, err := runWith(cmd, strings.Split(p.capabilities, ","))
	if p.refusal == "" && err != nil {
		t.Errorf("open capture: got %v, output %s, want success", err, out)
	}
	if p.refusal != "" && (err == nil || !strings.Contains(string(out), p.refusal)) {
		t.Errorf("open capture: got %v, output %q, want an error with %q", err, out, p.refusal)
	}
}

func limited(arguments []string) error {
	attach, buffer := capture.Attach(arguments[0]), capture.Buffer(arguments[1])
	own, err := bpf.NewOwnWriteMarks()
	if err != nil {
		return fmt.Errorf("own writer: %w", err)
	}
	c, err := capture.Open(capture.Options{
		Attach: attach, Buffer: buffer, BufferSize: buffers[buffer], OwnWriteMarks: own,
		Logger: slog.New(slog.DiscardHandler),
	})
	return errors.Join(err, func() error {
		if c != nil {
			return c.Close()
		}
		return nil
	}())
}

// runWith runs a command with these capabilities and returns its output. A process of user ID 0 has
// the capabilities of its bounding set after exec, and the set belongs to the thread that starts the
// process. That thread ends with its goroutine.
func runWith(cmd *exec.Cmd, names []string) (out []byte, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if err = keepInBoundingSet(names); err == nil {
			out, err = cmd.CombinedOutput()
		}
	}()
	<-done
	return out, err
}

// keepInBoundingSet removes all capabilities except these from the bounding set of this thread.
func keepInBoundingSet(names []string) error {
	var kept []uint
	for _, name := range names {
		bit, ok := capabilityNames[name]
		if !ok {
			return fmt.Errorf("unknown capability %q", name)
		}
		kept = append(kept, bit)
	}
	for bit := uint(0); unix.Prctl(unix.PR_CAPBSET_READ, uintptr(bit), 0, 0, 0) == nil; bit++ {
		if slices.Contains(kept, bit) {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(bit), 0, 0, 0); err != nil {
			return fmt.Errorf("remove capability %d from the bounding set: %w", bit, err)
		}
	}
	return nil
}
