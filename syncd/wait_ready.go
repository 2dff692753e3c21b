package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
)

// The interval of requests by a command that waits, and the interval of its progress lines.
const (
	askInterval      = 100 * time.Millisecond
	progressInterval = 2 * time.Second
)

func newWaitReady() *cobra.Command {
	var c connection
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "wait-ready",
		Short: "Wait until this node is ready for traffic",
		Long: `Wait until the running daemon is ready: every live peer has sent all its records, the digests
agree, and this node's kernel maps hold the records. For BGP, VRRP and Kubernetes, which decide
whether traffic may come. The command prints every two seconds why the node is not ready. It also
waits for a daemon that does not answer yet.
Exit code 0: ready. 1: not ready within --timeout. 2: wrong use.`,
		Example: `  # Wait after a restart of syncd, before the restart on the next node
  syncd wait-ready --timeout 60s

  # Check once, for keepalived's track_script, or to announce a route: docs/bgp.md
  syncd wait-ready --timeout 0s`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := notNegative(timeout); err != nil {
				return err
			}
			return waitReady(cmd, c.client(), timeout)
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "maximum time to wait")
	c.bind(cmd)
	return cmd
}

// waitReady waits until the daemon is ready. A daemon that does not answer is not ready.
func waitReady(cmd *cobra.Command, client *daemon.Client, timeout time.Duration) error {
	return waitFor(cmd, timeout, "ready", func(ctx context.Context) ([]string, error) {
		r, err := client.Ready(ctx)
		if err != nil {
			return nil, temporary{err}
		}
		if !r.Ready {
			return r.Missing, nil
		}
		for _, reason := range r.Unproven {
			fmt.Fprintf(cmd.ErrOrStderr(), "ready without proof: %s\n", reason)
		}
		return nil, nil
	})
}

func printMissing(out io.Writer, missing []string) {
	for _, reason := range missing {
		fmt.Fprintf(out, "waiting: %s\n", reason)
	}
}
