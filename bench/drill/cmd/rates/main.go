// Command rates measures how many connections a second a load balancer carries, with and without syncd.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"

	"mapsync/bench/drill"
)

func main() {
	if drill.RunRole() {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "rates:", err)
		}
		os.Exit(1) //nolint:gocritic // nothing is left to stop
	}
}

func run(ctx context.Context, args []string) error {
	o := drill.RateOptions{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	fs := flag.NewFlagSet("rates", flag.ContinueOnError)
	ways := fs.String("ways", drill.WayReports, "how syncd detects writes: kprobe, fexit, reports (by the load balancer itself, without hooks); a `list`")
	threads := fs.String("threads", "1,10,50", "numbers of netperf clients, a `list`")
	fs.IntVar(&o.Rounds, "rounds", 0, "rounds, in which the ways take turns (default 5)")
	fs.DurationVar(&o.Window, "window", 0, "length of each measurement (default 5s)")
	fs.StringVar(&o.Syncd, "syncd", "bin/syncd", "`path` of the syncd program, for ways with hooks")
	file := fs.String("json", "", "`file` to write the rates to")
	if err := fs.Parse(args); err != nil {
		return err
	}
	o.Ways = strings.Split(*ways, ",")
	for text := range strings.SplitSeq(*threads, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("parse threads: %q is not a number above 0", text)
		}
		o.Threads = append(o.Threads, n)
	}
	rates, err := drill.MeasureRates(ctx, o)
	if err != nil {
		return err
	}
	if err := printRates(rates); err != nil || *file == "" {
		return err
	}
	text, err := json.MarshalIndent(rates, "", "  ")
	if err != nil {
		return fmt.Errorf("encode rates: %w", err)
	}
	if err := os.WriteFile(*file, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write rates: %w", err)
	}
	return nil
}

// printRates prints a line for each way and number of clients.
func printRates(rates []*drill.Rate) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "syncd\tclients\tconnections/s\tratio\tlowest\thighest\tsyncd CPU %\tevents\tlost\t")
	for _, r := range rates {
		fmt.Fprintf(w, "%s\t%d\t%.0f\t%.3f\t%.3f\t%.3f\t%.0f\t%d\t%d\t\n", r.Way, r.Threads, r.Rate, r.Ratio, r.Lowest, r.Highest, r.CPU, r.Events, r.Lost)
	}
	return w.Flush()
}
