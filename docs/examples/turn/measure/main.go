// Command measure measures the TURN server of this example. It compares the server without and with the offload,
// and checks that all channels survive the failure of one server of a pair. It builds its network from namespaces.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"

	"mapsync/internal/tool"
)

// options are the command line.
type options struct {
	turn, syncd string // programs
	attach      string // of syncd
	channels    int
	rounds      int
	window      time.Duration
	// The claims about times are the lowest accepted ratios of the server without and with the offload. 0: print
	// only.
	delayRatio, rateRatio, cpuRatio float64
	// Without a signal at the takeover, the first request of a client makes the second server rebuild.
	noSignal bool
	probe    bool
}

func main() {
	var o options
	flag.StringVar(&o.turn, "turn", "bin/turn", "the server's `program`")
	flag.StringVar(&o.syncd, "syncd", "bin/syncd", "the `program` syncd")
	flag.StringVar(&o.attach, "attach", "syscall", "setting attach of syncd")
	flag.IntVar(&o.channels, "channels", 1000, "number of channels")
	flag.IntVar(&o.rounds, "rounds", 5, "number of comparisons; 0: none")
	flag.DurationVar(&o.window, "for", 2*time.Second, "length of each measurement")
	flag.Float64Var(&o.delayRatio, "delay-ratio", 2, "fail unless the delay is so many times shorter with the offload; 0: print only")
	flag.Float64Var(&o.rateRatio, "rate-ratio", 1.5, "fail unless the rate is so many times higher with the offload; 0: print only")
	flag.Float64Var(&o.cpuRatio, "cpu-ratio", 50, "fail unless the server uses so many times less processor time with the offload; 0: print only")
	flag.BoolVar(&o.probe, "probe", false, "only check whether this kernel can run the measurement")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, &o); err != nil {
		fmt.Fprintln(os.Stderr, "measure:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o *options) error {
	if o.probe {
		s, err := newSetup(o)
		if err != nil {
			return err
		}
		return s.close()
	}
	var ratios ratios
	if o.rounds > 0 {
		relayed, offloaded, err := alternate(ctx, o)
		if err != nil {
			return fmt.Errorf("compare the server without and with the offload: %w", err)
		}
		if ratios, err = table(relayed, offloaded); err != nil {
			return err
		}
	}
	tool.Progress("failover with syncd")
	pair, err := failover(ctx, o, true)
	if err != nil {
		return fmt.Errorf("failover with syncd: %w", err)
	}
	tool.Progress("failover without syncd")
	control, err := failover(ctx, o, false)
	if err != nil {
		return fmt.Errorf("failover without syncd: %w", err)
	}
	tool.Progress("end of entries on a standby")
	if err := deadlines(ctx, o); err != nil {
		return fmt.Errorf("end of entries on the standby: %w", err)
	}
	fmt.Printf("turn: kernel=%s channels=%d survived=%d refreshed=%d relayed=%d restarted=%d exact_counters=%d control_survived=%d "+
		"takeover_ms=%d checksums=%d wrong_checksums=%d delay_ratio=%.1f loaded_delay_ratio=%.1f rate_ratio=%.1f cpu_ratio=%.0f\n",
		tool.KernelVersion(), pair.channels, pair.survived, pair.refreshed, pair.relayed, pair.restarted, pair.exact, control.survived,
		pair.took.Milliseconds(), pair.checked, pair.wrong, ratios.delay, ratios.loaded, ratios.rate, ratios.cpu)
	return errors.Join(pair.check(), control.checkControl(), ratios.check(o))
}

// check returns an error unless everything has survived.
func (r *outcome) check() error {
	var errs []error
	for what, got := range map[string]int{
		"survived": r.survived, "refreshed": r.refreshed, "relayed by the second server": r.relayed,
		"kept by a restart": r.restarted, "with exact counters": r.exact,
	} {
		if got != r.channels {
			errs = append(errs, fmt.Errorf("channels %s: got %d, want %d", what, got, r.channels))
		}
	}
	if want := (r.channels + peersOfClient - 1) / peersOfClient; r.permitted != want {
		errs = append(errs, fmt.Errorf("clients that received by a permission: got %d, want %d", r.permitted, want))
	}
	if r.checked == 0 || r.wrong > 0 || r.moved > 0 || r.corrupt > 0 {
		errs = append(errs, fmt.Errorf("got %d wrong checksums of %d, %d datagrams from another relay address, %d corrupt datagrams; want none wrong",
			r.wrong, r.checked, r.moved, r.corrupt))
	}
	return errors.Join(errs...)
}

// checkControl returns an error if a channel has survived without syncd.
func (r *outcome) checkControl() error {
	if r.survived != 0 {
		return fmt.Errorf("channels that survived without syncd: got %d, want 0", r.survived)
	}
	return nil
}

// ratios compare the server without and with the offload.
type ratios struct{ delay, loaded, rate, cpu float64 }

func (r ratios) check(o *options) (err error) {
	for _, c := range []struct {
		name      string
		got, want float64
	}{{"delay", r.delay, o.delayRatio}, {"rate", r.rate, o.rateRatio}, {"processor time", r.cpu, o.cpuRatio}} {
		if c.got < c.want && o.rounds > 0 {
			err = errors.Join(err, fmt.Errorf("ratio of %s: got %.2f, want at least %.2f", c.name, c.got, c.want))
		}
	}
	return err
}

// table prints the medians of all rounds.
func table(relayed, offloaded []measurement) (r ratios, err error) {
	delay := func(m measurement) float64 { return float64(m.delay.Nanoseconds()) / 1e6 }
	loaded := func(m measurement) float64 { return float64(m.loaded.Nanoseconds()) / 1e6 }
	rate := func(m measurement) float64 { return m.rate }
	cpu := func(m measurement) float64 { return m.cpu.Seconds() }
	w := tabwriter.NewWriter(os.Stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "MEDIANS\tSERVER\tOFFLOAD\tRATIO")
	row := func(name string, value func(measurement) float64, digits int, inverse bool) float64 {
		a, b := median(relayed, value), median(offloaded, value)
		ratio := a / max(b, 1e-9)
		if inverse {
			ratio = b / max(a, 1e-9)
		}
		fmt.Fprintf(w, "%s\t%.*f\t%.*f\t%.1f\n", name, digits, a, digits, b, ratio)
		return ratio
	}
	r = ratios{
		delay:  row("round trip, ms", delay, 3, false),
		loaded: row("round trip under load, ms", loaded, 3, false),
		rate:   row("packets a second", rate, 0, true),
		cpu:    row("server's CPU for 1M packets, s", cpu, 3, false),
	}
	return r, w.Flush()
}

func median(all []measurement, value func(measurement) float64) float64 {
	sorted := slices.SortedFunc(func(yield func(float64) bool) {
		for _, m := range all {
			if !yield(value(m)) {
				return
			}
		}
	}, cmp.Compare[float64])
	return sorted[len(sorted)/2]
}
