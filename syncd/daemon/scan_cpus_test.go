package daemon_test

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"mapsync/internal/poll"
	"mapsync/syncd/daemon"

	"golang.org/x/sys/unix"
)

// TestScansRunOnScanCPUs: while syncd scans, one of its threads may use the CPUs of scan-cpus only. syncd does not
// start if it may use none of them.
func TestScansRunOnScanCPUs(t *testing.T) {
	var allowed unix.CPUSet
	if err := unix.SchedGetaffinity(0, &allowed); err != nil {
		t.Fatalf("read the CPUs of this process: %v", err)
	}
	last := 0
	for cpu := range 1024 {
		if allowed.IsSet(cpu) {
			last = cpu
		}
	}
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
