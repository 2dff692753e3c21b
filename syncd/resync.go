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

// quietFor is how long a command may take before it says what it is doing.
const quietFor = 2 * time.Second

func newResync() *cobra.Command {
	var socket string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "resync MAP",
		Short: "Have all peers tell a map from the beginning, and compare it",
		Long: `Have every live peer tell all it knows of a map again, delete what they no longer have,
and compare. Returns once this node holds what they told and the digests agree. Replication
goes on meanwhile. What this node tells its peers they compare at the same time; to have a peer
told everything again, run the command there.`,
		Example: `  syncd resync ct_map --timeout 1m`,
		Args:    exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := notNegative(timeout); err != nil {
				return err
			}
			ctx, cancel := context.WithCancel(cmd.Context())
			if timeout > 0 {
				ctx, cancel = context.WithTimeout(cmd.Context(), timeout)
			}
			defer cancel()
			began := time.Now()
			return daemon.NewClient(socket).Resync(ctx, args[0], func(s *daemon.Resync) {
				if time.Since(began) > quietFor {
					fmt.Fprintf(cmd.ErrOrStderr(), "%d of %d entries, waiting for %s\n", s.Done, s.Total, strings.Join(s.Waiting, ", "))
				}
			})
		},
	}
	cmd.Flags().StringVar(&socket, "control-socket", config.DefaultControlSocket, "unix socket of the daemon")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "give up after this time (0: never)")
	return cmd
}
