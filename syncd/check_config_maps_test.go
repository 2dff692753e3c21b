package main

import (
	"strings"
	"testing"

	"mapsync/syncd/capture"
	"mapsync/syncd/daemon"
)

// TestCheckStatesDelaysOfSettings: a check of usable settings states the delays of changes to their maps, with their
// intervals and their attach method.
func TestCheckStatesDelaysOfSettings(t *testing.T) {
	w := newWorkplace(t)
	for interval, want := range map[string]float64{"4s": 4, "90s": 90} {
		r, err := w.check("--scan-interval=" + interval)
		if err != nil || r.MapsProblem != "" || r.Attach != "none" || len(r.Maps) != 1 {
			t.Fatalf("check: got %+v, error %v, want attach none and one map", r, err)
		}
		if m := r.Maps[0]; m.Name != "ct" || m.Syscalls != daemon.CoverByScan || m.Scan < want || m.Scan > want+1 || m.Deletes != "owner" {
			t.Errorf("scan-interval %s: got %+v, want ct by scan, within %v s and a scan, with deletes of the owner", interval, m, want)
		}
	}
	out, err := run(t, "check", "--config", w.path("syncd.yaml"), "--deletes=ct=any")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"UNCHANGED", " ct ", scanTimesTogether, "the attach method is none", "(deletes: any)", "\nthe settings can be used\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("check: want %q in\n%s", want, out)
		}
	}
}

// TestCheckStatesWhyDelaysAreMissing: without statements about the maps of settings, the report has the reason.
func TestCheckStatesWhyDelaysAreMissing(t *testing.T) {
	w := newWorkplace(t)
	tests := map[string]string{"--map=ct=" + w.pin + "none": "no map of the settings can be opened", "--attach=magic": "the settings cannot be used"}
	if capture.Probe(capture.AttachFexit)[0].Err != nil {
		tests["--attach=fexit"] = "attach fexit: "
	}
	for flag, want := range tests {
		if r, _ := w.check(flag); len(r.Maps) != 0 || !strings.Contains(r.MapsProblem, want) {
			t.Errorf("check %s: got maps %+v, problem %q, want no maps and %q", flag, r.Maps, r.MapsProblem, want)
		}
		out, _ := run(t, "check", "--config", w.path("syncd.yaml"), flag)
		if got := strings.Join(strings.Fields(out), " "); !strings.Contains(got, "are not stated: "+want) || strings.Contains(got, "UNCHANGED") {
			t.Errorf("check %s: want the reason %q, and no table, in\n%s", flag, want, out)
		}
	}
}
