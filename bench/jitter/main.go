// Command jitter compares two causes of delayed packets on one host: the timer by which IPVS updates the statistics of
// all services (estimation_timer, until kernel 6.1), and the calls by which syncd reads a large map. It creates IPVS
// services and a map in its own network namespace and BPF filesystem, and is meant for a virtual machine.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"

	"mapsync/internal/tool"
)

// options are the command line.
type options struct {
	services []int
	entries  []int
	window   time.Duration
	ratio    float64
}

func main() {
	o := options{services: []int{10, 10_000, 30_000}, entries: []int{1_000_000}}
	flag.Func("services", "numbers of IPVS services, a comma-separated `list`", tool.Numbers(&o.services))
	flag.Func("entries", "numbers of entries of the map, a comma-separated `list`", tool.Numbers(&o.entries))
	flag.DurationVar(&o.window, "for", 8*time.Second, "length of each measurement")
	flag.Float64Var(&o.ratio, "ratio", 20, "fail unless the timer takes this many times as long as the longest call of syncd; 0: print only")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := useRealtime()
	if err == nil {
		err = run(ctx, &o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "jitter:", err)
		os.Exit(1)
	}
}

// measurement is the longest run of the timer, or the longest call of syncd.
type measurement struct {
	name    string
	kind    string // of the longest call
	longest time.Duration
	runs    uint64
}

func run(ctx context.Context, o *options) error {
	timer, call, list, err := measureAll(ctx, o)
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "WHAT RUNS\tLONGEST MS\tRUNS\tKIND OF CALL")
	for _, m := range list {
		fmt.Fprintf(w, "%s\t%.3f\t%d\t%s\n", m.name, milliseconds(m.longest), m.runs, m.kind)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	return compare(os.Stdout, tool.KernelVersion(), timer, call, o.ratio)
}

// publishedTimer is the longest run of the timer in the article.
const publishedTimer = 119 * time.Millisecond

// compare prints the line of figures. It fails if the timer takes less than ratio times as long as the longest call of syncd,
// or did not run on a kernel that has it. On a later kernel, the published run takes its place. With ratio 0 it does not fail.
func compare(out io.Writer, kernel string, timer, call time.Duration, ratio float64) error {
	if timer == 0 {
		fmt.Fprintf(out, "jitter: kernel=%s estimation_timer=none syncd_call_ms=%.3f\n", kernel, milliseconds(call))
		if ratio > 0 && !lacksTimer(kernel) {
			return fmt.Errorf("the timer was not measured: kernel %s has %s, want some runs (load the module ip_vs, measure for longer, or give -ratio 0)",
				kernel, estimationTimer)
		}
		timer = publishedTimer
	} else {
		fmt.Fprintf(out, "jitter: kernel=%s estimation_timer_ms=%.3f syncd_call_ms=%.3f ratio=%.1f\n", kernel, milliseconds(timer), milliseconds(call),
			timer.Seconds()/call.Seconds())
	}
	if measured := timer.Seconds() / call.Seconds(); measured < ratio {
		return fmt.Errorf("the timer (%s) takes %.1f times as long as a call of syncd, want at least %.1f", timer, measured, ratio)
	}
	return nil
}

// lacksTimer reports whether a kernel has threads instead of the timer: from 6.2 on. An unknown version has the timer.
func lacksTimer(kernel string) bool {
	var major, minor int
	if _, err := fmt.Sscanf(kernel, "%d.%d", &major, &minor); err != nil {
		return false
	}
	return major > 6 || major == 6 && minor >= 2
}

// measureAll measures the timer with each number of services, and calls of syncd with each number of entries. timer and
// call are the longest of them.
func measureAll(ctx context.Context, o *options) (timer, call time.Duration, list []measurement, err error) {
	for _, n := range o.services {
		m, err := measureTimer(ctx, n, o.window)
		if err != nil {
			return 0, 0, nil, fmt.Errorf("measure with %d services: %w", n, err)
		}
		timer = max(timer, m.longest)
		list = append(list, m)
	}
	for _, n := range o.entries {
		m, err := measureCalls(ctx, n, o.window)
		if err != nil {
			return 0, 0, nil, fmt.Errorf("measure with %d entries: %w", n, err)
		}
		call = max(call, m.longest)
		list = append(list, m)
	}
	return timer, call, list, nil
}

func milliseconds(d time.Duration) float64 { return 1000 * d.Seconds() }
