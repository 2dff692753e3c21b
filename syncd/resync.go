package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
)

// progressDelay is the time after which a running command prints its progress.
const progressDelay = 2 * time.Second

func newResync() *cobra.Command {
	var c connection
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "resync MAP",
		Short: "Request a full resync of a map from all live peers",
		Long: `Request a full sync of a map from every live peer, delete records that peers no longer have, and
compare digests. The command returns when this node holds the records and the digests agree.
Replication continues meanwhile. To resync a peer, run the command on that peer.
Exit code 0: the digests agree. 1: failed, or not within --timeout. 2: wrong use, such as no such map.`,
		Example: `  syncd resync ct_map --timeout 1m`,
		Args:    exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := notNegative(timeout); err != nil {
				return err
			}
			return runResync(cmd, c.client(), args[0], timeout)
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "give up after this time (0: never)")
	c.bind(cmd)
	c.completeMap(cmd)
	return cmd
}

// runResync resyncs a map within the timeout, if above 0, and prints the progress on standard error.
func runResync(cmd *cobra.Command, client *daemon.Client, name string, timeout time.Duration) error {
	ctx, cancel := context.WithCancel(cmd.Context())
	if timeout > 0 {
		ctx, cancel = context.WithTimeout(cmd.Context(), timeout)
	}
	defer cancel()
	began := time.Now()
	return client.Resync(ctx, name, func(s *daemon.Resync) {
		switch {
		case s.Over && len(s.Peers) == 0:
			fmt.Fprintf(cmd.OutOrStdout(), "%s: nothing to resync, no peer is live\n", name)
		case s.Over:
			fmt.Fprintf(cmd.OutOrStdout(), "%s: in sync with %s after %s\n", name, strings.Join(s.Peers, ", "), time.Since(began).Round(time.Millisecond))
		case time.Since(began) > progressDelay:
			fmt.Fprintf(cmd.ErrOrStderr(), "%d of %d entries, waiting for %s\n", s.Done, s.Total, strings.Join(s.Waiting, ", "))
		}
	})
}
