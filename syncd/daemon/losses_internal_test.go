package daemon

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"mapsync/syncd/capture"
)

func TestEachKindOfLossIsDetected(t *testing.T) {
	for name, test := range map[string]struct {
		stats  capture.Stats
		kprobe bool
		want   bool
	}{
		"none":                      {stats: capture.Stats{Events: 5, Failed: 3, Own: 2}},
		"ring":                      {stats: capture.Stats{LostReservations: 1}, want: true},
		"perf":                      {stats: capture.Stats{PerfLost: 1}, want: true},
		"gaps":                      {stats: capture.Stats{SequenceGaps: 1}, want: true},
		"malformed":                 {stats: capture.Stats{Malformed: 1}, want: true},
		"nested":                    {stats: capture.Stats{Nested: 1}, want: true},
		"skipped fexit":             {stats: capture.Stats{Skipped: 1}, want: true},
		"skipped kprobe":            {stats: capture.Stats{Skipped: 1}, kprobe: true},
		"skipped at a call, kprobe": {stats: capture.Stats{Skipped: 3, SkippedCalls: 1}, kprobe: true, want: true},
		"skipped kprobe and nested": {stats: capture.Stats{Skipped: 1, Nested: 1}, kprobe: true, want: true},
	} {
		var l losses
		l.note(&test.stats, 100, test.kprobe)
		if got := l.open() == 100; got != test.want {
			t.Errorf("%s: got open %v, want the opposite", name, got)
		}
		l.note(&test.stats, 200, test.kprobe) // no new loss
		if open := l.open(); open == 200 {
			t.Errorf("%s: old loss: got it as a new one, want no new loss", name)
		}
	}
}

// TestLossesAreDetectedSoon checks that a loss is detected, and a scan requested, within the 250 ms that docs/capture.md states.
func TestLossesAreDetectedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		last, longest, checks := time.Now(), time.Duration(0), 0
		checkRegularly(ctx, func() {
			longest, last, checks = max(longest, time.Since(last)), time.Now(), checks+1
		})
		if longest > 250*time.Millisecond || checks < 40 {
			t.Errorf("checks for losses in 10 s: got %d, %s apart at most, want at least 40, 250ms apart at most", checks, longest)
		}
	})
}

func TestLossesAreLoggedAndRepaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		log := slog.New(slog.NewTextHandler(&out, nil))
		logged := func(what string) int { return strings.Count(out.String(), what) }
		var l losses
		for i := range 25 { // a few losses at a time for 2.5 s
			l.note(&capture.Stats{LostReservations: uint64(i+1) * 10, SequenceGaps: 7}, int64(i+1), false)
			l.log(log)
			time.Sleep(lossLogInterval / 10)
		}
		if logged("changes were lost, scanning") != 3 || logged("buffer_full=10 ") != 1 || logged("buffer_full=100 ") != 2 || logged("gaps=7 ") != 1 {
			t.Errorf("log: want 3 lines with the losses since the line before, got:\n%s", out.String())
		}
		time.Sleep(lossLogInterval)
		l.log(log)
		l.log(log)
		if logged("changes were lost, scanning") != 4 || logged("buffer_full=40 ") != 1 {
			t.Errorf("log: want the last losses once, got:\n%s", out.String())
		}
		l.close(log, 24) // a scan that began before the last loss
		if open, repaired := l.state(); open != 3500*time.Millisecond || repaired != 0 || logged("repaired") != 0 {
			t.Errorf("losses before a later scan: got open for %s, %d repaired, want 3.5s, 0 repaired", open, repaired)
		}
		l.close(log, l.open())
		if open, repaired := l.state(); open != 0 || repaired != 1 || logged(`losses repaired" seconds=3.5`) != 1 {
			t.Errorf("losses after the scan: got open for %s, %d repaired, want 0s, 1 repaired\n%s", open, repaired, out.String())
		}
	})
}
