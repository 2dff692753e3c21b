package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"text/tabwriter"

	"golang.org/x/sys/unix"
)

// Step is one step of the way of a delta and what it costs.
type Step struct {
	Name string `json:"name"`
	Sample
}

// steady tells the steps that are to allocate nothing: those through capture, table
// and codec, once the tables have their size.
func (s *Step) steady() bool {
	return strings.HasSuffix(s.Name, ", update") &&
		(strings.HasPrefix(s.Name, "capture:") || strings.HasPrefix(s.Name, "codec:"))
}

// Rate is something that carries deltas, and how fast.
type Rate struct {
	Name            string  `json:"name"`
	DeltasPerSecond float64 `json:"deltas_per_second"`
	Allocations     float64 `json:"allocations_per_delta"`
}

// Target is a bound that the figures are to keep.
type Target struct {
	Name  string  `json:"name"`
	Bound float64 `json:"bound"`
	Got   float64 `json:"got"`
	Unit  string  `json:"unit"`
	Met   bool    `json:"met"`
}

// Report is all that one run found out.
type Report struct {
	Entries   int    `json:"entries"`
	KeySize   int    `json:"key_size"`
	ValueSize int    `json:"value_size"`
	Rounds    int    `json:"rounds"`
	CPUs      int    `json:"cpus"`
	Kernel    string `json:"kernel"`
	Go        string `json:"go"`
	// OtherLoad is the part of the processors' time that other processes had while
	// the ways were compared.
	OtherLoad float64 `json:"other_load_percent"`

	EndToEnd      EndToEnd `json:"end_to_end"`
	CeilingNew    Rate     `json:"ceiling_new"`
	CeilingUpdate Rate     `json:"ceiling_updated"`
	Rivals        []Rate   `json:"rivals"`
	Steps         []Step   `json:"steps"`
	Targets       []Target `json:"targets"`
}

func newReport(n, rounds int) (*Report, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, fmt.Errorf("ask for the kernel's release: %w", err)
	}
	return &Report{
		Entries: n, KeySize: keySize, ValueSize: valueSize, Rounds: rounds,
		CPUs: runtime.GOMAXPROCS(0), Kernel: unix.ByteSliceToString(u.Release[:]), Go: runtime.Version(),
	}, nil
}

func rate(name string, s Sample) Rate {
	return Rate{Name: name, DeltasPerSecond: 1e9 / s.Nanoseconds, Allocations: s.Allocations}
}

// judge holds the figures against the bounds of the design.
func (r *Report) judge() {
	atLeast := func(name string, got, bound float64, unit string) {
		r.Targets = append(r.Targets, Target{name, bound, got, unit, got >= bound})
	}
	atMost := func(name string, got, bound float64, unit string) {
		r.Targets = append(r.Targets, Target{name, bound, got, unit, got <= bound})
	}
	atLeast("end to end of the ceiling, at least",
		100*r.EndToEnd.New.DeltasPerSecond/r.CeilingNew.DeltasPerSecond, 25, "%")
	atLeast("end to end of net/rpc, one call each, at least",
		r.EndToEnd.New.DeltasPerSecond/r.Rivals[0].DeltasPerSecond, 20, "times")
	for _, s := range r.Steps {
		if s.steady() {
			atMost("allocations a delta, "+s.Name+", at most", s.Allocations, steadyAllocations, "")
		}
	}
	atMost("Go memory an entry, at most", r.EndToEnd.HeapPerEntry, keySize+valueSize+96, "bytes")
}

// steadyAllocations is what counts as none: what a thread of the runtime, a timer or
// a batch of hundreds of deltas allocates now and then is not a delta's.
const steadyAllocations = 0.01

// nameWidth is that of the longest name in the table.
const nameWidth = 65

// write prints the report as a table.
func (r *Report) write(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(format string, args ...any) {
		name, cells, _ := strings.Cut(fmt.Sprintf(format, args...), "\t")
		fmt.Fprintf(w, "%-*s\t%s\t\n", nameWidth, name, cells) // names to the left, figures to the right
	}
	fmt.Fprintf(out, "%d entries of %d + %d bytes, %d CPUs, kernel %s, %s; medians of %d\n"+
		"%.0f %% of the processors' time went to other processes meanwhile\n\n",
		r.Entries, r.KeySize, r.ValueSize, r.CPUs, r.Kernel, r.Go, r.Rounds, r.OtherLoad)
	line("end to end\tdeltas/s\tof the ceiling\tCPU s\tof it the feed's\tallocs/delta")
	pass := func(name string, p Pass, ceiling Rate) {
		line("%s\t%.0f\t%.1f %%\t%.2f\t%.2f\t%.3f", name, p.DeltasPerSecond,
			100*p.DeltasPerSecond/ceiling.DeltasPerSecond, p.CPUSeconds, p.FeedCPUSeconds, p.Allocations)
	}
	pass("new entries", r.EndToEnd.New, r.CeilingNew)
	pass("updates", r.EndToEnd.Updated, r.CeilingUpdate)
	line("ceiling: bpf(2) batches, new\t%.0f", r.CeilingNew.DeltasPerSecond)
	line("ceiling: bpf(2) batches, updates\t%.0f", r.CeilingUpdate.DeltasPerSecond)
	line("")
	line("in its place\tdeltas/s\tend to end is\tallocs/delta")
	for _, v := range r.Rivals {
		line("%s\t%.0f\t%.1f times\t%.2f", v.Name, v.DeltasPerSecond,
			r.EndToEnd.New.DeltasPerSecond/v.DeltasPerSecond, v.Allocations)
	}
	line("")
	line("step\tns/delta\tallocs/delta")
	for _, s := range r.Steps {
		line("%s\t%.0f\t%.4f", s.Name, s.Nanoseconds, s.Allocations)
	}
	line("")
	line("memory\tbytes/entry")
	line("Go heap of a node\t%.0f", r.EndToEnd.HeapPerEntry)
	line("of it the table\t%.0f", r.EndToEnd.TablePerEntry)
	line("")
	line("target\tbound\tgot\t")
	for _, t := range r.Targets {
		verdict := "met"
		if !t.Met {
			verdict = "NOT MET"
		}
		line("%s\t%.4g %s\t%.4g\t%s", t.Name, t.Bound, t.Unit, t.Got, verdict)
	}
	return w.Flush()
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
