package daemon_test

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/capture"
	"mapsync/syncd/daemon"

	"golang.org/x/sys/unix"
)

// lastCPU returns the last CPU that the thread may use.
func lastCPU(t *testing.T) (last int) {
	t.Helper()
	allowed := allowedCPUs(t)
	for cpu := range 1024 {
		if allowed.IsSet(cpu) {
			last = cpu
		}
	}
	return last
}

// allowedCPUs returns the CPUs that the thread may use.
func allowedCPUs(t *testing.T) (allowed unix.CPUSet) {
	t.Helper()
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		t.Fatalf("read the CPUs of this thread: %v", err)
	}
	return allowed
}

// TestCaptureOpensOnScanCPUs: the creation of the ring is a long call. It runs on the CPUs of scan-cpus, and the thread then returns
// to its own ones.
func TestCaptureOpensOnScanCPUs(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, last := allowedCPUs(t), lastCPU(t)
	var want, got unix.CPUSet
	want.Set(last)
	n := newNode(t, 1, "ct")
	n.config.ScanCPUs = fmt.Sprint(last)
	d, err := daemon.New(daemon.Options{Config: n.config, Logger: slog.New(slog.DiscardHandler), OpenCapture: func(o capture.Options) (*capture.Capture, error) {
		got, o.Attach = allowedCPUs(t), capture.AttachNone
		return capture.Open(o)
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Errorf("close: got error %v, want none", err)
	}
	l, err := net.Listen("tcp", n.config.GRPCListen)
	if err != nil {
		t.Fatalf("the address of a daemon that is closed before it runs: got error %v, want a free one", err)
	}
	l.Close()
	if got != want {
		t.Errorf("CPUs while the capture opens: got %v, want %v", got, want)
	}
	if after := allowedCPUs(t); after != before {
		t.Errorf("CPUs after that: got %v, want %v", after, before)
	}
}

// TestScansRunOnScanCPUs: while syncd scans, one of its threads may use the CPUs of scan-cpus only. syncd does not
// start if it may use none of them.
func TestScansRunOnScanCPUs(t *testing.T) {
	last := lastCPU(t)
	pin := filepath.Join(pinDir(t), "ct")
	m := pinned(t, pin, 8, 16, 20_000)
	for i := range uint64(20_000) {
		if err := m.Put(i, make([]byte, 16)); err != nil {
			t.Fatalf("write entry %d: %v", i, err)
		}
	}
	n := newNode(t, 1, "ct="+pin)
	n.config.Join, n.config.ScanCPUs, n.config.ScanInterval = nil, fmt.Sprint(last), 100*time.Millisecond
	n.start()
	want := fmt.Sprintf("Cpus_allowed_list:\t%d\n", last)
	poll.Eventually(t, "a thread of syncd is on the CPU of scans", func() bool {
		threads, err := filepath.Glob("/proc/self/task/*/status")
		if err != nil {
			t.Fatalf("list threads: %v", err)
		}
		for _, path := range threads {
			if status, err := os.ReadFile(path); err == nil && strings.Contains(string(status), want) {
				return true
			}
		}
		return false
	})
	n.stop()
	n.config.ScanCPUs = "1023"
	_, err := daemon.New(daemon.Options{Config: n.config, Logger: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "scan-cpus 1023: this process may use none of these CPUs") {
		t.Errorf("start with a CPU that does not exist: got error %v, want one that names scan-cpus 1023", err)
	}
}
