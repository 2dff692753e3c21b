package main

import (
	"fmt"
	"time"

	"mapsync/syncd/config"
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
	var socket string
	var length time.Duration
	cmd := &cobra.Command{
		Use:     "pause",
		Short:   "Pause the scans of all maps for a time",
		Long:    fmt.Sprintf("Pause the scans of all maps for a time of at most %s. It replaces an earlier pause.", daemon.MaxScanPause),
		Example: `  syncd scans pause --for 1h`,
		Args:    exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if length <= 0 || length > daemon.MaxScanPause {
				return usageError{fmt.Errorf("--for %s is not usable: give a time above 0, up to %s", length, daemon.MaxScanPause)}
			}
			pause, err := daemon.NewClient(socket).PauseScans(cmd.Context(), length)
			if err == nil {
				fmt.Fprintf(cmd.OutOrStdout(), "scans are paused until %s\n", pause.Until.Format(time.RFC3339))
			}
			return err
		},
	}
	cmd.Flags().StringVar(&socket, "control-socket", config.DefaultControlSocket, "unix socket of the daemon")
	cmd.Flags().DurationVar(&length, "for", defaultScanPause, "length of the pause")
	return cmd
}

func newScansResume() *cobra.Command {
	var socket string
	cmd := &cobra.Command{
		Use:     "resume",
		Short:   "End the pause of scans",
		Example: `  syncd scans resume`,
		Args:    exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := daemon.NewClient(socket).ResumeScans(cmd.Context())
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), "scans are not paused")
			}
			return err
		},
	}
	cmd.Flags().StringVar(&socket, "control-socket", config.DefaultControlSocket, "unix socket of the daemon")
	return cmd
}
