package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mapsync/internal/tool"
)

// cost is the time that the programs of a variant run, as the kernel measures it: without the time to enter them.
type cost struct {
	runs    uint64
	runtime time.Duration
}

// measureCosts measures the programs of each variant once more, with the kernel's run time statistics. They slow down all
// programs, so these runs are not part of the throughput. Unlike that, their result depends little on other load.
func (b *bench) measureCosts(ctx context.Context, variants []variant, measure func(context.Context) (float64, error)) (figures string, unmet, err error) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		tool.Progress("no costs: enable statistics: %v (needs kernel 5.8)", err)
		return "", nil, nil
	}
	defer func() { err = errors.Join(err, stats.Close()) }()
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "PROGRAMS OF\tNS A CALL\tCALLS/S\tOF ONE CPU")
	shares := make(map[string]float64)
	for i := range variants {
		v := &variants[i]
		if v.programs == nil {
			continue
		}
		c, took, err := measureCost(ctx, v, measure)
		if err != nil {
			return "", nil, fmt.Errorf("measure the programs of %s: %w", v.name, err)
		}
		share := 100 * c.runtime.Seconds() / took.Seconds()
		shares[v.name] = share
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.2f %%\n", v.name, float64(c.runtime)/float64(max(1, c.runs)), float64(c.runs)/took.Seconds(), share)
		figures += fmt.Sprintf(" %s_cpu=%.2f%%", strings.ReplaceAll(strings.TrimPrefix(v.name, "export "), " ", "_"), share)
	}
	return figures, b.checkCosts(shares), w.Flush()
}

// checkCosts compares the CPU time of each variant with that of the layer 2 program.
func (b *bench) checkCosts(shares map[string]float64) (unmet error) {
	for name, share := range shares {
		if most := b.cost * shares[layer2]; b.cost > 0 && name != layer2 && share > most {
			unmet = errors.Join(unmet, fmt.Errorf("the program of %s runs for %.2f %% of one CPU, want at most %.2f %%: %.2f of the layer 2 program",
				name, share, most, b.cost))
		}
	}
	return unmet
}

func measureCost(ctx context.Context, v *variant, measure func(context.Context) (float64, error)) (c cost, took time.Duration, err error) {
	_, err = measureVariant(ctx, v, func(ctx context.Context) (rate float64, err error) {
		before, err := costOf(v.programs)
		if err != nil {
			return 0, err
		}
		began := time.Now()
		if rate, err = measure(ctx); err != nil {
			return 0, err
		}
		took = time.Since(began)
		c, err = costOf(v.programs)
		c.runs, c.runtime = c.runs-before.runs, c.runtime-before.runtime
		return rate, err
	})
	return c, took, err
}

// costOf adds the run times of the loaded programs with these names. The number of runs is that of the first one: a call
// runs each.
func costOf(names []string) (sum cost, err error) {
	for id := ebpf.ProgramID(0); ; {
		if id, err = ebpf.ProgramGetNextID(id); errors.Is(err, os.ErrNotExist) {
			return sum, nil
		} else if err != nil {
			return sum, fmt.Errorf("list programs: %w", err)
		}
		c, name, err := statsOf(id)
		if err != nil {
			return sum, err
		}
		for i, full := range names {
			if name == "" || !strings.HasPrefix(full, name) {
				continue
			}
			sum.runtime += c.runtime
			if i == 0 {
				sum.runs += c.runs
			}
		}
	}
}

// statsOf returns the statistics of a program and its name, which the kernel truncates. The name of a program that was
// unloaded is empty.
func statsOf(id ebpf.ProgramID) (c cost, name string, err error) {
	p, err := ebpf.NewProgramFromID(id)
	if errors.Is(err, os.ErrNotExist) {
		return c, "", nil
	}
	if err != nil {
		return c, "", fmt.Errorf("open program %d: %w", id, err)
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	info, err := p.Info()
	if err != nil {
		return c, "", fmt.Errorf("read program %d: %w", id, err)
	}
	s, err := p.Stats()
	if err != nil {
		return c, "", fmt.Errorf("read the statistics of program %d: %w", id, err)
	}
	return cost{s.RunCount, s.Runtime}, info.Name, nil
}
