package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"mapsync/syncd/config"
	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
)

// progressDelay is the time after which a running command prints its progress.
const progressDelay = 2 * time.Second

func newResync() *cobra.Command {
	var socket string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "resync MAP",
		Short: "Request a full resync of a map from all live peers",
		Long: `Request a full sync of a map from every live peer, delete records that peers no longer have, and
compare digests. The command returns when this node holds the records and the digests agree.
Replication continues meanwhile. To resync a peer, run the command on that peer.`,
		Example: `  syncd resync ct_map --timeout 1m`,
		Args:    exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := notNegative(timeout); err != nil {
				return err
			}
			return runResync(cmd, daemon.NewClient(socket), args[0], timeout)
		},
	}
	cmd.Flags().StringVar(&socket, "control-socket", config.DefaultControlSocket, "unix socket of the daemon")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "give up after this time (0: never)")
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
		if time.Since(began) > progressDelay {
			fmt.Fprintf(cmd.ErrOrStderr(), "%d of %d entries, waiting for %s\n", s.Done, s.Total, strings.Join(s.Waiting, ", "))
		}
	})
}
