package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"time"

	"mapsync/syncd/config"
	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
)

func newDump() *cobra.Command {
	var socket string
	var asJSON, tombstones bool
	cmd := &cobra.Command{
		Use:   "dump MAP",
		Short: "Print what the running daemon knows of a map",
		Long: `Print the records of a replicated map, oldest change first: key, value, which node owns
it, and when it changed. An entry marked pending is not in this node's kernel map yet.`,
		Example: `  syncd dump ct_map
  syncd dump ct_map --json | jq -r 'select(.owner == "lb1") | .key'
  syncd dump ct_map --tombstones`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			out := bufio.NewWriter(cmd.OutOrStdout())
			encoder := json.NewEncoder(out)
			err := daemon.NewClient(socket).Dump(cmd.Context(), args[0], tombstones, func(e *daemon.Entry) error {
				if asJSON {
					return encoder.Encode(e)
				}
				return printEntry(out, e)
			})
			if err != nil {
				return err
			}
			return out.Flush()
		},
	}
	cmd.Flags().StringVar(&socket, "control-socket", config.DefaultControlSocket, "unix socket of the daemon")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	cmd.Flags().BoolVar(&tombstones, "tombstones", false, "print deleted keys that are still remembered, too")
	return cmd
}

func printEntry(out *bufio.Writer, e *daemon.Entry) error {
	value, note := e.Value, ""
	if e.Deleted {
		value = "deleted"
	}
	if e.Pending {
		note = " pending"
	}
	_, err := fmt.Fprintf(out, "%s %s owner=%s changed=%s%s\n", e.Key, value, e.Owner, e.Changed.Format(time.RFC3339Nano), note)
	return err
}
