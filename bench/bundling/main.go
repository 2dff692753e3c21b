// Command bundling measures the tracer of docs/examples/bundling: the processor time that three methods add to short and
// persistent TCP connections, and the sums of two nodes at an observer while one node restarts. The nodes are network
// namespaces of one kernel. All sums must be exact.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mapsync/internal/tool"
)

// options are the command line.
type options struct {
	rates, sources []int
	sourcesRate    int
	window         time.Duration
	scanInterval   time.Duration
	interval       time.Duration
	restartFor     time.Duration
	rounds         int
	ratio          float64
	programTime    time.Duration
	attach, hooks  string
	syncd, example string
}

func main() {
	if asked, err := runRole(); asked {
		exit(err)
	}
	o := options{rates: []int{5_000, 15_000, 35_000}, sources: []int{200, 500, 1_000}}
	flag.Func("rates", "connections or round trips a second, a comma-separated `list`", tool.Numbers(&o.rates))
	flag.Func("sources", "numbers of client addresses, a comma-separated `list`: the first one for all rates", tool.Numbers(&o.sources))
	flag.IntVar(&o.sourcesRate, "sources-rate", 10_000, "connections a second with each number of client addresses")
	flag.DurationVar(&o.window, "for", 5*time.Second, "length of each load")
	flag.DurationVar(&o.scanInterval, "scan-interval", 5*time.Second, "`time` between two scans of syncd, which send changes of sums")
	flag.DurationVar(&o.interval, "interval", time.Second, "`time` between two drains of the tracer")
	flag.DurationVar(&o.restartFor, "restart-for", 10*time.Second, "length of the load while a node restarts")
	flag.IntVar(&o.rounds, "rounds", 1, "`number` of measurements of each method under each load, alternating; the report has the medians")
	flag.Float64Var(&o.ratio, "ratio", 5, "fail unless streaming takes this many times the processor time of bundling, with short connections; 0: print only")
	flag.DurationVar(&o.programTime, "program-time", 6*time.Microsecond, "fail if the tracer's programs take longer for a round trip; 0: print only")
	flag.StringVar(&o.attach, "attach", "auto", "attach `method` of syncd")
	flag.StringVar(&o.hooks, "hooks", "auto", "`hooks` of the tracer")
	flag.StringVar(&o.syncd, "syncd", "", "`path` of syncd, to print the table of all nodes")
	flag.StringVar(&o.example, "example", "", "`path` of the program of docs/examples/bundling, as the observer; empty: read the table of syncd")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	exit(run(ctx, &o))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bundling:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(ctx context.Context, o *options) (err error) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return fmt.Errorf("enable statistics of BPF programs: %w", err)
	}
	defer stats.Close()
	c, err := newCluster(o)
	defer func() {
		if closeErr := c.close(); err == nil {
			err = closeErr
		}
	}()
	if err != nil {
		return err
	}
	r := report{options: o}
	if err := r.measureAll(ctx, c); err != nil {
		return err
	}
	table, err := c.restart(ctx, o)
	if err != nil {
		return fmt.Errorf("restart a node: %w", err)
	}
	if len(table) > 0 {
		fmt.Printf("syncd watch %s --cluster\n%s\n", mapName, table)
	}
	observed, err := json.Marshal(c.observed)
	if err != nil {
		return err
	}
	fmt.Printf("sums at the observer: %s\n\n", observed)
	r.connections = c.connections
	return r.print(os.Stdout)
}

// measureAll adds a measurement of each kind of load with each method, in each round.
func (r *report) measureAll(ctx context.Context, c *cluster) error {
	for round := range r.options.rounds {
		for _, k := range kinds(r.options) {
			for _, method := range order(round) {
				m, err := c.measure(ctx, k, method)
				if err != nil {
					return err
				}
				tool.Progress("round %d of %d: %s, %.0f/s, %d clients, %s: %.1f %%", round+1, r.options.rounds, k.name, k.Rate, k.Sources, method, m.percent(m.total()))
				r.list = append(r.list, m)
			}
		}
	}
	return nil
}
