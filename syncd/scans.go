package main

import (
	"fmt"
	"time"

	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
)

// defaultScanPause is the duration of a pause without --for.
const defaultScanPause = 10 * time.Minute

func newScans() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "scans",
		Short: "Pause and resume the scans of all maps",
		Long: `Scans compare kernel maps with syncd's tables. They find changes that no hook reports, and repair
losses of events. A pause stops them at once, for example while a CPU is needed for something else.
Changes that hooks report are replicated meanwhile. A restart of the daemon ends the pause.`,
		Example: `  syncd scans pause --for 10m
  syncd scans resume`,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newScansPause(), newScansResume())
	return cmd
}

func newScansPause() *cobra.Command {
	var c connection
	var length time.Duration
	cmd := &cobra.Command{
		Use:     "pause",
		Short:   "Pause the scans of all maps for a time",
		Long:    fmt.Sprintf("Pause the scans of all maps for a time of at most %s. It replaces an earlier pause.\nExit code 0: paused. 1: failed. 2: wrong use, such as another time.", daemon.MaxScanPause),
		Example: `  syncd scans pause --for 1h`,
		Args:    exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if length <= 0 || length > daemon.MaxScanPause {
				return usageError{fmt.Errorf("--for %s is not usable: give a time above 0, up to %s", length, daemon.MaxScanPause)}
			}
			pause, err := c.client().PauseScans(cmd.Context(), length)
			if err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "scans are paused until %s\n", pause.Until.Format(time.RFC3339))
			}
			return err
		},
	}
	cmd.Flags().DurationVar(&length, "for", defaultScanPause, "length of the pause")
	c.bind(cmd)
	return cmd
}

func newScansResume() *cobra.Command {
	var c connection
	cmd := &cobra.Command{
		Use:     "resume",
		Short:   "End the pause of scans",
		Long:    "End the pause of the scans of all maps.\nExit code 0: scans are not paused. 1: failed. 2: wrong use.",
		Example: `  syncd scans resume`,
		Args:    exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := c.client().ResumeScans(cmd.Context())
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), "scans are not paused")
			}
			return err
		},
	}
	c.bind(cmd)
	return cmd
}
