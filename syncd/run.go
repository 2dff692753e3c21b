package main

import (
	"io"
	"log/slog"

	"mapsync/syncd/config"
	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
)

func newRun() *cobra.Command {
	var file string
	settings := config.Default()
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the daemon",
		Long: `Run the daemon until SIGINT or SIGTERM. At SIGHUP it reads certificates, gossip keys and maps
again, like ` + "`syncd reload`" + `. Every flag is a setting of the same name in the YAML file. Flags
override the file.
Exit code 0: stopped by a signal. 1: failed. 2: wrong use, or the settings cannot be used.`,
		Example: `  # All settings from a file
  syncd run --config /etc/mapsync/syncd.yaml

  # One map by its pin path, peers verified by certificate
  syncd run --map /sys/fs/bpf/lb/ct_map --join 10.0.0.2:7946 \
    --gossip-listen 10.0.0.1:7946 --gossip-key-file /etc/mapsync/gossip.key \
    --grpc-listen 10.0.0.1:7947 \
    --tls-cert /etc/mapsync/lb1.crt --tls-key /etc/mapsync/lb1.key --tls-ca /etc/mapsync/ca.crt`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error { return runDaemon(cmd, file) },
	}
	cmd.Flags().StringVar(&file, "config", "", "YAML `file` of settings")
	settings.Bind(cmd.Flags())
	return cmd
}

// runDaemon runs the daemon with the settings of file and of the flags, until the context of cmd ends.
func runDaemon(cmd *cobra.Command, file string) error {
	loaded, err := config.Load(file, cmd.Flags())
	if err != nil {
		return usageError{err}
	}
	signals, stop := hangUps()
	defer stop()
	level := new(slog.LevelVar)
	level.Set(loaded.Level())
	d, err := daemon.New(daemon.Options{
		Config: loaded, Version: version, Logger: newLogger(cmd.ErrOrStderr(), &loaded, level), LogLevel: level,
		Reload: func() (config.Config, error) { return config.Load(file, cmd.Flags()) },
	})
	if err != nil {
		return err
	}
	go reloadOnHangUp(cmd.Context(), signals, d)
	return d.Run(cmd.Context())
}

// newLogger returns the logger of the settings, which writes to out from a level on.
func newLogger(out io.Writer, c *config.Config, level *slog.LevelVar) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(out, options))
	}
	return slog.New(slog.NewTextHandler(out, options))
}
