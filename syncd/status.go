package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
)

func newStatus() *cobra.Command {
	var c connection
	var o statusOutput
	var watch time.Duration
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show readiness, redundancy, maps, peers, lag and problems",
		Long: `Show the state of the running daemon: first redundancy and readiness, then maps and peers, and at
the end each problem with its remedy. Lag is how far a peer's kernel map is behind this node. If there are
many maps, the maps that are in sync with a peer share one line. --problems prints the problems alone, and
nothing if all is well. docs/night.md explains each problem.
--cluster asks all live nodes, and lists expected nodes that are not live.
Exit code 0: all is well. 1: there are problems, or with --cluster a node does not answer. 2: wrong use.`,
		Example: `  syncd status
  syncd status --cluster --watch
  syncd status --problems
  syncd status --json | jq '.problems[] | {id, severity, map, peer, text, remedy}'`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if watch > 0 {
				return watchStatus(cmd, &c, &o, watch)
			}
			return o.once(cmd.Context(), cmd.OutOrStdout(), &c)
		},
	}
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON")
	cmd.Flags().BoolVar(&o.all, "all", false, "print a line for each map and peer, and each problem")
	cmd.Flags().BoolVar(&o.problems, "problems", false, "print the problems alone, each with its section of the documentation; as JSON with --json")
	cmd.Flags().BoolVar(&o.cluster, "cluster", false, "the state of all nodes of the cluster, which this node asks")
	cmd.Flags().Var((*positiveDuration)(&watch), "watch", "show the state again in this interval, in place, until the command is interrupted")
	cmd.Flags().Lookup("watch").NoOptDefVal = "2s"
	c.bind(cmd)
	return cmd
}

// statusOutput are the flags of the command status.
type statusOutput struct{ json, all, problems, cluster bool }

// once asks for the status and prints it. It returns errReported if there are problems.
func (o *statusOutput) once(ctx context.Context, out io.Writer, c *connection) error {
	if o.cluster {
		a, err := c.client().ClusterStatus(ctx)
		if err != nil {
			return err
		}
		return o.reportCluster(out, &a)
	}
	s, err := c.client().Status(ctx)
	if err != nil {
		return err
	}
	return o.report(out, &s)
}

// watchStatus prints the status again and again, on a terminal in the place of the one before. It returns nil once the command is
// interrupted, and the error of the first answer. Later errors are printed, and the next answer follows.
func watchStatus(cmd *cobra.Command, c *connection, o *statusOutput, interval time.Duration) error {
	out := cmd.OutOrStdout()
	screen := terminalOf(out)
	for first := true; ; first = false {
		var text bytes.Buffer
		err := o.once(cmd.Context(), &text, c)
		switch {
		case cmd.Context().Err() != nil:
			return nil
		case err == nil || errors.Is(err, errReported):
		case first:
			return err
		default:
			fmt.Fprintln(&text, "syncd:", err)
		}
		if screen != nil {
			// The cursor to the first line, and clear the screen.
			if _, err := io.WriteString(screen, "\033[H\033[2J"); err != nil {
				return fmt.Errorf("print status: %w", err)
			}
		}
		if !o.json {
			fmt.Fprintf(&text, "\nat %s, again every %s\n", time.Now().UTC().Format(time.RFC3339), interval)
		}
		if _, err := out.Write(text.Bytes()); err != nil {
			return fmt.Errorf("print status: %w", err)
		}
		select {
		case <-cmd.Context().Done():
			return nil
		case <-time.After(interval):
		}
	}
}

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
