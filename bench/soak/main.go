// Soak runs two daemons under short sessions for a long time. At the end it checks that memory is
// bounded and flat, that no entry is divergent, and that the numbers of goroutines and descriptors
// have not grown.
//
// It needs no hooks, only the permission to use bpf(2). A BPF program of type syscall creates and
// deletes the sessions and reports each change with the hooks' own code.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

type options struct {
	duration time.Duration
	warmUp   time.Duration // memory has to stay flat after it
	rate     int           // sessions per second, each created and deleted
	lifetime time.Duration // of a session
	every    time.Duration // interval between two samples
}

func main() {
	if asked, err := runSyncd(); asked {
		exit(err)
	}
	var o options
	flag.DurationVar(&o.duration, "duration", 30*time.Minute, "time under load")
	flag.DurationVar(&o.warmUp, "warm-up", 2*time.Minute, "time after which memory must stay flat; at most a third of the duration")
	flag.IntVar(&o.rate, "rate", 50_000, "sessions a second")
	flag.DurationVar(&o.lifetime, "lifetime", time.Second, "time between a session's creation and its deletion")
	flag.DurationVar(&o.every, "every", 10*time.Second, "time between two samples")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	r, err := soak(ctx, o)
	if r != nil {
		r.print(os.Stdout)
	}
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
	os.Exit(0)
}
