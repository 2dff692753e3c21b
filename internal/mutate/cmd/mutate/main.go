// Command mutate changes packages in one place at a time and lists the changes that their tests do not
// detect:
//
//	mutate [-sample N] [-seed N] [-files REGEXP] [-least 0.85] ./syncd/table ./syncd/replicate
//
// A run that was stopped continues when it is started again.
package main

import (
	"flag"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"runtime"
	"time"

	"mapsync/internal/mutate"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		os.Exit(1)
	}
}

func run() error {
	o := mutate.Options{Log: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	flag.IntVar(&o.Sample, "sample", 0, "try this `number` of mutants of each package; 0: all")
	flag.Uint64Var(&o.Seed, "seed", 1, "`number` that chooses the sample")
	// Tests wait more than they compute.
	flag.IntVar(&o.Parallel, "parallel", 3*runtime.NumCPU(), "`number` of mutants to try at a time")
	flag.DurationVar(&o.Limit, "limit", time.Minute, "leave out tests that take longer than this `time`")
	flag.StringVar(&o.StateDir, "state", "bin/mutate", "`directory` for results; a run that was stopped continues from there")
	flag.BoolVar(&o.Fresh, "fresh", false, "ignore the results of earlier runs")
	files := flag.String("files", "", "try only mutants whose \"file:function\" matches this `expression`")
	least := flag.Float64("least", 0, "fail below this `score`")
	flag.Parse()
	if *files != "" {
		var err error
		if o.Files, err = regexp.Compile(*files); err != nil {
			return fmt.Errorf("parse -files: %w", err)
		}
	}
	for _, pattern := range flag.Args() {
		o.Package = pattern
		report, err := mutate.Run(o)
		if err != nil {
			return err
		}
		print(report)
		if report.Score() < *least {
			return fmt.Errorf("%s: score %.1f %% is below %.1f %%", report.Package, 100*report.Score(), 100**least)
		}
	}
	return nil
}

func print(r *mutate.Report) {
	fmt.Printf("%s: score %.1f %%: %d of %d mutants killed (%d in the package, %d equivalent ones left out)\n",
		r.Package, 100*r.Score(), r.Killed, r.Tried, r.Mutants, r.Equivalent)
	if r.Failing != "" {
		fmt.Printf("  tests that fail without a mutant, not used: %s\n", r.Failing)
	}
	for _, key := range r.UnusedKeys {
		fmt.Printf("  no longer in the code, remove from the list: %s\n", key)
	}
	for _, s := range r.Survivors {
		fmt.Printf("  %s:%d: %s, reached by %d tests\n", s.File, s.Line, s.Key(), s.Reached)
		if s.Reason != "" {
			fmt.Printf("      accepted: %s\n", s.Reason)
		}
	}
}
