package main

import (
	"io"
	"os"
	"testing"
	"time"

	"mapsync/internal/tool"

	"github.com/cilium/ebpf/rlimit"
)

// TestCallsOfSyncdAreMeasured checks that syncd scans the map without end, and that its longest call is measured.
func TestCallsOfSyncdAreMeasured(t *testing.T) {
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	few, err := measureCalls(t.Context(), 1000, 300*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	// A call reads at most a limited number of buckets, so that a large map needs many of them. A slow machine needs longer.
	var many measurement
	for length := time.Second; many.runs < 2*few.runs && length <= 32*time.Second; length *= 2 {
		if many, err = measureCalls(t.Context(), 100_000, length); err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range []measurement{few, many} {
		if m.runs == 0 || m.longest <= 0 || m.longest > time.Minute {
			t.Errorf("%s: got %d of at most %s, want some with a time", m.name, m.runs, m.longest)
		}
	}
	if many.runs < 2*few.runs {
		t.Errorf("calls for 100,000 entries: got %d in 32 s, and %d for 1,000 entries in 300 ms: want many more", many.runs, few.runs)
	}
}

// TestTimerOfServicesIsMeasured creates services of IPVS, and measures the timer on kernels that have it.
func TestTimerOfServicesIsMeasured(t *testing.T) {
	if os.Getenv("MAPSYNC_KERNEL") == "" {
		t.Skip("services of IPVS are created only in a virtual machine")
	}
	m, err := measureTimer(t.Context(), 1000, 5*time.Second) // the timer runs every two seconds
	if err != nil {
		t.Fatal(err)
	}
	kernel := tool.KernelVersion()
	if measured := m.runs > 0 && m.longest > 0; measured == lacksTimer(kernel) {
		t.Errorf("%s on kernel %s: got %d runs, the longest %s, want some: %v", m.name, kernel, m.runs, m.longest, !lacksTimer(kernel))
	}
}

// TestMissingTimerFails: without a run of the timer, the comparison succeeds only on kernels that do not have it, and if calls are
// shorter than a twentieth of the published run.
func TestMissingTimerFails(t *testing.T) {
	for _, tt := range []struct {
		kernel string
		timer  time.Duration
		ratio  float64
		call   time.Duration
		fails  bool
	}{
		{"6.1.0", 0, 20, time.Millisecond, true},
		{"5.10.0", 0, 20, time.Millisecond, true},
		{"unknown", 0, 20, time.Millisecond, true},
		{"6.1.0", 0, 0, time.Millisecond, false},
		{"6.2.0", 0, 20, time.Millisecond, false},
		{"6.12.118+deb13", 0, 20, time.Millisecond, false},
		{"7.0", 0, 20, time.Millisecond, false},
		{"7.0", 0, 20, 5 * time.Millisecond, false},
		{"7.0", 0, 20, 6 * time.Millisecond, true},
		{"7.0", 0, 0, 6 * time.Millisecond, false},
		{"6.1.0", 21 * time.Millisecond, 20, time.Millisecond, false},
		{"6.1.0", 19 * time.Millisecond, 20, time.Millisecond, true},
		{"6.12.118+deb13", 19 * time.Millisecond, 20, time.Millisecond, true}, // it has the timer after all
		{"6.1.0", 19 * time.Millisecond, 0, time.Millisecond, false},
	} {
		err := compare(io.Discard, tt.kernel, tt.timer, tt.call, tt.ratio)
		if (err != nil) != tt.fails {
			t.Errorf("kernel %s, timer of %s, ratio %.0f: got error %v, want an error: %v", tt.kernel, tt.timer, tt.ratio, err, tt.fails)
		}
	}
}
