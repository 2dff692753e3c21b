package main

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"
)

func TestMain(m *testing.M) {
	if asked, err := runSyncd(); asked {
		exit(err)
	}
	os.Exit(m.Run())
}

// TestSoak is a short form of the soak: two daemons, 5,000 sessions per second.
func TestSoak(t *testing.T) {
	if err := features.HaveProgramType(ebpf.Syscall); errors.Is(err, ebpf.ErrNotSupported) {
		t.Skip("this kernel has no syscall programs")
	}
	r, err := soak(t.Context(), options{
		duration: 12 * time.Second, warmUp: 3 * time.Second, rate: 5000, lifetime: 500 * time.Millisecond, every: 500 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	if middle := r.samples[len(r.samples)/2]; middle.nodes[1].live == 0 || r.sessions < 50_000 {
		t.Errorf("soak: got %d sessions, middle sample %s, want at least 50000 sessions and live entries", r.sessions, middle.String())
	}
}

// TestReportCheck checks reports of runs that violate a limit.
func TestReportCheck(t *testing.T) {
	const mib = 1 << 20
	for name, test := range map[string]struct {
		change func(r *report)
		want   string
	}{
		"good":        {func(*report) {}, ""},
		"growth":      {func(r *report) { r.samples[179].nodes[1].RSS = 160 * mib }, "n2: memory is not flat: 120 MiB"},
		"little more": {func(r *report) { r.samples[179].nodes[1].RSS = 140 * mib }, ""},
		"high":        {func(r *report) { r.samples[30].nodes[0].RSS = 400 * mib }, "want at most 284 MiB"},
		"no memory":   {func(r *report) { r.samples[30].nodes[0].RSS = 0 }, "n1 after 5m10s: 0 MiB"},
		"warm-up":     {func(r *report) { r.samples[0].nodes[0].RSS = 20 * mib }, ""},
		"goroutines":  {func(r *report) { r.end[1].Goroutines++ }, "n2: 51 goroutines"},
		"descriptors": {func(r *report) { r.end[0].Descriptors++ }, "n1: 50 goroutines and 41 descriptors"},
		"slow":        {func(r *report) { r.sessions /= 2 }, "the machine is too slow"},
		"no samples":  {func(r *report) { r.samples = r.samples[:20] }, "samples are not enough"},
	} {
		r := &report{
			options:  options{duration: 30 * time.Minute, warmUp: 2 * time.Minute, rate: 50_000, lifetime: time.Second},
			sessions: 90_000_000, took: 30 * time.Minute,
		}
		for i := range 180 {
			s := sample{at: time.Duration(i+1) * 10 * time.Second}
			for n := range s.nodes {
				s.nodes[n] = nodeSample{usage: usage{Goroutines: 50, Descriptors: 40, RSS: 120 * mib}, live: 50_000}
			}
			r.samples = append(r.samples, s)
		}
		r.start = [2]usage{{50, 40, 0}, {50, 40, 0}}
		r.end = r.start
		test.change(r)
		err := r.check()
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("report (%s): got error %v, want %q", name, err, test.want)
		}
	}
}
