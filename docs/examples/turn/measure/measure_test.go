package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"mapsync/docs/examples/turn/offload"
)

// newOptions returns options for a short run, with programs that it builds. It skips the test where the kernel
// or the privileges do not allow it.
func newOptions(t *testing.T) *options {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces and XDP need root")
	}
	o := &options{attach: "syscall", channels: 50}
	s, err := newSetup(o)
	if err != nil {
		t.Skipf("this kernel cannot run the example: %v", err)
	}
	if err := s.close(); err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("the test builds the server and syncd with go, which is missing: run `make example-turn`")
	}
	dir := t.TempDir()
	o.turn, o.syncd = filepath.Join(dir, "turn"), filepath.Join(dir, "syncd")
	for program, source := range map[string][2]string{o.turn: {"..", "."}, o.syncd: {"../../../..", "./syncd"}} {
		build := exec.Command("go", "-C", source[0], "build", "-o", program, source[1])
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build %s: got error %v, want none\n%s", source[1], err, out)
		}
	}
	return o
}

func TestPair(t *testing.T) {
	o := newOptions(t)
	noSignal := *o
	noSignal.noSignal = true
	survives := func(o *options) func(t *testing.T) {
		return func(t *testing.T) {
			r, err := failover(t.Context(), o, true)
			if err == nil {
				err = r.check()
			}
			if err != nil {
				t.Errorf("failover with syncd: got error %v, want none", err)
			}
		}
	}
	var all sync.WaitGroup // the tests mostly wait, so that they run at the same time on any number of CPUs
	defer all.Wait()
	for name, test := range map[string]func(t *testing.T){
		"failover":                  survives(o),
		"failover without a signal": survives(&noSignal),
		"failover without syncd": func(t *testing.T) {
			r, err := failover(t.Context(), o, false)
			if err != nil || r.survived != 0 {
				t.Errorf("failover without syncd: got %d channels that survived, error %v, want 0 and none", r.survived, err)
			}
		},
		"deadlines": func(t *testing.T) {
			if err := deadlines(t.Context(), o); err != nil {
				t.Errorf("end of entries on a standby: got error %v, want none", err)
			}
		},
	} {
		all.Go(func() { t.Run(name, test) })
	}
}

func TestSettingsNameAllMaps(t *testing.T) {
	text, err := os.ReadFile("../syncd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range offload.Maps() {
		if want := "  - /sys/fs/bpf/turn/" + name + "\n"; !strings.Contains(string(text), want) {
			t.Errorf("syncd.yaml: got no line %q, want one", want)
		}
	}
	if strings.Contains(string(text), "/turn_interfaces") {
		t.Error("syncd.yaml: got turn_interfaces among the maps, want it local")
	}
}

// TestOffloadIsCompared makes one short comparison of the server without and with the offload. Its times decide nothing.
func TestOffloadIsCompared(t *testing.T) {
	o := newOptions(t)
	o.rounds, o.window = 1, 200*time.Millisecond
	relayed, offloaded, err := alternate(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	for name, list := range map[string][]measurement{"without": relayed, "with": offloaded} {
		if len(list) != o.rounds {
			t.Fatalf("measurements %s offload: got %d, want %d", name, len(list), o.rounds)
		}
		if m := list[0]; m.delay <= 0 || m.loaded <= 0 || m.rate <= 0 {
			t.Errorf("measurement %s offload: got %+v, want delays and a rate", name, m)
		}
	}
	if _, err := table(relayed, offloaded); err != nil {
		t.Error(err)
	}
}

// TestRatiosAreChecked: each ratio below its limit is an error, and a limit of 0 only prints.
func TestRatiosAreChecked(t *testing.T) {
	limits := &options{rounds: 1, delayRatio: 2, rateRatio: 3, cpuRatio: 50}
	for _, c := range []struct {
		ratios ratios
		o      *options
		want   string // in the error
	}{
		{ratios{delay: 2, rate: 3, cpu: 50}, limits, ""},
		{ratios{delay: 1.9, rate: 3, cpu: 50}, limits, "ratio of delay"},
		{ratios{delay: 2, rate: 2.9, cpu: 50}, limits, "ratio of rate"},
		{ratios{delay: 2, rate: 3, cpu: 49}, limits, "ratio of processor time"},
		{ratios{}, &options{rounds: 1}, ""},
	} {
		err := c.ratios.check(c.o)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("check of %+v: got error %v, want %q", c.ratios, err, c.want)
		}
	}
}
