package main

import (
	"encoding/json"
	"fmt"
	"io"

	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
)

func newStatus() *cobra.Command {
	var c connection
	var o statusOutput
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show readiness, redundancy, maps, peers, lag and problems",
		Long: `Show the state of the running daemon: first redundancy and readiness, then maps and peers, and at
the end each problem with its remedy. Lag is how far a peer's kernel map is behind this node. If there are
many maps, the maps that are in sync with a peer share one line. --problems prints the problems alone, and
nothing if all is well. docs/night.md explains each problem.
Exit code 0: all is well. 1: there are problems. 2: wrong use.`,
		Example: `  syncd status
  syncd status --problems
  syncd status --json | jq '.problems[] | {id, severity, map, peer, text, remedy}'`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := c.client().Status(cmd.Context())
			if err != nil {
				return err
			}
			return o.report(cmd.OutOrStdout(), &s)
		},
	}
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON")
	cmd.Flags().BoolVar(&o.all, "all", false, "print a line for each map and peer, and each problem")
	cmd.Flags().BoolVar(&o.problems, "problems", false, "print the problems alone, each with its section of the documentation; as JSON with --json")
	c.bind(cmd)
	return cmd
}

// statusOutput are the flags of the command status.
type statusOutput struct{ json, all, problems bool }

// report prints a status. It returns errReported if there are problems.
func (o *statusOutput) report(out io.Writer, s *daemon.Status) (err error) {
	switch {
	case o.json && o.problems:
		err = encodeIndented(out, s.Problems)
	case o.json:
		err = encodeIndented(out, s)
	case o.problems:
		problemOutput{all: o.all, documented: true}.print(out, s.Problems)
	default:
		err = printStatus(out, s, o.all)
	}
	if err != nil {
		return fmt.Errorf("print status: %w", err)
	}
	if len(s.Problems) > 0 {
		return errReported
	}
	return nil
}

func encodeIndented(out io.Writer, v any) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}
