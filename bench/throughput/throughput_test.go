package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/features"

	"mapsync/syncd/kmap"
)

// needBPF skips the test if the kernel does not support programs of type syscall.
func needBPF(t *testing.T) {
	t.Helper()
	if err := features.HaveProgramType(ebpf.Syscall); errors.Is(err, ebpf.ErrNotSupported) {
		t.Skip("this kernel has no syscall programs")
	} else if err != nil {
		t.Fatal(err)
	}
}

func TestMain(m *testing.M) {
	runRole()
	os.Exit(m.Run())
}

// TestExtraParts runs the parts that run only on request, for a short time.
func TestExtraParts(t *testing.T) {
	needBPF(t)
	o := options{entries: batchEntries, rounds: 1, latency: 200 * time.Millisecond, buffers: 20 * time.Millisecond, fills: 1, quick: true, only: "buffers,notification"}
	r, err := newReport(o.entries, o.rounds, o.tls)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.measure(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	lost := map[string]uint64{}
	for _, b := range r.Buffers.Runs {
		if least := leastEvents(b.Pages, o.fills); b.Events < least || b.Lost > b.Events {
			t.Errorf("events through a buffer: got %+v, want at least %d, and at most as many losses", b, least)
		}
		lost[b.Buffer] += b.Lost
	}
	for _, o := range r.Buffers.Overflows {
		// Divergent is 0 if the peer was equal before a slow machine compared the maps for the first time.
		if o.Lost == 0 || o.Seconds <= 0 {
			t.Errorf("overflow: got %+v, want losses and a time until the peer's map is equal", o)
		}
	}
	if len(lost) != 2 || len(r.Buffers.Costs) != 2 || len(r.Buffers.Overflows) != 2 {
		t.Errorf("buffers: got runs of %d, costs of %d and overflows of %d, want 2 each", len(lost), len(r.Buffers.Costs), len(r.Buffers.Overflows))
	}
	for _, l := range r.Notification {
		if l.Samples == 0 || l.P50 <= 0 || l.P50 > l.P99 {
			t.Errorf("%s: got %+v, want samples and ascending percentiles", l.Name, l)
		}
	}
}

// TestRun runs all parts of the measurement for a short time and checks the written report.
func TestRun(t *testing.T) {
	needBPF(t)
	path := filepath.Join(t.TempDir(), "figures.json")
	o := options{
		entries: batchEntries, rounds: 1, alternative: 5 * time.Millisecond, latency: 300 * time.Millisecond,
		idle: 300 * time.Millisecond, jitter: 100 * time.Millisecond, json: path,
	}
	if err := run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var r Report
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	if r.Entries != o.entries || len(r.Alternatives) != len(alternatives) || len(r.Steps) == 0 || len(r.Targets) == 0 {
		t.Errorf("report: got incomplete figures, want %d entries, %d alternatives, and at least one step and target:\n%s",
			o.entries, len(alternatives), text)
	}
	for _, rate := range append(r.Alternatives, r.CeilingNew, r.CeilingUpdate) {
		if rate.DeltasPerSecond <= 0 {
			t.Errorf("rate of %s: got %f deltas per second, want more than 0", rate.Name, rate.DeltasPerSecond)
		}
	}
	for _, l := range r.Latencies {
		if l.Samples == 0 || l.P50 <= 0 || l.P50 > l.P99 || l.P99 > l.Max || l.Rate <= 0 {
			t.Errorf("latency: got %+v, want samples and ascending percentiles", l)
		}
	}
	if r.Join.Seconds <= 0 || r.Join.Ratio <= 0 || r.Join.JoinerCPU <= 0 {
		t.Errorf("join: got %+v, want times above 0", r.Join)
	}
	for _, i := range r.Idle {
		if i.CPU <= 0 || i.HeapPerEntry < keySize+valueSize || i.TablePerEntry < keySize+valueSize {
			t.Errorf("idle: got %+v, want processor use above 0 and at least the size of an entry", i)
		}
	}
	for _, j := range r.Jitter {
		if j.Samples == 0 || j.P50 <= 0 || j.P50 > j.P999 {
			t.Errorf("jitter: got %+v, want samples and ascending percentiles", j)
		}
	}
	for _, f := range r.Followed {
		if f.Samples == 0 || f.P50 <= 0 || f.P50 > f.P999 || (f.Bound > 0 || f.Control) != (f.LongestCall > 0) {
			t.Errorf("followed map: got %+v, want samples, ascending percentiles and a longest call", f)
		}
	}
	if len(r.Followed) != 2+2*2*3 {
		t.Errorf("followed maps: got %d figures, want 14", len(r.Followed))
	}
	usual, err := o.chosen()
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Latencies) != 2+len(callMethods()) || len(r.Idle) < 3 || len(r.Jitter) != len(phases) || len(r.Parts) != len(usual) {
		t.Errorf("report: parts are missing: %s", text)
	}
	if r.EndToEnd.New.DeltasPerSecond <= 0 || r.EndToEnd.Updated.DeltasPerSecond <= 0 {
		t.Errorf("end to end: got %+v, want rates above 0", r.EndToEnd)
	}
}

// TestVerify checks that verify detects every difference of the second map.
func TestVerify(t *testing.T) {
	needBPF(t)
	const n = 100
	m, err := newMap("verify", n)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	access, err := kmap.Open(m, kmap.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer access.Close()
	e := makeEntries(n + 1)
	put := func(k, v int) {
		if err := m.Put(e.keys[k], e.values[v]); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want string) {
		t.Helper()
		err := verify(t.Context(), access, n, 0)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Fatalf("verify: got error %v, want %q", err, want)
		}
	}
	for i := range n - 1 {
		put(i, i)
	}
	check("99 of 100")
	put(n-1, n-1)
	check("")
	put(7, 8)
	check("entry 7 differs")
	put(7, 7)
	put(n, n)
	check("entry 100 was never written")
}

// TestStride checks that shuffling visits each entry once.
func TestStride(t *testing.T) {
	for _, n := range []int{1, 2, 8192, 999_983, 1_000_000} {
		stride := strideOf(n)
		seen := make([]bool, n)
		for at := range n {
			seen[at*stride%n] = true
		}
		for i, ok := range seen {
			if !ok {
				t.Fatalf("stride: number %d of %d is not visited with stride %d", i, n, stride)
			}
		}
	}
}
