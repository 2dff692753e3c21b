// Bundling traces the connections of a node, bundled by flow in the kernel, and prints the flows of all nodes. syncd
// follows the map of flows with the setting drain-sums, and sends the sums to all nodes.
//
//	bundling trace -pin /sys/fs/bpf/tracer            trace, and keep tracing after the end of the program
//	bundling trace -pin /sys/fs/bpf/tracer -remove    end the trace
//	bundling feed -addr 10.0.0.1:7947 -name observer -cert observer.crt -key observer.key -ca ca.crt
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"mapsync/docs/examples/bundling/feed"
	"mapsync/docs/examples/bundling/trace"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	commands := map[string]func(context.Context, io.Writer, []string) error{"trace": trace.Run, "feed": feed.Run}
	err := errors.New("no command is given: use trace or feed")
	if len(os.Args) > 1 {
		err = fmt.Errorf("%q is not a command: use trace or feed", os.Args[1])
		if run := commands[os.Args[1]]; run != nil {
			err = run(ctx, os.Stdout, os.Args[2:])
		}
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "bundling: %q\n", err) // the node chooses the text of some errors
		os.Exit(1)
	}
}
