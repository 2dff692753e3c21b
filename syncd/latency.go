package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"mapsync/syncd/daemon"
	"mapsync/syncd/kmap"
	"mapsync/syncd/latency"

	"github.com/cilium/ebpf/rlimit"
	"github.com/spf13/cobra"
)

// latencyReport is the output of `syncd latency --json`.
type latencyReport struct {
	WindowSeconds float64 `json:"window_seconds"`
	// Calls are syncd's. CallsProblem is why they are unknown.
	Calls        []daemon.KernelCall `json:"calls"`
	CallsProblem string              `json:"calls_problem,omitempty"`
	callsErr     error               // of CallsProblem
	// Softirqs and Timers are those of the host, the longest first. SoftirqsProblem is why they are unknown.
	Softirqs        []latencyRuns `json:"softirqs"`
	Timers          []latencyRuns `json:"timers"`
	SoftirqsProblem string        `json:"softirqs_problem,omitempty"`
}

type latencyRuns struct {
	Name           string  `json:"name"`
	Runs           uint64  `json:"runs"`
	LongestSeconds float64 `json:"longest_seconds"`
	CPU            int     `json:"cpu"`  // with the longest run
	Late           uint64  `json:"late"` // runs of 1 ms and more
	TotalSeconds   float64 `json:"total_seconds"`
}

func newLatency() *cobra.Command {
	var c connection
	var window time.Duration
	var top int
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "latency",
		Short: "Show what delays packets: the longest calls of syncd and softirqs of the host",
		Long: `Measure for a time: the longest calls by which syncd reads or writes maps, and the longest runs of
softirqs and of timers (not high-resolution ones) on all CPUs. While a softirq runs, its CPU handles no
other packets. The duration of a call is the time for which it had a CPU, without the time of other
threads. All durations include interrupts, those of calls on most kernels. Measuring softirqs needs the
privileges of syncd check.
Exit code 0: measured, possibly without softirqs. 1: failed. 2: wrong use, such as another time.`,
		Example: `  syncd latency --for 30s
  syncd latency --json | jq '.timers[0]'`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if window < time.Second || window > kmap.MaxRecent {
				return usageError{fmt.Errorf("--for %s is not usable: give 1s to %s", window, kmap.MaxRecent)}
			}
			if top < 1 {
				return usageError{fmt.Errorf("--top %d is not usable: give at least 1", top)}
			}
			r, err := measureLatency(cmd.Context(), cmd.ErrOrStderr(), c.client(), window)
			if err != nil {
				return err
			}
			return r.report(cmd.OutOrStdout(), top, asJSON)
		},
	}
	cmd.Flags().DurationVar(&window, "for", 10*time.Second, "length of the measurement")
	cmd.Flags().IntVar(&top, "top", 5, "maximum number of softirqs and of timers to print")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.bind(cmd)
	return cmd
}

// report prints the report, as JSON or as text with at most top softirqs and timers. It returns an error if a
// measurement of the report is missing.
func (r *latencyReport) report(out io.Writer, top int, asJSON bool) (err error) {
	if asJSON {
		err = json.NewEncoder(out).Encode(r)
	} else {
		err = r.print(out, top)
	}
	if err != nil {
		return fmt.Errorf("print report: %w", err)
	}
	if r.callsErr != nil {
		return fmt.Errorf("measure the calls of syncd: %w", r.callsErr)
	}
	return nil
}

// errNoLatency means that neither part could be measured.
var errNoLatency = errors.New("nothing can be measured")

// measureLatency measures for a window. A part that cannot be measured has its problem in the report.
func measureLatency(ctx context.Context, progress io.Writer, client *daemon.Client, window time.Duration) (*latencyReport, error) {
	r := &latencyReport{WindowSeconds: window.Seconds(), Calls: []daemon.KernelCall{}, Softirqs: []latencyRuns{}, Timers: []latencyRuns{}}
	probe, err := openLatencyProbe()
	if err != nil {
		r.SoftirqsProblem = err.Error()
	} else {
		defer probe.Close() //nolint:errcheck // the process ends
	}
	fmt.Fprintf(progress, "measuring for %s\n", window)
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(window):
	}
	if probe != nil {
		if err := r.addSoftirqs(probe); err != nil {
			return nil, err
		}
	}
	if calls, err := client.KernelCalls(ctx, window); err != nil {
		r.CallsProblem, r.callsErr = err.Error(), err
	} else {
		r.Calls = calls
	}
	if r.callsErr != nil && r.SoftirqsProblem != "" {
		return nil, fmt.Errorf("%w: %w; %s", errNoLatency, r.callsErr, r.SoftirqsProblem)
	}
	return r, nil
}

func openLatencyProbe() (*latency.Probe, error) {
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("raise the limit of locked memory: %w", err)
	}
	return latency.Open()
}

func (r *latencyReport) addSoftirqs(probe *latency.Probe) error {
	softirqs, err := probe.Softirqs()
	if err != nil {
		return err
	}
	timers, err := probe.Timers()
	if err != nil {
		return err
	}
	for _, s := range softirqs {
		r.Softirqs = append(r.Softirqs, runsOf(&s))
	}
	for _, t := range timers {
		r.Timers = append(r.Timers, runsOf(&t))
	}
	return nil
}

func runsOf(r *latency.Runs) latencyRuns {
	return latencyRuns{r.Name, r.Runs, r.Longest.Seconds(), r.CPU, r.Late, r.Total.Seconds()}
}

func (r *latencyReport) print(out io.Writer, top int) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "CALL OF SYNCD\tLONGEST MS")
	for _, c := range r.Calls {
		fmt.Fprintf(w, "%s\t%.3f\n", c.Call, 1000*c.LongestSeconds)
	}
	switch {
	case r.CallsProblem != "":
		fmt.Fprintf(w, "unknown: %s\n", r.CallsProblem)
	case len(r.Calls) == 0:
		fmt.Fprintln(w, "none")
	}
	r.printRuns(w, "SOFTIRQ OF THE HOST", r.Softirqs, top)
	if r.SoftirqsProblem == "" {
		r.printRuns(w, "FUNCTION OF A TIMER", r.Timers, top)
	}
	return w.Flush()
}

func (r *latencyReport) printRuns(w io.Writer, title string, list []latencyRuns, top int) {
	fmt.Fprintf(w, "\n%s\tLONGEST MS\tCPU\tRUNS\tOF 1 MS AND MORE\n", title)
	for _, s := range list[:min(top, len(list))] {
		fmt.Fprintf(w, "%s\t%.3f\t%d\t%d\t%d\n", s.Name, 1000*s.LongestSeconds, s.CPU, s.Runs, s.Late)
	}
	switch {
	case r.SoftirqsProblem != "":
		fmt.Fprintf(w, "unknown: %s\n", r.SoftirqsProblem)
	case len(list) == 0:
		fmt.Fprintln(w, "none")
	}
}
