package main

import (
	"slices"
	"strings"
	"testing"
)

// TestShortRunsSayNothing checks that a run without losses counts only if its events have 4 times the bytes of the buffer.
func TestShortRunsSayNothing(t *testing.T) {
	for _, c := range []struct {
		pages        int
		events, lost uint64
		want         string
	}{
		{4096, 50_000, 0, "too short to decide"}, // 12.8 of 16.8 MB
		{4096, 262_143, 0, "too short to decide"},
		{4096, 262_144, 0, "0.00 %"},
		{4096, 50_000, 500, "1.00 %"},
	} {
		r := bufferRun{Pages: c.pages, Events: c.events, Lost: c.lost}
		if got := r.losses(); got != c.want {
			t.Errorf("losses of %d events, %d lost, through %d pages: got %q, want %q", c.events, c.lost, c.pages, got, c.want)
		}
	}
}

// TestGoalOfDefaultSize checks that the goal is held only by runs that are long enough.
func TestGoalOfDefaultSize(t *testing.T) {
	for events, want := range map[uint64]string{50_000: "Goal **open**", 300_000: "Goal held"} {
		p := new(page)
		p.defaultSize(&buffers{Runs: []bufferRun{{Buffer: "ring", Pages: defaultPages, Threads: 1, Offered: 100_000, Events: events}}})
		if got := p.text.String(); !strings.Contains(got, want) {
			t.Errorf("goal with %d events: got %q, want %q", events, got, want)
		}
	}
}

// TestUnmeasuredDefaultSizeIsNotHeld checks that the goal is open if no run has the default size.
func TestUnmeasuredDefaultSizeIsNotHeld(t *testing.T) {
	p := new(page)
	p.defaultSize(&buffers{Runs: []bufferRun{{Buffer: "ring", Pages: 4 * defaultPages, Threads: 1, Offered: 100_000, Events: 1e6}}})
	if got := p.text.String(); !strings.Contains(got, "Goal **open**") || p.held > 0 {
		t.Errorf("goal without a run of the default size: got %q, want an open goal", got)
	}
}

// TestLossCharts checks that each number of threads has one colour, perf buffers have dashes, and short runs are absent.
func TestLossCharts(t *testing.T) {
	b := new(buffers)
	for _, buffer := range []string{"ring", "perf"} {
		for _, threads := range []int{1, 10, 30, 50} {
			b.Runs = append(b.Runs, bufferRun{Buffer: buffer, Pages: 16, Threads: threads, Events: 100_000, Lost: 1000})
			b.Runs = append(b.Runs, bufferRun{Buffer: buffer, Pages: 32768, Threads: threads, Events: 100_000})
		}
	}
	p := new(page)
	p.lossCharts(b)
	c := p.charts[1]
	if c.file != "losses-fast.svg" || len(c.series) != 8 {
		t.Fatalf("chart %s: got %d series, want 8 of losses-fast.svg", c.file, len(c.series))
	}
	for i, s := range c.series {
		if s.colour != i%4 || s.dashed != (i >= 4) {
			t.Errorf("series %s: got colour %d, dashes %v, want %d, %v", s.name, s.colour, s.dashed, i%4, i >= 4)
		}
		if !slices.Equal(s.x, []float64{16}) {
			t.Errorf("series %s: got pages %v, want 16 only", s.name, s.x)
		}
	}
}
