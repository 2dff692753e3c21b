package main

import (
	"testing"
	"time"

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
	many, err := measureCalls(t.Context(), 100_000, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []measurement{few, many} {
		if m.runs == 0 || m.longest <= 0 || m.longest > time.Minute {
			t.Errorf("%s: got %d of at most %s, want some with a time", m.name, m.runs, m.longest)
		}
	}
	// A call reads at most a limited number of buckets, so that a large map needs many of them.
	if many.runs < 2*few.runs {
		t.Errorf("calls for 100,000 entries: got %d in a second, and %d for 1,000 entries in 300 ms: want many more", many.runs, few.runs)
	}
}
