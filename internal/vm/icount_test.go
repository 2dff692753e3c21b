package vm

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// watchClock prints the possible CPUs, and the longest time between two readings of the clock within two seconds.
func watchClock() int {
	possible, err := os.ReadFile("/sys/devices/system/cpu/possible")
	if err != nil {
		return 1
	}
	fmt.Println("ready")
	longest, last := time.Duration(0), time.Now()
	for began := last; last.Sub(began) < 2*time.Second; {
		now := time.Now()
		longest, last = max(longest, now.Sub(last)), now
	}
	fmt.Printf("possible=%s\n", bytes.TrimSpace(possible))
	if longest > time.Second {
		fmt.Println("pause:", longest)
		return 1
	}
	return 0
}

// TestPausesTakeNoTimeWithIcount stops the emulator for longer than the guest accepts.
func TestPausesTakeNoTimeWithIcount(t *testing.T) {
	cfg := testConfig(t, "clock")
	cfg.Icount, cfg.PossibleCPUs = true, 4
	var output bytes.Buffer
	cfg.Stdout = writerFunc(func(p []byte) {
		if output.Write(p); output.String() != "ready\n" {
			return
		}
		for _, pid := range children(t, os.Getpid()) {
			_ = syscall.Kill(pid, syscall.SIGSTOP)
			time.Sleep(2 * time.Second) // the emulator is stopped for longer than the guest accepts
			_ = syscall.Kill(pid, syscall.SIGCONT)
		}
	})
	result, err := Run(t.Context(), cfg)
	if err != nil || result.Code != 0 || !strings.Contains(output.String(), "possible=0-3\n") {
		t.Errorf("result: got %+v, error %v, output %q, want code 0 and CPUs 0-3", result, err, output.String())
	}
	cfg.Accel = "kvm"
	if _, err := Run(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "icount") {
		t.Errorf("icount with kvm: got %v, want an error", err)
	}
}
