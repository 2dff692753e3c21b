package main

import (
	"encoding/json"
	"fmt"
	"io"

	"mapsync/syncd/config"
	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
)

func newStatus() *cobra.Command {
	var socket string
	var asJSON, all bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show readiness, redundancy, maps, peers, lag and problems",
		Long: `Show the state of the running daemon: first redundancy and readiness, then maps and peers, and at
the end each problem once. Lag is how far a peer's kernel map is behind this node. If there are
many maps, the maps that are in sync with a peer share one line.
Exit code 0: ready. 1: not ready, or no daemon answers. 2: wrong use.`,
		Example: `  syncd status
  syncd status --json | jq '.peers[].maps[].lag_seconds'`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := daemon.NewClient(socket).Status(cmd.Context())
			if err != nil {
				return err
			}
			return reportStatus(cmd.OutOrStdout(), &s, all, asJSON)
		},
	}
	cmd.Flags().StringVar(&socket, "control-socket", config.DefaultControlSocket, "unix socket of the daemon")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&all, "all", false, "print a line for each map and peer")
	return cmd
}

// reportStatus prints a status, as JSON or as text. all is the flag of printStatus. It returns errReported if the node is
// not ready.
func reportStatus(out io.Writer, s *daemon.Status, all, asJSON bool) (err error) {
	if asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(s)
	} else {
		err = printStatus(out, s, all)
	}
	if err != nil {
		return fmt.Errorf("print status: %w", err)
	}
	if !s.Ready {
		return errReported
	}
	return nil
}
