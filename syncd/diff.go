package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"

	"mapsync/syncd/config"
	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
)

func newDiff() *cobra.Command {
	var socket string
	var asJSON, raw bool
	var query daemon.DiffQuery
	cmd := &cobra.Command{
		Use:   "diff MAP",
		Short: "Print the entries of a map that this node and its peers hold differently",
		Long: `Compare what the running daemon knows of a map with what its peers know, and print the
entries that differ and do so for longer than it takes to tell: what either side holds, who owns
it and when it changed. Differences are also found and repaired without this command; what
stays is what cannot be repaired, such as entries for which a table has no room.
Exit code 1: there are some, or a peer could not be compared with.`,
		Example: `  syncd diff ct_map
  syncd diff ct_map --peer lb2 --json | jq -r .kind | sort | uniq -c`,
		Args: exactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			query.Form = daemon.FormText
			switch {
			case raw:
				query.Form = daemon.FormRaw
			case asJSON:
				query.Form = daemon.FormJSON
			}
			some := false
			out := bufio.NewWriter(cmd.OutOrStdout())
			encoder := json.NewEncoder(out)
			err := daemon.NewClient(socket).Diff(cmd.Context(), args[0], query, func(e *daemon.DiffEntry) error {
				some = true
				if asJSON {
					return encoder.Encode(e)
				}
				return printDifference(out, e)
			})
			if err != nil {
				return err
			}
			if err := out.Flush(); err != nil {
				return fmt.Errorf("print differences: %w", err)
			}
			if some {
				return errReported
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&socket, "control-socket", config.DefaultControlSocket, "unix socket of the daemon")
	cmd.Flags().StringVar(&query.Peer, "peer", "", "the only peer to compare with (default: all that live)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object a line")
	cmd.Flags().BoolVar(&raw, "raw", false, "print keys and values as the hex of their bytes in the kernel map")
	return cmd
}

// printDifference prints the key and then a line for each side.
func printDifference(out io.Writer, e *daemon.DiffEntry) error {
	if e.Error != "" {
		_, err := fmt.Fprintf(out, "peer %s: %s\n", e.Peer, e.Error)
		return err
	}
	key, err := plain(e.Key)
	if err != nil {
		return err
	}
	here, err := sideText(e.Here)
	if err != nil {
		return err
	}
	there, err := sideText(e.There)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s peer=%s %s\n    here:  %s\n    there: %s\n", key, e.Peer, e.Kind, here, there)
	return err
}

func sideText(s *daemon.DiffSide) (string, error) {
	if s == nil {
		return "nothing", nil
	}
	value, err := "deleted", error(nil)
	if !s.Deleted {
		value, err = plain(s.Value)
	}
	return fmt.Sprintf("%s owner=%s changed=%s", value, s.Owner, changed(s.Changed)), err
}

// plain returns a text that is on the wire as JSON.
func plain(text json.RawMessage) (s string, err error) {
	if err := json.Unmarshal(text, &s); err != nil {
		return "", fmt.Errorf("read entry: %w", err)
	}
	return s, nil
}
