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

// row has the medians of the measurements of a method under a load. The shares are percent of one CPU.
type row struct {
	kind
	method               string
	reached              float64 // connections or round trips a second
	tracer, programs     float64 // the process and its BPF programs
	syncd, syncdPrograms float64
	all                  float64
	added                float64 // all, on a kernel with fexit or kprobes: see [report.added]
	perRoundTrip         float64 // run time of the tracer's programs in µs
}

// rows returns the medians of all rounds, by load and method.
func (r *report) rows() (rows []row) {
	for _, k := range kinds(r.options) {
		for _, method := range methods {
			var of []measurement
			for _, m := range r.list {
				if m.kind == k && m.method == method {
					of = append(of, m)
				}
			}
			if len(of) > 0 {
				rows = append(rows, r.medians(of))
			}
		}
	}
	return rows
}

// medians returns the medians of measurements of one method under one load.
func (r *report) medians(list []measurement) row {
	median := func(of func(*measurement) float64) float64 {
		var values []float64
		for i := range list {
			values = append(values, of(&list[i]))
		}
		return tool.Median(values)
	}
	return row{
		kind: list[0].kind, method: list[0].method,
		reached:       median(func(m *measurement) float64 { return float64(m.roundTrips) / m.seconds }),
		tracer:        median(func(m *measurement) float64 { return m.percent(m.tracer.Process) }),
		programs:      median(func(m *measurement) float64 { return m.percent(m.tracer.Programs) }),
		syncd:         median(func(m *measurement) float64 { return m.percent(m.syncd.Process) }),
		syncdPrograms: median(func(m *measurement) float64 { return m.percent(m.syncd.Programs) }),
		all:           median(func(m *measurement) float64 { return m.percent(m.total()) }),
		added:         median(func(m *measurement) float64 { return m.percent(r.added(m)) }),
		perRoundTrip:  median(func(m *measurement) float64 { return float64(m.perRoundTrip().Nanoseconds()) / 1000 }),
	}
}

// print prints a table and the line of figures, and fails if a claim does not hold.
func (r *report) print(out io.Writer) error {
	rows := r.rows()
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "LOAD\tCLIENTS\tASKED/s\tREACHED/s\tMETHOD\tTRACER %\tSYNCD %\tPROGRAMS %\tSYNCD'S PROGRAMS %\tALL %\tPROGRAMS µs/ROUND TRIP")
	for _, m := range rows {
		fmt.Fprintf(w, "%s\t%d\t%.0f\t%.0f\t%s\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\n", m.name, m.Sources, m.Rate, m.reached, m.method,
			m.tracer, m.syncd, m.programs, m.syncdPrograms, m.all, m.perRoundTrip)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	var line strings.Builder
	fmt.Fprintf(&line, "bundling: kernel=%s", tool.KernelVersion())
	for _, method := range methods {
		fmt.Fprintf(&line, " %s_percent=%.2f", method, highest(rows, method))
	}
	ratio, longest := streamRatio(rows, func(m *row) float64 { return m.added }), longest(rows)
	fmt.Fprintf(&line, " ratio=%.1f ratio_with_all_programs=%.1f program_us=%.2f connections=%d sums=exact", ratio, streamRatio(rows, func(m *row) float64 { return m.all }), longest, r.connections)
	fmt.Fprintln(out, line.String())
	var err error
	if r.ratio > 0 && ratio < r.ratio {
		err = fmt.Errorf("streaming takes %.1f times the processor time of bundling, want at least %.1f", ratio, r.ratio)
	}
	if most := r.programTime; most > 0 && longest > float64(most.Nanoseconds())/1000 {
		err = errors.Join(err, fmt.Errorf("the programs take %.2f µs for a round trip, want at most %s", longest, most))
	}
	return err
}

// added is the processor time that a method adds on a kernel with fexit or kprobes: with --attach syscall, programs of syncd
// run for each system call on the host, for want of these.
func (r *report) added(m *measurement) time.Duration {
	if r.attach == "syscall" {
		return m.total() - m.syncd.Programs
	}
	return m.total()
}

// highest returns the highest processor time that a method adds, in percent of one CPU.
func highest(rows []row, method string) (percent float64) {
	for _, m := range rows {
		if m.method == method {
			percent = max(percent, m.added)
		}
	}
	return percent
}

// streamRatio returns how many times as much processor time streaming takes as bundling, with short connections.
func streamRatio(rows []row, of func(*row) float64) float64 {
	shares := make(map[string]float64)
	for i := range rows {
		if m := &rows[i]; !m.Persistent {
			shares[m.method] += of(m)
		}
	}
	return shares[trace.Stream] / shares[trace.Bundle]
}

// longest returns the longest run time of the bundling programs for a round trip of a persistent connection, in µs.
func longest(rows []row) (microseconds float64) {
	for _, m := range rows {
		if m.Persistent && m.method == trace.Bundle {
			microseconds = max(microseconds, m.perRoundTrip)
		}
	}
	return microseconds
}
