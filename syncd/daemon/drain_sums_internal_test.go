package daemon

import (
	"slices"
	"testing"
	"time"

	"mapsync/syncd/problem"
)

// TestMissingSumsAreAProblemForAnHour notes counters at times, and reads the problems.
func TestMissingSumsAreAProblemForAnHour(t *testing.T) {
	now := time.Now()
	var m missingSums
	for i, step := range []struct {
		count    uint64
		ago      time.Duration
		reported bool
	}{
		{7, 5 * time.Hour, false}, // from before the start
		{7, 4 * time.Hour, false},
		{8, 2 * time.Hour, false},
		{9, 59 * time.Minute, true},
		{9, time.Minute, true},
	} {
		at := m.note(step.count, now.Add(-step.ago))
		s := &Status{Maps: []MapStatus{{Name: "m", DrainSums: &DrainSumsStatus{Full: step.count, MissingAt: at}}}}
		if got := slices.ContainsFunc(s.StateProblems(), func(p problem.Problem) bool { return p.ID == "drain-sums-missing" }); got != step.reported {
			t.Errorf("step %d: got a problem %t, want %t", i, got, step.reported)
		}
	}
}
