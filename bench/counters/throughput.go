package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"
)

// measureThroughput measures each variant once in each round. It compares a variant with the first one of the same round.
func (b *bench) measureThroughput(ctx context.Context) (figures string, claim, err error) {
	generator := "built-in"
	measure := func(ctx context.Context) (float64, error) { return b.net.throughput(ctx, b.size, b.window) }
	if path, err := exec.LookPath("iperf3"); err == nil {
		generator = "iperf3"
		measure = func(ctx context.Context) (float64, error) { return b.net.iperf3(ctx, path, b.size, b.window) }
	}
	variants := b.variants()
	rates := make([][]float64, len(variants))
	for round := range b.rounds {
		progress("throughput by %s, round %d of %d", generator, round+1, b.rounds)
		for i := range variants {
			i := (i + round) % len(variants)
			rate, err := measureVariant(ctx, &variants[i], measure)
			if err != nil {
				return "", nil, fmt.Errorf("measure %s: %w", variants[i].name, err)
			}
			rates[i] = append(rates[i], rate)
		}
	}
	return b.report(generator, variants, rates)
}

func measureVariant(ctx context.Context, v *variant, measure func(context.Context) (float64, error)) (rate float64, err error) {
	end, err := v.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, end()) }()
	return measure(ctx)
}

// report prints the table and returns the figures and the error of the claims that do not hold.
func (b *bench) report(generator string, variants []variant, rates [][]float64) (figures string, claim, err error) {
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "VARIANT\tMBIT/S\tOF OFF\tLOWEST\tHIGHEST")
	parts := []string{fmt.Sprintf("load=%s off_mbit=%.0f", generator, median(rates[0]))}
	for i, v := range variants {
		var ratios []float64
		for round, rate := range rates[i] {
			ratios = append(ratios, rate/rates[0][round])
		}
		ratio := median(ratios)
		fmt.Fprintf(w, "%s\t%.0f\t%.3f\t%.3f\t%.3f\n", v.name, median(rates[i]), ratio, slices.Min(ratios), slices.Max(ratios))
		if i > 0 {
			parts = append(parts, fmt.Sprintf("%s=%.3f", strings.ReplaceAll(v.name, " ", "_"), ratio))
			claim = errors.Join(claim, b.checkRatio(v.name, ratio))
		}
	}
	return strings.Join(parts, " "), claim, w.Flush()
}

func (b *bench) checkRatio(variant string, ratio float64) error {
	switch {
	case strings.HasPrefix(variant, "export ") && ratio < b.ratio:
		return fmt.Errorf("throughput with %s is %.3f of that without, want at least %.3f", variant, ratio, b.ratio)
	case variant == "layer 2" && b.control > 0 && ratio > b.control:
		return fmt.Errorf("throughput with the layer 2 program is %.3f of that without, want at most %.3f: the measurement does not see what programs cost", ratio, b.control)
	}
	return nil
}

func median(list []float64) float64 {
	sorted := slices.Sorted(slices.Values(list))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}
