package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
)

// drainOptions are the flags of the command drain.
type drainOptions struct {
	connection
	wait        time.Duration
	undo, force bool
}

func newDrain() *cobra.Command {
	var o drainOptions
	cmd := &cobra.Command{
		Use:   "drain",
		Short: "Hand over before maintenance",
		Long: `Take this node out of service. From then on the node is not ready (/readyz, the gRPC health
service, wait-ready), so that the systems that check readiness move its traffic away. The command
then waits until traffic has stopped, that is, until this node's maps have not changed for a
second, and until every live peer has received all records of this node. It lists the entries that
a peer does not hold because its map is full or cannot represent them. The daemon continues to
replicate. The node stays drained until --undo, even after a timeout, a restart of the daemon, or
a stop of the load balancer. From the end of the drain on, deletes of the handed over entries by the
control plane of this node are not replicated: a load balancer may clear its map when it stops. --undo
restores these entries before the node returns to service.
Without a peer that can take over each map the command fails. If all peers leave during the drain, or
are drained, the daemon cancels it, and the node returns to service. --force drains the last node, too.
Exit code 0: handed over, or drained by force. 1: refused, cancelled or timeout. 2: wrong use.`,
		Example: `  syncd drain --timeout 30s && systemctl stop lb syncd
  syncd drain --undo`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	cmd.Flags().DurationVar(&o.wait, "timeout", time.Minute, "maximum time to wait")
	cmd.Flags().BoolVar(&o.undo, "undo", false, "put the node into service again")
	cmd.Flags().BoolVar(&o.force, "force", false, "drain even if no peer can take over; sessions are lost")
	o.bind(cmd)
	return cmd
}

// run drains the node and waits for the handover, or ends the drain.
func (o *drainOptions) run(cmd *cobra.Command) error {
	if err := notNegative(o.wait); err != nil {
		return err
	}
	client, began := o.client(), time.Now()
	if o.undo {
		return o.undrain(cmd, client)
	}
	_, err := askWithin(cmd.Context(), o.wait, func(ctx context.Context) ([]string, error) {
		_, err := client.Drain(ctx, o.force)
		return nil, err
	})
	if err != nil {
		return err
	}
	fmt.Fprintln(cmd.OutOrStdout(), "drain started: the node is not ready")
	h, err := awaitHandover(cmd, client, o.wait)
	if errors.Is(err, errTimeout) {
		return fmt.Errorf("%w (the node stays out of service until `syncd drain --undo`)", err)
	}
	if err == nil {
		printHandover(cmd.OutOrStdout(), &h, time.Since(began))
	}
	return err
}

// undrain ends the drain and waits until the node is in service.
func (o *drainOptions) undrain(cmd *cobra.Command, client *daemon.Client) error {
	began := time.Now()
	before, err := client.Handover(cmd.Context())
	if err != nil {
		return err
	}
	h, err := client.Undrain(cmd.Context())
	if err == nil && h.Drained {
		err = o.awaitService(cmd, client)
	}
	switch {
	case err != nil:
		return err
	case before.Drained:
		fmt.Fprintf(cmd.OutOrStdout(), "in service after %s\n", time.Since(began).Round(time.Millisecond))
	default:
		fmt.Fprintln(cmd.OutOrStdout(), "in service: the node was not drained")
	}
	return nil
}

// awaitService waits until the node is in service.
func (o *drainOptions) awaitService(cmd *cobra.Command, client *daemon.Client) error {
	err := waitUntil(cmd, o.wait, "in service", func(ctx context.Context) ([]string, error) {
		h, err := client.Handover(ctx)
		switch {
		case err != nil:
			return nil, err
		case h.Drained && !h.Ending:
			return nil, errDrainedAgain
		}
		return h.Waiting, nil
	})
	if errors.Is(err, errTimeout) {
		return fmt.Errorf("%w (the daemon continues)", err)
	}
	return err
}

// errDrainedAgain means that another command has drained the node while it returned to service.
var errDrainedAgain = errors.New("the node was drained again meanwhile")

// awaitHandover waits until a drain is complete and returns its result.
func awaitHandover(cmd *cobra.Command, client *daemon.Client, timeout time.Duration) (last daemon.Handover, err error) {
	err = waitUntil(cmd, timeout, "handed over", func(ctx context.Context) ([]string, error) {
		h, err := client.Handover(ctx)
		switch {
		case err != nil:
			return nil, err
		case (!h.Drained || h.Ending) && h.Cancelled != "":
			return nil, fmt.Errorf("drain cancelled: %s: the node returns to service", h.Cancelled)
		case !h.Drained, h.Ending:
			return nil, errUndrained
		case h.Done:
			last = h
			return nil, nil
		}
		return h.Waiting, nil
	})
	return last, err
}

// printHandover prints the result of a drain, in one line if every peer holds all entries.
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

// errUndrained means that another command ended the drain.
var errUndrained = errors.New("the node was put into service again meanwhile")
