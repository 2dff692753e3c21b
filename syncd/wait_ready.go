package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"mapsync/syncd/config"
	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
)

// The interval of requests by a command that waits, and the interval of its progress lines.
const (
	askInterval      = 100 * time.Millisecond
	progressInterval = 2 * time.Second
)

func newWaitReady() *cobra.Command {
	var socket string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "wait-ready",
		Short: "Wait until this node is ready for traffic",
		Long: `Wait until the running daemon is ready: every live peer has sent all its records, the digests
agree, and this node's kernel maps hold the records. For BGP, VRRP and Kubernetes, which decide
whether traffic may come. The command prints every two seconds why the node is not ready. It also
waits for a daemon that does not answer yet.
Exit code 0: ready. 1: not ready within the time.`,
		Example: `  # Announce the route when the node is ready
  syncd wait-ready --timeout 60s && birdc enable protocol lb

  # Check once, for keepalived's track_script
  syncd wait-ready --timeout 0s`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := notNegative(timeout); err != nil {
				return err
			}
			client := daemon.NewClient(socket)
			return waitFor(cmd, timeout, "ready", func(ctx context.Context) ([]string, error) {
				r, err := client.Ready(ctx)
				if err != nil {
					return []string{err.Error()}, nil
				}
				if !r.Ready {
					return r.Missing, nil
				}
				for _, reason := range r.Unproven {
					fmt.Fprintf(cmd.ErrOrStderr(), "ready without proof: %s\n", reason)
				}
				return nil, nil
			})
		},
	}
	cmd.Flags().StringVar(&socket, "control-socket", config.DefaultControlSocket, "unix socket of the daemon")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "maximum time to wait")
	return cmd
}

// errTimeout is wrapped by the errors of waitFor and waitUntil after the timeout.
var errTimeout = errors.New("timeout")

// waitFor is waitUntil, and prints afterwards how long it took.
func waitFor(cmd *cobra.Command, timeout time.Duration, what string, ask func(context.Context) ([]string, error)) error {
	begun := time.Now()
	err := waitUntil(cmd, timeout, what, ask)
	if err == nil {
		fmt.Fprintf(cmd.OutOrStdout(), "%s after %s\n", what, time.Since(begun).Round(time.Millisecond))
	}
	return err
}

// waitUntil calls ask until nothing is missing, and prints what is missing. It calls ask at least
// once. It returns an error of ask at once.
func waitUntil(cmd *cobra.Command, timeout time.Duration, what string, ask func(context.Context) ([]string, error)) error {
	out, begun := cmd.OutOrStdout(), time.Now()
	printed := begun
	for {
		missing, err := askWithin(cmd.Context(), timeout-time.Since(begun), ask)
		if errors.Is(err, context.DeadlineExceeded) && cmd.Context().Err() == nil {
			missing, err = []string{"syncd does not answer"}, nil
		}
		if err != nil {
			return err
		}
		if len(missing) == 0 {
			return nil
		}
		if now := time.Now(); now.Sub(printed) >= progressInterval {
			printed = now
			printMissing(out, missing)
		}
		if time.Since(begun) >= timeout {
			return fmt.Errorf("wait until %s: %w of %s: %s", what, errTimeout, timeout, strings.Join(missing, "; "))
		}
		select {
		case <-cmd.Context().Done():
			return fmt.Errorf("wait until %s: %w", what, cmd.Context().Err())
		case <-time.After(min(askInterval, timeout-time.Since(begun))):
		}
	}
}

// minAnswerTime is the minimum time that a daemon has for one answer.
const minAnswerTime = time.Second

// askWithin calls ask once. The call ends after left, but not before minAnswerTime.
func askWithin(ctx context.Context, left time.Duration, ask func(context.Context) ([]string, error)) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, max(left, minAnswerTime))
	defer cancel()
	return ask(ctx)
}

func printMissing(out io.Writer, missing []string) {
	for _, reason := range missing {
		fmt.Fprintf(out, "waiting: %s\n", reason)
	}
}
