package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"mapsync/docs/examples/bundling/trace"
	"mapsync/internal/tool"
)

// report has all measurements.
type report struct {
	*options
	list        []measurement
	connections uint64 // in the sums of both nodes
}

// print prints a table and the line of figures, and fails if a claim does not hold.
func (r *report) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "LOAD\tCLIENTS\tASKED/s\tREACHED/s\tMETHOD\tTRACER %\tSYNCD %\tPROGRAMS %\tSYNCD'S PROGRAMS %\tALL %\tPROGRAMS µs/ROUND TRIP")
	for _, m := range r.list {
		fmt.Fprintf(w, "%s\t%d\t%.0f\t%.0f\t%s\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\n", m.name, m.Sources, m.Rate, float64(m.roundTrips)/m.seconds, m.method,
			m.percent(m.tracer.process), m.percent(m.syncd.process), m.percent(m.tracer.programs), m.percent(m.syncd.programs), m.percent(m.total()),
			float64(m.perRoundTrip().Nanoseconds())/1000)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	var line strings.Builder
	fmt.Fprintf(&line, "bundling: kernel=%s", tool.KernelVersion())
	for _, method := range methods {
		fmt.Fprintf(&line, " %s_percent=%.2f", method, r.highest(method))
	}
	ratio, longest := r.streamRatio(r.added), r.longest()
	fmt.Fprintf(&line, " ratio=%.1f ratio_with_all_programs=%.1f program_us=%.2f connections=%d sums=exact", ratio, r.streamRatio((*measurement).total), float64(longest.Nanoseconds())/1000, r.connections)
	fmt.Fprintln(out, line.String())
	var err error
	if r.ratio > 0 && ratio < r.ratio {
		err = fmt.Errorf("streaming takes %.1f times the processor time of bundling, want at least %.1f", ratio, r.ratio)
	}
	if r.programTime > 0 && longest > r.programTime {
		err = errors.Join(err, fmt.Errorf("the programs take %s for a round trip, want at most %s", longest, r.programTime))
	}
	return err
}

// added is the processor time that a method adds on a kernel with fexit or kprobes: with --attach syscall, programs of syncd
// run for each system call on the host, for want of these.
func (r *report) added(m *measurement) time.Duration {
	if r.attach == "syscall" {
		return m.total() - m.syncd.programs
	}
	return m.total()
}

// highest returns the highest processor time that a method adds, in percent of one CPU.
func (r *report) highest(method string) (percent float64) {
	for _, m := range r.list {
		if m.method == method {
			percent = max(percent, m.percent(r.added(&m)))
		}
	}
	return percent
}

// streamRatio returns how many times as much processor time streaming takes as bundling, with short connections.
func (r *report) streamRatio(of func(*measurement) time.Duration) float64 {
	times := make(map[string]time.Duration)
	for _, m := range r.list {
		if !m.Persistent {
			times[m.method] += of(&m)
		}
	}
	return times[trace.Stream].Seconds() / times[trace.Bundle].Seconds()
}

// longest returns the longest run time of the bundling programs for a round trip of a persistent connection.
func (r *report) longest() (longest time.Duration) {
	for _, m := range r.list {
		if m.Persistent && m.method == trace.Bundle {
			longest = max(longest, m.perRoundTrip())
		}
	}
	return longest
}
