// Command syncd replicates the BPF maps of a load balancer to its peers.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "devel"

// Exit codes. Anything but 0 is a failure; 2 is a command line or settings that
// cannot be used, so that scripts can tell it from work that failed.
const (
	exitFailed = 1
	exitUsage  = 2
)

// usageError marks an error of the command line or the settings.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// errReported ends a command unsuccessfully whose output has said why.
var errReported = errors.New("reported already")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	err := newRoot().ExecuteContext(ctx)
	switch {
	case err == nil:
		return
	case !errors.Is(err, errReported):
		fmt.Fprintln(os.Stderr, "syncd:", err)
	}
	stop()
	var usage usageError
	if errors.As(err, &usage) {
		os.Exit(exitUsage)
	}
	os.Exit(exitFailed)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "syncd",
		Short: "Replicate a load balancer's BPF maps to its peers",
		Long: `syncd runs beside an eBPF load balancer, firewall or NAT. It watches the hash maps
that hold connection state, streams every change to its peers, and replays theirs,
so that another node can carry on each connection of one that dies.

Exit codes: 0 done, 1 failed, 2 wrong use or settings.`,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(newRun(), newCheck(), newMaps(), newStatus(), newWaitReady(), newDrain(), newDump(), newWatch(), newDiff(), newResync(), newSchema(), newVersion())
	return root
}

// exactArgs is cobra.ExactArgs with an error that counts as wrong use.
func exactArgs(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := cobra.ExactArgs(n)(cmd, args); err != nil {
			return usageError{err}
		}
		return nil
	}
}
