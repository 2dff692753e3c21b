// Command counters measures the example docs/examples/counters: whether the exported sums are exact, the throughput with
// and without the accountant and syncd, and the start and the memory of syncd. It creates its own network namespaces and
// BPF filesystem.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"mapsync/docs/examples/counters"
	"mapsync/internal/tool"
)

// options are the command line.
type options struct {
	syncd, accountant string // paths
	ways              []counters.Attach
	attach            string // setting of syncd
	rounds            int
	window            time.Duration
	size              int
	updates           uint
	starts            int
	rest              time.Duration
	parts             []string
	ratio, control    float64
	cost              float64
	startLimit        time.Duration
	memoryLimit       float64 // MB
}

func main() {
	o := options{ways: []counters.Attach{counters.AttachFexit, counters.AttachKprobe}, parts: []string{"sums", "throughput", "start"}}
	flag.Func("parts", "what to do, a comma-separated `list` (default sums,throughput,start)", func(text string) error {
		o.parts = strings.Split(text, ",")
		return nil
	})
	flag.StringVar(&o.syncd, "syncd", "bin/syncd", "`path` of syncd")
	flag.StringVar(&o.accountant, "accountant", "bin/accountant", "`path` of the accountant")
	flag.Func("attach", "ways in which the accountant is attached, a comma-separated `list` (default fexit,kprobe)", func(text string) error {
		o.ways = nil
		for way := range strings.SplitSeq(text, ",") {
			o.ways = append(o.ways, counters.Attach(way))
		}
		return nil
	})
	flag.StringVar(&o.attach, "syncd-attach", "auto", "setting attach of syncd")
	flag.IntVar(&o.rounds, "rounds", 7, "`number` of measurements of each variant")
	flag.DurationVar(&o.window, "for", 2*time.Second, "length of each measurement")
	flag.IntVar(&o.size, "write", 128<<10, "size of each write in `bytes`")
	flag.UintVar(&o.updates, "updates", 8, "writes of the layer 2 program for each packet")
	flag.IntVar(&o.starts, "starts", 50, "`number` of starts of syncd")
	flag.DurationVar(&o.rest, "rest", 5*time.Second, "time from the start of syncd to the measurement of its memory")
	flag.Float64Var(&o.ratio, "ratio", 0.99, "fail if the throughput with export is below this share of that without, by more than the noise; 0: print only")
	flag.Float64Var(&o.cost, "cost", 0.1, "fail if the program of the accountant runs for more than this share of the time of the layer 2 program; 0: print only")
	flag.Float64Var(&o.control, "control", 0.95, "fail if that with the layer 2 program is above this share, by more than the noise; 0: print only")
	flag.DurationVar(&o.startLimit, "start", 500*time.Millisecond, "fail if a start takes longer; 0: print only")
	flag.Float64Var(&o.memoryLimit, "memory", 40, "fail if syncd has more resident memory, in `MB`; 0: print only")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, &o); err != nil {
		fmt.Fprintln(os.Stderr, "counters:", err)
		os.Exit(1)
	}
}

// bench is the environment of all measurements.
type bench struct {
	*options
	dir  string // temporary
	pins string // a BPF filesystem
	net  *network
}

func run(ctx context.Context, o *options) (err error) {
	b, err := newBench(o)
	defer func() { err = errors.Join(err, b.close()) }()
	if err != nil {
		return err
	}
	var failed []error
	line := fmt.Sprintf("counters: kernel=%s", tool.KernelVersion())
	parts := map[string]func(context.Context) (figures string, unmet, err error){"sums": b.checkSums, "throughput": b.measureThroughput, "start": b.measureStart}
	for _, name := range o.parts {
		part, ok := parts[name]
		if !ok {
			return fmt.Errorf("part %q is unknown: choose sums, throughput or start", name)
		}
		figures, unmet, err := part(ctx)
		if err != nil {
			return err
		}
		line += " " + figures
		failed = append(failed, unmet)
	}
	fmt.Println(line)
	return errors.Join(failed...)
}

func newBench(o *options) (b *bench, err error) {
	b = &bench{options: o}
	if b.dir, err = os.MkdirTemp("", "counters"); err != nil {
		return b, err
	}
	pins, err := os.MkdirTemp("", "counters-bpf")
	if err != nil {
		return b, err
	}
	if err := unix.Mount("bpf", pins, "bpf", 0, ""); err != nil {
		return b, errors.Join(fmt.Errorf("mount a BPF filesystem: %w", err), os.Remove(pins))
	}
	b.pins = pins
	b.net, err = newNetwork(allDestinations)
	return b, err
}

func (b *bench) close() error {
	var errs []error
	if b.net != nil {
		errs = append(errs, b.net.close())
	}
	if b.pins != "" {
		errs = append(errs, unix.Unmount(b.pins, 0), os.Remove(b.pins))
	}
	return errors.Join(append(errs, os.RemoveAll(b.dir))...)
}

// checkSums checks the sums of each way in which the accountant is attached.
func (b *bench) checkSums(ctx context.Context) (figures string, unmet, err error) {
	for _, way := range b.ways {
		tool.Progress("checking the sums, accountant attached by %s", way)
		if err := b.checkSumsOf(ctx, way); err != nil {
			return "sums=differ", fmt.Errorf("sums with %s: %w", way, err), nil
		}
	}
	return "sums=exact", nil, nil
}

func (b *bench) checkSumsOf(ctx context.Context, way counters.Attach) (err error) {
	a, err := b.startAccountant(ctx, way)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.stop()) }()
	services, err := ebpf.LoadPinnedMap(a.pin, nil)
	if err != nil {
		return fmt.Errorf("open the map: %w", err)
	}
	defer func() { err = errors.Join(err, services.Close(), os.Remove(a.pin)) }()
	dir, err := os.MkdirTemp(b.dir, "sums")
	if err != nil {
		return err
	}
	n, err := newNode(dir, 1, a.pin, b.attach, startSyncd(b.syncd))
	if err != nil {
		return err
	}
	return (&sumsCheck{net: b.net, node: n, services: services}).run(ctx)
}
