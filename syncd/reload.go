package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
)

func newReload() *cobra.Command {
	var c connection
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Read certificates, gossip keys, maps and permissions again",
		Long: `Make the running daemon read its settings file and the files that it names again, like SIGHUP.
Certificates, gossip keys and these settings take effect at once: map, schema, field,
allowed-names, observers, read-from, write-from and tls-*. Streams that are no longer allowed end.
The command lists other settings that changed: they need a restart. Settings that cannot be used
change nothing.
Exit code 0: reloaded. 1: failed. 2: wrong use, or the settings cannot be used.`,
		Example: `  syncd check --config /etc/mapsync/syncd.yaml && syncd reload`,
		Args:    exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			done, err := c.client().Reload(cmd.Context())
			if errors.Is(err, daemon.ErrSettings) {
				return usageError{err}
			}
			if err != nil {
				return err
			}
			return reportReloaded(cmd.OutOrStdout(), &done, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.bind(cmd)
	return cmd
}

// reportReloaded prints the result of a reload, as JSON or as text.
func reportReloaded(out io.Writer, done *daemon.Reloaded, asJSON bool) (err error) {
	if asJSON {
		err = json.NewEncoder(out).Encode(done)
	} else {
		err = printReloaded(out, done)
	}
	if err != nil {
		return fmt.Errorf("print result: %w", err)
	}
	return nil
}

func printReloaded(out io.Writer, r *daemon.Reloaded) error {
	text := "reloaded\n"
	add := func(what string, list []string) {
		if len(list) > 0 {
			text += what + ": " + strings.Join(list, ", ") + "\n"
		}
	}
	add("maps removed", r.Removed)
	add("maps added", r.Added)
	add("maps that other nodes may read or write", r.Access)
	if r.Keys {
		text += "gossip keys changed\n"
	}
	add("NEEDS A RESTART (systemctl restart syncd; until then the former values stay in use)", r.NeedsRestart)
	_, err := io.WriteString(out, text)
	return err
}

// reloadOnHangUp makes d reload at each SIGHUP until ctx ends. The daemon logs the result.
func reloadOnHangUp(ctx context.Context, hangUps <-chan os.Signal, d *daemon.Daemon) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangUps:
			_, _ = d.Reload(ctx)
		}
	}
}

// hangUps returns a channel of SIGHUP signals, so that the signal does not end the process. The
// caller calls stop at the end.
func hangUps() (signals chan os.Signal, stop func()) {
	signals = make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP)
	return signals, func() { signal.Stop(signals) }
}
