// Command drill performs the failover drill and prints a one-line summary at the end. Its exit
// status is 0 only if the control run lost at least nine sessions in ten and the run with syncd
// lost no session.
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
	"strings"
	"syscall"

	"mapsync/bench/drill"
	"mapsync/bench/lb"
)

func main() {
	if drill.RunRole() {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	err := run(ctx, os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(2)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "drill failed:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	opts, file, err := parse(args)
	if err != nil {
		return err
	}
	opts.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	result, err := drill.Run(ctx, *opts)
	if err != nil {
		return err
	}
	if file != "" {
		err = write(file, result)
	}
	// The summary line is the last output, so that the reason of a failure precedes it.
	if err := errors.Join(err, result.Err()); err != nil {
		fmt.Fprintln(os.Stderr, "drill failed:", err)
		fmt.Println(result.Line())
		os.Exit(1)
	}
	fmt.Println(result.Line())
	return nil
}

func parse(args []string) (*drill.Options, string, error) {
	o := new(drill.Options)
	fs := flag.NewFlagSet("drill", flag.ContinueOnError)
	fs.IntVar(&o.Sessions, "sessions", 1000, "TCP sessions to open")
	fs.StringVar(&o.Syncd, "syncd", "off", "`path` of the syncd program, or off for the control run alone")
	fs.StringVar(&o.StandbySyncd, "standby-syncd", "", "`path` of the standby's syncd program, such as that of the previous release (default: the value of --syncd)")
	fs.StringVar(&o.Attach, "attach", "kprobe", "how syncd attaches: kprobe, fexit or auto")
	fs.StringVar(&o.Buffer, "buffer", "ring", "which buffer syncd uses: ring or perf")
	layouts := fs.String("layouts", "v1,v1", "`layouts` of the active and the standby load balancer's map, each v1 or next")
	fs.StringVar((*string)(&o.Load), "load", string(drill.LoadBuiltin), "what drives the sessions: builtin, tcpkali or netperf")
	fs.StringVar((*string)(&o.XDP), "xdp", "auto", "where the load balancers' XDP runs: auto, native or generic")
	fs.BoolVar(&o.SkipControl, "skip-control", false, "skip the control run, for development; the drill then fails")
	fs.IntVar(&o.Fresh, "fresh", 0, "exchanges that a session completes after the failover to count as surviving (default 2)")
	fs.DurationVar(&o.StallTimeout, "stall-timeout", 0, "an exchange that takes longer, plus 50 mean latencies, is stalled (default 20s)")
	fs.DurationVar(&o.Flow, "flow", 0, "how long data flows on all sessions before the cut, at least (default 3s)")
	fs.DurationVar(&o.Hold, "hold", 0, "how long surviving sessions continue after every session is decided (default 5s)")
	fs.DurationVar(&o.OpenTimeout, "open-timeout", 0, "limit for opening all sessions (default 10m)")
	fs.DurationVar(&o.SyncTimeout, "sync-timeout", 0, "limit for the peer to catch up before the cut (default 2m)")
	fs.DurationVar(&o.CollectEvery, "collect-every", 0, "pause of the load balancers' idle collectors (default 30s)")
	file := fs.String("json", "", "`file` to write the result to")
	if err := fs.Parse(args); err != nil {
		return nil, "", err
	}
	if fs.NArg() > 0 {
		return nil, "", fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	first, second, _ := strings.Cut(*layouts, ",")
	o.Layouts = [2]lb.Layout{lb.Layout(first), lb.Layout(second)}
	if err := errors.Join(o.Layouts[0].Validate(), o.Layouts[1].Validate()); err != nil {
		return nil, "", fmt.Errorf("layouts %q: write ACTIVE,STANDBY: %w", *layouts, err)
	}
	if o.Syncd == "off" {
		o.Syncd = ""
	}
	return o, *file, nil
}

func write(file string, result *drill.Result) error {
	text, err := json.MarshalIndent(result, "", "  ")
	if err != nil {
		return fmt.Errorf("encode result: %w", err)
	}
	if err := os.WriteFile(file, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	return nil
}
