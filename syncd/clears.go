package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"
)

func newClears() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "clears",
		Short: "Decide about a clear of a map",
		Long: `A process has deleted nearly all entries of a map by bpf(2), entries in use included. The deletes
are not replicated, and syncd restores the entries ("map was cleared" in the log, a problem in
"syncd status"). These commands decide about the latest clear of a map.
The daemon logs the command with the user and process of the caller.`,
		Example: `  syncd clears release ct_map
  syncd clears restore ct_map`,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newDecision("release", "Delete the entries of the latest clear on all nodes",
		"Delete the entries of the latest clear on all nodes, except those that have changed since.\n"+decisionCodes, true),
		newDecision("restore", "Keep the entries of the latest clear",
			"Restore the entries at once if that has not happened yet, and end the problem in the status.\n"+decisionCodes, false))
	return cmd
}

// decisionCodes are the exit codes in the help of the commands.
const decisionCodes = "Exit code 0: decided. 1: no clear waits for a decision, or release while events are lost. 2: wrong use, such as no such map."

func newDecision(name, short, long string, release bool) *cobra.Command {
	var c connection
	var asJSON bool
	cmd := &cobra.Command{
		Use:     name + " MAP",
		Short:   short,
		Long:    long,
		Example: "  syncd clears " + name + " ct_map",
		Args:    exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client := c.client()
			decide, text := client.RestoreClear, "%s: %d entries stay\n"
			if release {
				decide, text = client.ReleaseClear, "%s: %d entries deleted on all nodes\n"
			}
			done, err := decide(cmd.Context(), args[0])
			switch {
			case err != nil:
				return err
			case asJSON:
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(done)
			default:
				_, err = fmt.Fprintf(cmd.OutOrStdout(), text, args[0], done.Entries)
			}
			if err != nil {
				return fmt.Errorf("print result: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON: the number of entries")
	c.bind(cmd)
	c.completeMap(cmd)
	return cmd
}
