package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"text/tabwriter"

	"mapsync/internal/tool"
)

// measureThroughput measures each variant once in each round. It compares a variant with the first one of the same round.
func (b *bench) measureThroughput(ctx context.Context) (figures string, unmet, err error) {
	generator := "built-in"
	measure := func(ctx context.Context) (float64, error) { return b.net.throughput(ctx, b.size, b.window) }
	if path, err := exec.LookPath("iperf3"); err == nil {
		generator = "iperf3"
		measure = func(ctx context.Context) (float64, error) { return b.net.iperf3(ctx, path, b.size, b.window) }
	}
	variants := b.variants()
	rates := make([][]float64, len(variants))
	for round := range b.rounds {
		tool.Progress("throughput by %s, round %d of %d", generator, round+1, b.rounds)
		for i := range variants {
			i := (i + round) % len(variants)
			rate, err := measureVariant(ctx, &variants[i], measure)
			if err != nil {
				return "", nil, fmt.Errorf("measure %s: %w", variants[i].name, err)
			}
			rates[i] = append(rates[i], rate)
		}
	}
	if figures, unmet, err = b.report(generator, variants, rates); err != nil {
		return "", nil, err
	}
	costs, costly, err := b.measureCosts(ctx, variants, measure)
	return figures + costs, errors.Join(unmet, costly), err
}

func measureVariant(ctx context.Context, v *variant, measure func(context.Context) (float64, error)) (rate float64, err error) {
	end, err := v.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, end()) }()
	return measure(ctx)
}

// report prints the table and returns the figures, and in unmet the claims that do not hold.
func (b *bench) report(generator string, variants []variant, rates [][]float64) (figures string, unmet, err error) {
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "VARIANT\tMBIT/S\tOF OFF\t+-\tLOWEST\tHIGHEST")
	parts := []string{fmt.Sprintf("load=%s off_mbit=%.0f", generator, tool.Median(rates[0]))}
	for i, v := range variants {
		var ratios []float64
		for round, rate := range rates[i] {
			ratios = append(ratios, rate/rates[0][round])
		}
		ratio, margin := tool.Median(ratios), margin(ratios)
		fmt.Fprintf(w, "%s\t%.0f\t%.3f\t%.3f\t%.3f\t%.3f\n", v.name, tool.Median(rates[i]), ratio, margin, slices.Min(ratios), slices.Max(ratios))
		if i > 0 {
			parts = append(parts, fmt.Sprintf("%s=%.3f", strings.ReplaceAll(v.name, " ", "_"), ratio))
			unmet = errors.Join(unmet, b.checkRatio(v.name, ratio, margin))
		}
	}
	return strings.Join(parts, " "), unmet, w.Flush()
}

// maxMargin is the highest margin with which a ratio proves something.
const maxMargin = 0.05

// checkRatio returns an error if a ratio misses its limit by more than the margin. A margin above maxMargin is also an
// error.
func (b *bench) checkRatio(variant string, ratio, margin float64) error {
	export, control := b.ratio > 0 && strings.HasPrefix(variant, "export "), b.control > 0 && variant == layer2
	switch {
	case (export || control) && margin > maxMargin:
		return fmt.Errorf("throughput with %s is %.3f +- %.3f of that without, want a margin of at most %.2f: the measurement is too noisy (give more ROUNDS, on a machine without other work)",
			variant, ratio, margin, maxMargin)
	case export && ratio+margin < b.ratio:
		return fmt.Errorf("throughput with %s is %.3f +- %.3f of that without, want at least %.3f", variant, ratio, margin, b.ratio)
	case control && ratio-margin > b.control:
		return fmt.Errorf("throughput with the layer 2 program is %.3f +- %.3f of that without, want at most %.3f: the measurement does not show the cost of programs",
			ratio, margin, b.control)
	}
	return nil
}

// margin returns two standard errors of the median, estimated from the median of the absolute deviations. That of one value is
// infinite.
func margin(list []float64) float64 {
	if len(list) < 2 {
		return math.Inf(1)
	}
	const ofNormal = 1.4826 * 1.2533 // from that median to the standard deviation, and to the error of the median
	middle := tool.Median(list)
	var deviations []float64
	for _, x := range list {
		deviations = append(deviations, math.Abs(x-middle))
	}
	return 2 * ofNormal * tool.Median(deviations) / math.Sqrt(float64(len(list)))
}
