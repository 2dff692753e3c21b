// Accountant counts the bytes that this host sends by TCP, by program and destination service, until SIGINT or SIGTERM.
// The counters stay in the pinned map, and the next accountant continues them.
//
//	accountant -network 10.0.0.0/8
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"mapsync/docs/examples/counters"
)

func main() {
	var o counters.Options
	way := flag.String("attach", string(counters.AttachAuto), "`way` to attach the program: auto, fexit, kprobe or tracepoint")
	flag.StringVar(&o.PinDir, "pin-dir", "/sys/fs/bpf/accounting", "`directory` of a BPF filesystem for the map")
	flag.Func("network", "count only destinations in this `network`, such as 10.0.0.0/8 (default: all)", func(text string) (err error) {
		o.Network, err = netip.ParsePrefix(text)
		return err
	})
	flag.Parse()
	o.Attach = counters.Attach(*way)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, &o); err != nil {
		fmt.Fprintln(os.Stderr, "accountant:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o *counters.Options) error {
	a, err := counters.Open(*o)
	if err != nil {
		return err
	}
	fmt.Printf("counting by %s in %s\n", a.Attached(), filepath.Join(o.PinDir, counters.MapName))
	<-ctx.Done()
	bytes, calls, err := a.Missed()
	if err == nil && bytes+calls > 0 {
		fmt.Printf("not counted: %d bytes, because the map was full; %d calls, because too many were in progress\n", bytes, calls)
	}
	return errors.Join(err, a.Close())
}
