package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"mapsync/syncd/config"
	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
)

func newDrain() *cobra.Command {
	var socket string
	var timeout time.Duration
	var undo, force bool
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Hand over before maintenance",
		Long: `Take this node out of service. It is not ready from now on (/readyz, the gRPC health service,
wait-ready), so that the parts that look at readiness move its traffic away. Then wait until
traffic has ceased, which is when this node's maps have not changed for a second, and until every
live peer has received all records of this node. Entries that a peer does not hold, because its
map is full or cannot represent them, are listed. The daemon goes on replicating. The node stays
drained until --undo or a restart of the daemon, also when the time is over.
Without a live peer the command refuses. If all peers leave during the drain, the daemon cancels
it: the last node stays in service. --force drains the last node nevertheless.
Exit code 0: handed over, or drained by force. 1: refused, cancelled or not within the time.
2: wrong use.`,
		Example: `  syncd drain --timeout 30s && systemctl stop lb syncd
  syncd drain --undo`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := notNegative(timeout); err != nil {
				return err
			}
			client, began := daemon.NewClient(socket), time.Now()
			if undo {
				_, err := client.Undrain(cmd.Context())
				return err
			}
			_, err := askWithin(cmd.Context(), timeout, func(ctx context.Context) ([]string, error) {
				_, err := client.Drain(ctx, force)
				return nil, err
			})
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "not ready from now on")
			var last daemon.Handover
			err = waitUntil(cmd, timeout, "handed over", func(ctx context.Context) ([]string, error) {
				h, err := client.Handover(ctx)
				switch {
				case err != nil:
					return nil, err
				case !h.Drained && h.Cancelled != "":
					return nil, fmt.Errorf("drain cancelled: %s: the node is in service", h.Cancelled)
				case !h.Drained:
					return nil, errUndrained
				case h.Done:
					last = h
					return nil, nil
				}
				return h.Waiting, nil
			})
			if errors.Is(err, errLate) {
				return fmt.Errorf("%w (the node stays out of service: `syncd drain --undo` returns it)", err)
			}
			if err == nil {
				printHandover(cmd.OutOrStdout(), &last, time.Since(began))
			}
			return err
		},
	}
	cmd.Flags().StringVar(&socket, "control-socket", config.DefaultControlSocket, "unix socket of the daemon")
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait")
	cmd.Flags().BoolVar(&undo, "undo", false, "put the node into service again")
	cmd.Flags().BoolVar(&force, "force", false, "drain also if no live peer receives from this node: its sessions are lost")
	return cmd
}

// printHandover prints what became of a drain, in one line if all is well.
func printHandover(out io.Writer, h *daemon.Handover, took time.Duration) {
	took = took.Round(time.Millisecond)
	switch {
	case h.Peers == 0:
		fmt.Fprintf(out, "drained after %s, NOT handed over: no peer is live\n", took)
	case len(h.NotHeld) == 0:
		fmt.Fprintf(out, "handed over to %d live peers after %s\n", h.Peers, took)
	default:
		var texts []string
		for i := range h.NotHeld {
			texts = append(texts, h.NotHeld[i].Text())
		}
		wrap(out, fmt.Sprintf("handed over to %d live peers after %s, %s", h.Peers, took, texts[0]))
		for _, text := range texts[1:] {
			wrap(out, "  "+text)
		}
	}
}

// errUndrained says that another command ended the drain.
var errUndrained = errors.New("the node was put into service again meanwhile, or its daemon restarted")
