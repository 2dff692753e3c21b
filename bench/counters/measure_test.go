package main

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"mapsync/docs/examples/counters"
)

// newTestBench returns a bench with one round, one start and no limits, and the programs that it runs. A virtual machine has no
// compiler to build them.
func newTestBench(t *testing.T) *bench {
	t.Helper()
	if os.Getenv("MAPSYNC_KERNEL") != "" {
		t.Skip("a virtual machine has no compiler to build syncd and the accountant")
	}
	pins := mountPins(t)
	a, err := counters.Open(counters.Options{Attach: counters.AttachTracepoint, PinDir: pins, Network: counted})
	if err != nil {
		skipWithoutHooks(t, counters.AttachTracepoint, err)
	}
	closeAfter(t, a.Close)
	dir := t.TempDir()
	build := exec.Command("go", "build", "-o", dir+"/", "./syncd", "./docs/examples/counters/cmd/accountant")
	build.Dir = "../.." // the module of syncd
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	b, err := newBench(&options{
		syncd: filepath.Join(dir, "syncd"), accountant: filepath.Join(dir, "accountant"), attach: "none",
		ways: []counters.Attach{counters.AttachTracepoint}, rounds: 1, window: 200 * time.Millisecond, size: 128 << 10, updates: 8, starts: 1,
	})
	t.Cleanup(func() { closeAfter(t, b.close) })
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// figure returns a number of the line of figures.
func figure(t *testing.T, figures, name string) float64 {
	t.Helper()
	found := regexp.MustCompile(`(?:^| )` + name + `=([0-9.]+)`).FindStringSubmatch(figures)
	if found == nil {
		t.Errorf("figures: got %q, want %s in them", figures, name)
		return math.NaN()
	}
	n, err := strconv.ParseFloat(found[1], 64)
	if err != nil {
		t.Errorf("figure %s: got error %v, want a number", name, err)
	}
	return n
}

// TestThroughputIsMeasured: each variant has a throughput, and the programs of the host have a cost. One round cannot
// show that a claim holds.
func TestThroughputIsMeasured(t *testing.T) {
	b := newTestBench(t)
	figures, unmet, err := b.measureThroughput(t.Context())
	if err != nil || unmet != nil {
		t.Fatalf("measure without limits: got errors %v, %v, want none", err, unmet)
	}
	for _, name := range []string{"off_mbit", "export_tracepoint", "sync_tracepoint", "layer_2", "tracepoint_cpu", "layer_2_cpu"} {
		if n := figure(t, figures, name); n <= 0 {
			t.Errorf("%s: got %v, want more than 0", name, n)
		}
	}
	b.ratio = 0.01
	_, unmet, err = b.report("built-in", b.variants(), [][]float64{{100}, {99}, {98}, {50}})
	if err != nil || unmet == nil || !strings.Contains(unmet.Error(), "ROUNDS") {
		t.Errorf("report of one round: got unmet limits %v, error %v, want one that asks for more ROUNDS", unmet, err)
	}
}

// TestStartIsMeasured: time and memory are measured, and are compared with their limits.
func TestStartIsMeasured(t *testing.T) {
	b := newTestBench(t)
	for _, limited := range []bool{false, true} {
		if limited {
			b.startLimit, b.memoryLimit = time.Nanosecond, 1
		}
		figures, unmet, err := b.measureStart(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if n := figure(t, figures, "starts"); n != 1 {
			t.Errorf("starts: got %v, want 1", n)
		}
		for _, name := range []string{"start_ms", "start_max_ms", "resident_mb", "resident_default_ring_mb"} {
			if n := figure(t, figures, name); n <= 1 {
				t.Errorf("%s: got %v, want more than 1", name, n)
			}
		}
		text := fmt.Sprint(unmet)
		if strings.Contains(text, "longest start") != limited || strings.Contains(text, "resident memory") != limited {
			t.Errorf("errors with limits %v: got %v, want both: %v", limited, unmet, limited)
		}
	}
}

// TestNoiseIsNoProof: a ratio with a large margin fails in both directions, unless it is printed only.
func TestNoiseIsNoProof(t *testing.T) {
	limits := &bench{options: &options{ratio: 0.99, control: 0.95}}
	for _, tt := range []struct {
		bench         *bench
		variant       string
		ratio, margin float64
		want          string // part of the error; empty: none
	}{
		{limits, "export fexit", 1, 0.05, ""},
		{limits, "export fexit", 1, 0.051, "more ROUNDS"},
		{limits, "export fexit", 0.5, 0.3, "more ROUNDS"},
		{limits, "export fexit", 0.98, 0.005, "want at least 0.990"},
		{limits, layer2, 0.6, 0.01, ""},
		{limits, layer2, 0.6, math.Inf(1), "more ROUNDS"},
		{limits, layer2, 0.97, 0.01, "does not show the cost"},
		{limits, "sync fexit", 0.6, 0.3, ""}, // has no limit
		{&bench{options: &options{}}, "export fexit", 0.6, 0.3, ""},
		{&bench{options: &options{}}, layer2, 1, 0.3, ""},
	} {
		err := tt.bench.checkRatio(tt.variant, tt.ratio, tt.margin)
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s, %.2f +- %.3f: got error %v, want %q", tt.variant, tt.ratio, tt.margin, err, tt.want)
		}
	}
}

// TestMarginOfOneValue: one value does not show the noise.
func TestMarginOfOneValue(t *testing.T) {
	if got := margin([]float64{1}); !math.IsInf(got, 1) {
		t.Errorf("margin of one value: got %v, want an infinite one", got)
	}
	if got := margin([]float64{0.99, 1, 1.01}); got < 0.01 || got > 0.04 {
		t.Errorf("margin of three values: got %v, want about 0.02", got)
	}
}
