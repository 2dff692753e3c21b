package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"mapsync/syncd/capture"
)

// Step is one step of the replication of a delta and its cost.
type Step struct {
	Name string `json:"name"`
	Sample
}

// steady reports whether the step must not allocate. Those steps are the ones through capture,
// table and codec, after the tables have reached their final size.
func (s *Step) steady() bool {
	return strings.HasSuffix(s.Name, ", update") &&
		(strings.HasPrefix(s.Name, "capture:") || strings.HasPrefix(s.Name, "codec:"))
}

// Rate is the speed of one way to send deltas.
type Rate struct {
	Name            string  `json:"name"`
	DeltasPerSecond float64 `json:"deltas_per_second"`
	Allocations     float64 `json:"allocations_per_delta"`
}

// Target is a limit of the design and the measured figure.
type Target struct {
	Name  string  `json:"name"`
	Bound float64 `json:"bound"`
	Got   float64 `json:"got"`
	Unit  string  `json:"unit"`
	Met   bool    `json:"met"`
}

// Report is the result of one run. Parts that were not measured are omitted.
type Report struct {
	Entries   int       `json:"entries"`
	KeySize   int       `json:"key_size"`
	ValueSize int       `json:"value_size"`
	Rounds    int       `json:"rounds"`
	CPUs      int       `json:"cpus"`
	Kernel    string    `json:"kernel"`
	Go        string    `json:"go"`
	TLS       bool      `json:"tls"` // all nodes have mutual TLS
	Parts     []PartRun `json:"parts"`

	EndToEnd      *EndToEnd  `json:"end_to_end,omitempty"`
	CeilingNew    Rate       `json:"ceiling_new,omitzero"`
	CeilingUpdate Rate       `json:"ceiling_updated,omitzero"`
	Alternatives  []Rate     `json:"alternatives,omitempty"`
	Steps         []Step     `json:"steps,omitempty"`
	Latencies     []Latency  `json:"latencies,omitempty"`
	Join          *Join      `json:"join,omitempty"`
	Idle          []Idle     `json:"idle,omitempty"`
	Jitter        []Jitter   `json:"jitter,omitempty"`
	Followed      []Followed `json:"followed,omitempty"`
	Buffers       *Buffers   `json:"buffers,omitempty"`
	Notification  []Latency  `json:"notification,omitempty"`
	Targets       []Target   `json:"targets"`
}

func newReport(n, rounds int, tls bool) (*Report, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, fmt.Errorf("get the kernel's release: %w", err)
	}
	return &Report{
		Entries: n, KeySize: keySize, ValueSize: valueSize, Rounds: rounds,
		CPUs: runtime.GOMAXPROCS(0), Kernel: unix.ByteSliceToString(u.Release[:]), Go: runtime.Version(), TLS: tls,
	}, nil
}

func rate(name string, s Sample) Rate {
	return Rate{Name: name, DeltasPerSecond: 1e9 / s.Nanoseconds, Allocations: s.Allocations}
}

// steadyAllocations is the limit below which a step counts as free of allocations, per delta.
// Threads of the runtime, timers and batches of hundreds of deltas allocate occasionally.
const steadyAllocations = 0.01

// checkTargets compares the figures with the limits of the design.
func (r *Report) checkTargets() {
	if r.EndToEnd != nil {
		r.atLeast("end to end of the ceiling", 100*r.EndToEnd.New.DeltasPerSecond/r.CeilingNew.DeltasPerSecond, 25, "%")
		r.atLeast("end to end of net/rpc, one call each", r.EndToEnd.New.DeltasPerSecond/r.Alternatives[0].DeltasPerSecond, 20, "times")
		r.atMost("Go memory an entry", r.EndToEnd.HeapPerEntry, entryMemory, "bytes")
	}
	for _, s := range r.Steps {
		if s.steady() {
			r.atMost("allocations a delta, "+s.Name, s.Allocations, steadyAllocations, "")
		}
	}
	for _, l := range r.Latencies {
		r.atMost("p99 of "+l.Name, l.P99, l.Bound, "ms")
	}
	if r.Join != nil {
		r.atMost("join of a bare copy", r.Join.Ratio, joinBound, "times")
	}
	for _, i := range r.Idle {
		r.atMost("idle node that "+i.Kind+", of a core", i.CPU, i.Bound, "%")
		r.atMost("its Go memory an entry", i.HeapPerEntry, entryMemory, "bytes")
	}
	for _, j := range r.Jitter[min(1, len(r.Jitter)):] {
		if !j.Control {
			r.atMost("p99.9 of pings over idle, "+j.Name, j.Over, jitterBound, "ms")
		}
	}
	r.checkFollowed()
	r.checkBuffers()
}

// checkBuffers compares the losses with the limits of the design: none at the default size and the paced rate, and equal
// maps soon after an overflow.
func (r *Report) checkBuffers() {
	if r.Buffers == nil {
		return
	}
	for _, b := range r.Buffers.Runs {
		if b.Offered > 0 && b.Pages*os.Getpagesize() == capture.DefaultRingBytes {
			r.atMost(fmt.Sprintf("lost at the default size, %s, %d threads", b.Buffer, b.Threads), float64(b.Lost), 0, "events")
		}
	}
	for _, o := range r.Buffers.Overflows {
		r.atMost("divergent 2 s after an overflow of "+o.Buffer, float64(o.DivergentLate), 0, "entries")
	}
}

// checkFollowed compares the pings while maps are followed with the limits of the design.
func (r *Report) checkFollowed() {
	for _, f := range r.Followed {
		if f.Bound == 0 { // idle, or the control phase
			continue
		}
		r.atMost("p99.9 of pings over idle, "+f.Name, f.Over, f.Bound, "ms")
		r.atMost("longest call, "+f.Name, f.LongestCall, callBound, "ms")
	}
}

// entryMemory is the limit of Go memory per entry, in bytes.
const entryMemory = keySize + valueSize + 96

func (r *Report) atLeast(name string, got, bound float64, unit string) {
	r.Targets = append(r.Targets, Target{name + ", at least", bound, got, unit, got >= bound})
}

func (r *Report) atMost(name string, got, bound float64, unit string) {
	r.Targets = append(r.Targets, Target{name + ", at most", bound, got, unit, got <= bound})
}

// save writes the report as JSON.
func (r *Report) save(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode report: %w", err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("save report: %w", err)
	}
	return nil
}
