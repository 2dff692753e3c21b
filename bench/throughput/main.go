// Throughput measures the replication of a delta from one kernel map to another, each of its steps,
// and other ways to send deltas. It measures all of them in one run on one machine.
//
// It needs no hooks, only the permission to use bpf(2). A BPF program of type syscall writes the
// first map and reports each change with the hooks' own code.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"mapsync/internal/tool"
)

type options struct {
	entries     int
	rounds      int
	alternative time.Duration
	latency     time.Duration
	idle        time.Duration
	jitter      time.Duration
	buffers     time.Duration
	fills       int
	quick       bool
	tls         bool
	only        string
	json        string
	profile     string
}

func main() {
	runRole()
	var o options
	flag.IntVar(&o.entries, "entries", 1_000_000, "entries of the maps; a million take 2 GB of memory")
	flag.IntVar(&o.rounds, "rounds", 5, "repetitions; medians are printed")
	flag.DurationVar(&o.alternative, "alternative", time.Second, "time for each alternative in each round")
	flag.StringVar(&o.json, "json", "", "file to write the figures to, as JSON")
	flag.StringVar(&o.profile, "profile", "", "write CPU profiles of the last two end-to-end passes to `prefix`.new and prefix.updates")
	flag.DurationVar(&o.latency, "latency", 20*time.Second, "time for each kind of changes whose latency is measured")
	flag.DurationVar(&o.idle, "idle", 65*time.Second, "time for which idle nodes are measured; each audits its table once a minute")
	flag.DurationVar(&o.jitter, "jitter", 4*time.Second, "time for each phase of pings, in each of up to three rounds")
	flag.DurationVar(&o.buffers, "buffers", 500*time.Millisecond, "time for each size of a buffer and number of threads, at least")
	flag.IntVar(&o.fills, "fills", 4, "number of times that the events of a run fill the buffer, at least; fewer than 4 are too few for the report")
	flag.BoolVar(&o.tls, "tls", false, "use mutual TLS between the nodes of the part end-to-end")
	flag.BoolVar(&o.quick, "quick", false, "measure few sizes of buffers, and the cost of an event at a low rate")
	flag.StringVar(&o.only, "only", "", "measure these `parts` and nothing else; the last two only on request: "+strings.Join(partNames(), ","))
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	if err := run(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "throughput:", err)
		os.Exit(1)
	}
}

// runRole runs the role for which another process started this one. In this case it does not
// return.
func runRole() {
	for _, role := range []func() (asked bool, err error){runPeer, runSyncd, runPing} {
		asked, err := role()
		if err != nil {
			fmt.Fprintln(os.Stderr, "throughput:", err)
			os.Exit(1)
		}
		if asked {
			os.Exit(0)
		}
	}
}

// run returns an error only for incorrect results: an entry that differs or a lost event. A slow
// result is not an error.
func run(ctx context.Context, o options) error {
	if o.entries < batchEntries || o.rounds < 1 || flag.NArg() > 0 {
		return fmt.Errorf("measure %d entries %d times: at least %d and 1, and no further arguments", o.entries, o.rounds, batchEntries)
	}
	if err := rlimit.RemoveMemlock(); err != nil { // before kernel 5.11
		return fmt.Errorf("remove the limit of locked memory: %w", err)
	}
	runtime.GOMAXPROCS(min(2, runtime.NumCPU()))
	r, err := newReport(o.entries, o.rounds, o.tls)
	if err != nil {
		return err
	}
	if err := r.measure(ctx, o); err != nil {
		return err
	}
	r.checkTargets()
	if err := r.write(os.Stdout); err != nil {
		return fmt.Errorf("print report: %w", err)
	}
	if o.json == "" {
		return nil
	}
	return r.save(o.json)
}

// steps measures each step of the replication separately.
func (r *Report) steps(ctx context.Context, o options) error {
	for _, part := range []struct {
		name string
		run  func() ([]Step, error)
	}{
		{"kernel events", func() ([]Step, error) { return eventSteps(o.entries, o.rounds) }},
		{"capture to table", func() ([]Step, error) { return drainSteps(o.entries, o.rounds) }},
		{"the codec", func() ([]Step, error) { return codecSteps(o.entries, o.rounds) }},
		{"reading and writing maps", func() ([]Step, error) { return mapSteps(ctx, makeEntries(o.entries), o.rounds) }},
	} {
		tool.Progress("steps: %s", part.name)
		steps, err := part.run()
		if err != nil {
			return fmt.Errorf("measure %s: %w", part.name, err)
		}
		r.Steps = append(r.Steps, steps...)
	}
	return nil
}

// endToEnd measures the compared operations in turn.
func (r *Report) endToEnd(ctx context.Context, o options) error {
	e := makeEntries(o.entries)
	var ends []EndToEnd
	var fresh, again []Sample
	others := make([][]Sample, len(alternatives))
	for round := range o.rounds {
		tool.Progress("round %d of %d: end to end", round+1, o.rounds)
		profile := ""
		if round == o.rounds-1 {
			profile = o.profile
		}
		end, err := endToEnd(ctx, o.entries, o.tls, profile)
		if err != nil {
			return err
		}
		ends = append(ends, end)
		tool.Progress("  %.0f and %.0f deltas/s", end.New.DeltasPerSecond, end.Updated.DeltasPerSecond)
		a, b, err := ceiling(e)
		if err != nil {
			return err
		}
		fresh, again = append(fresh, a), append(again, b)
		tool.Progress("  %.0f and %.0f are the ceiling", 1e9/a.Nanoseconds, 1e9/b.Nanoseconds)
		for i := range alternatives {
			s, err := alternatives[i].measure(ctx, e, o.alternative)
			if err != nil {
				return err
			}
			others[i] = append(others[i], s)
			tool.Progress("  %.0f by %s", 1e9/s.Nanoseconds, alternatives[i].name)
		}
	}
	end := medianEnd(ends)
	r.EndToEnd = &end
	r.CeilingNew, r.CeilingUpdate = rate("bpf(2) batches, new", median(fresh)), rate("bpf(2) batches, updates", median(again))
	for i := range alternatives {
		r.Alternatives = append(r.Alternatives, rate(alternatives[i].name, median(others[i])))
	}
	return nil
}

// medianEnd returns the median of each pass, and the memory of the last round.
func medianEnd(ends []EndToEnd) EndToEnd {
	pick := func(of func(*EndToEnd) Pass) Pass {
		passes := make([]Pass, len(ends))
		for i := range ends {
			passes[i] = of(&ends[i])
		}
		slices.SortFunc(passes, func(a, b Pass) int { return int(b.DeltasPerSecond - a.DeltasPerSecond) })
		return passes[len(passes)/2]
	}
	result := ends[len(ends)-1]
	result.New = pick(func(e *EndToEnd) Pass { return e.New })
	result.Updated = pick(func(e *EndToEnd) Pass { return e.Updated })
	return result
}
