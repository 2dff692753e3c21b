// Package trace counts the connections and messages of a network namespace, by flow: a client address, a service and a
// direction. The kernel bundles all connections of a flow in one entry of a hash map, which user space drains every second.
package trace

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// The methods. The last two are for comparison.
const (
	Bundle    = "bundle"    // the kernel has an entry for each flow
	Aggregate = "aggregate" // the kernel has an entry for each connection, and user space sums them by flow
	Stream    = "stream"    // the same, and an event at the end of each connection
)

// options are the command line.
type options struct {
	method, hooks, pin string
	interval           time.Duration
	port               uint
	check, remove      bool
}

// Run traces until ctx ends, and prints what it has received. args is the command line without the program.
func Run(ctx context.Context, out io.Writer, args []string) error {
	var o options
	flags := flag.NewFlagSet("trace", flag.ContinueOnError)
	flags.StringVar(&o.method, "method", Bundle, "`method`: bundle, aggregate or stream")
	flags.StringVar(&o.hooks, "hooks", auto, "`hooks` for messages: auto, kprobe or tracepoint")
	flags.StringVar(&o.pin, "pin", "", "`directory` in a BPF filesystem for the flows and the programs; empty: they end with this process")
	flags.DurationVar(&o.interval, "interval", time.Second, "`time` between two drains")
	flags.UintVar(&o.port, "port", 0, "report at the end only the service on this `port`; 0: all")
	flags.BoolVar(&o.check, "check", false, "print the hooks that the kernel supports, and exit")
	flags.BoolVar(&o.remove, "remove", false, "remove the pins, which ends the trace, and exit")
	if err := flags.Parse(args); err != nil {
		return err
	}
	switch {
	case !slices.Contains([]string{Bundle, Aggregate, Stream}, o.method):
		return fmt.Errorf("-method %s: choose bundle, aggregate or stream", o.method)
	case o.method != Bundle && o.pin != "":
		return errors.New("-pin is for -method bundle only")
	case o.interval <= 0:
		return fmt.Errorf("-interval %s: choose a time above 0", o.interval)
	case o.remove:
		return removePins(o.pin)
	}
	return o.run(ctx, out)
}

func (o *options) run(ctx context.Context, out io.Writer) error {
	t, err := open(o)
	if err != nil {
		return err
	}
	if o.check {
		_, err := fmt.Fprintln(out, "hooks:", t.hooks)
		return errors.Join(err, t.close())
	}
	_, err = fmt.Fprintf(out, "tracing method=%s hooks=%s resumed=%t\n", o.method, t.hooks, t.resumed)
	if err == nil {
		err = errors.Join(t.follow(ctx, o.interval), t.drain())
	}
	if err == nil {
		err = t.report(out)
	}
	return errors.Join(err, t.close())
}

// follow drains the flows at an interval until ctx ends. With the method stream, it receives events instead.
func (t *tracer) follow(ctx context.Context, interval time.Duration) error {
	if t.method == Stream {
		return t.receive(ctx)
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if err := t.drain(); err != nil {
				return err
			}
		}
	}
}

// Table has the sums of all nodes: a line of the feed.
type Table struct {
	Time   time.Time       `json:"time"`
	Flows  int             `json:"flows"`
	Owners map[string]Sums `json:"owners"` // by node
}

// Sums are those of a node, by direction.
type Sums struct {
	Outgoing Counters `json:"outgoing"` // the node has the clients
	Incoming Counters `json:"incoming"` // the node has the services
}

// Report is what a process has received from the kernel.
type Report struct {
	Sums
	Entries uint64 `json:"entries"` // received, events included
	Events  uint64 `json:"events"`  // of ended connections
	Lost    uint64 `json:"lost"`    // changes that did not go into a map, since the beginning of the trace
	Missed  uint64 `json:"missed"`  // runs of programs that the kernel skipped, since the beginning of the trace
}

func (t *tracer) report(out io.Writer) error {
	r := Report{Sums: Sums{Outgoing: t.totals[outgoing], Incoming: t.totals[incoming]}, Entries: t.entries, Events: t.events}
	if err := t.lost.Lookup(uint32(0), &r.Lost); err != nil {
		return fmt.Errorf("read lost changes: %w", err)
	}
	var err error
	if r.Missed, err = t.missedRuns(); err != nil {
		return fmt.Errorf("read skipped runs: %w", err)
	}
	return json.NewEncoder(out).Encode(r)
}

// missedRuns returns how often the kernel has skipped a program, because the CPU had preempted or interrupted another run
// of it. Kernels before 6.7 do not count kprobes.
func (t *tracer) missedRuns() (runs uint64, err error) {
	for _, l := range t.links {
		n, err := missedRunsOf(l)
		if err != nil {
			return 0, err
		}
		runs += n
	}
	return runs, nil
}

func missedRunsOf(l link.Link) (runs uint64, err error) {
	info, err := l.Info()
	switch {
	case errors.Is(err, ebpf.ErrNotSupported): // a kprobe before 5.15
		return 0, nil
	case err != nil:
		return 0, err
	}
	p, err := ebpf.NewProgramFromID(info.Program)
	if err != nil {
		return 0, err
	}
	defer p.Close() //nolint:errcheck // only read
	stats, err := p.Stats()
	if err != nil {
		return 0, err
	}
	return stats.RecursionMisses, nil
}
