package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
)

func newPause() *cobra.Command {
	var c connection
	cmd := &cobra.Command{
		Use:   "pause MAP",
		Short: "Stop the replication of a map",
		Long: `Stop the replication of a map between this node and all peers, both ways, until syncd resume. The
node continues to read changes of its own load balancer, and sends them after the pause. All entries
stay. A restart of the daemon ends the pause. Meanwhile, the node is drained with --force only.
Exit code 0: paused. 1: failed, such as on a drained node. 2: wrong use, such as no such map.`,
		Example: `  syncd pause ct_map`,
		Args:    exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := c.client().PauseMap(cmd.Context(), args[0])
			if err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: paused since %s\n", args[0], p.Since.Format(time.RFC3339))
			}
			return err
		},
	}
	c.bind(cmd)
	c.completeMap(cmd)
	return cmd
}

func newResume() *cobra.Command {
	var c connection
	cmd := &cobra.Command{
		Use:     "resume MAP",
		Short:   "Continue the replication of a map",
		Long:    "Continue the replication of a map after syncd pause. It begins with full syncs.\nExit code 0: the map is replicated. 1: failed. 2: wrong use, such as no such map.",
		Example: `  syncd resume ct_map`,
		Args:    exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, err := c.client().ResumeMap(cmd.Context(), args[0])
			if err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "%s: not paused\n", args[0])
			}
			return err
		},
	}
	c.bind(cmd)
	c.completeMap(cmd)
	return cmd
}
