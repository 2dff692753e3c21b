package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"mapsync/syncd/config"
	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
)

func newDrain() *cobra.Command {
	var socket string
	var timeout time.Duration
	var undo bool
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Hand over before maintenance",
		Long: `Take this node out of service. It is not ready from now on (/readyz, the gRPC health service,
wait-ready), so that whoever looks at that moves its traffic away. Then wait until traffic has
ceased, which is when this node's maps have not changed for a second, and until every live peer's
kernel maps hold all that this node knew. The daemon goes on replicating; the node stays
drained until --undo or a restart of the daemon, also when the time is over.
Exit code 0: handed over. 1: not within the time.`,
		Example: `  syncd drain --timeout 30s && systemctl stop lb syncd
  syncd drain --undo`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			client := daemon.NewClient(socket)
			if undo {
				_, err := client.Undrain(cmd.Context())
				return err
			}
			if _, err := client.Drain(cmd.Context()); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "not ready from now on")
			err := waitFor(cmd, timeout, "handed over", func(ctx context.Context) ([]string, error) {
				h, err := client.Handover(ctx)
				switch {
				case err != nil:
					return nil, err
				case !h.Drained:
					return nil, errUndrained
				case h.Done:
					return nil, nil
				}
				return h.Waiting, nil
			})
			if errors.Is(err, errLate) {
				return fmt.Errorf("%w (the node stays out of service: syncd drain --undo returns)", err)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&socket, "control-socket", config.DefaultControlSocket, "unix socket of the daemon")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait")
	cmd.Flags().BoolVar(&undo, "undo", false, "put the node into service again")
	return cmd
}

// errUndrained says that somebody else was faster.
var errUndrained = errors.New("the node was put into service again meanwhile, or its daemon restarted")
