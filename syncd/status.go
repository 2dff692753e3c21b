package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"mapsync/syncd/config"
	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
)

func newStatus() *cobra.Command {
	var socket string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show peers, positions, lag, losses and readiness",
		Long: `Ask the running daemon how it is. Lag is how far a peer's kernel map is behind this node.
Exit code 1: no daemon answers, or it is not ready.`,
		Example: `  syncd status
  syncd status --json | jq '.peers[].maps[].lag_seconds'`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := daemon.NewClient(socket).Status(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				encoder := json.NewEncoder(cmd.OutOrStdout())
				encoder.SetIndent("", "  ")
				err = encoder.Encode(s)
			} else {
				err = printStatus(cmd.OutOrStdout(), &s)
			}
			if err != nil {
				return fmt.Errorf("print status: %w", err)
			}
			if !s.Ready {
				return errReported
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&socket, "control-socket", config.DefaultControlSocket, "unix socket of the daemon")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// printStatus puts first what a tired reader must know: is it ready, and was
// anything lost.
func printStatus(out io.Writer, s *daemon.Status) error {
	ready := "ready"
	if !s.Ready {
		ready = "NOT READY: " + strings.Join(s.NotReady, "; ")
	}
	fmt.Fprintf(out, "node %s: %s\n", s.Node, ready)
	if len(s.Unproven) > 0 {
		fmt.Fprintf(out, "READY WITHOUT PROOF, since sync-timeout has passed: %s\n", strings.Join(s.Unproven, "; "))
	}
	fmt.Fprintf(out, "up %s, version %s, incarnation %d\n", seconds(s.UptimeSeconds), s.Version, s.Incarnation)
	printSecurity(out, s)
	c := &s.Capture
	fmt.Fprintf(out, "capture by %s, %s buffer: %d events, %d lost", c.Attach, c.Buffer, c.Events, c.Lost)
	if !c.SkippedCounted {
		fmt.Fprint(out, " (this kernel does not count runs that it skips)")
	}
	fmt.Fprintln(out)
	if c.Lost > 0 {
		fmt.Fprintf(out, "LOST: buffer full %d, perf %d, nested %d, skipped %d\n", c.LostBuffer, c.LostPerf, c.LostNested, c.Skipped)
	}
	if c.Losses.Open {
		fmt.Fprintf(out, "SCANNING because of losses, for %s: peers may lack changes until it is done\n", seconds(c.Losses.OpenSeconds))
	}
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "\nMAP\tSTATE\tLIVE\tMAX\tTOMBSTONES\tPENDING\tFAILED\tPOSITION\tAPPLIED\tWRITE\tSCANNED EVERY")
	for _, m := range s.Maps {
		fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n", m.Name, m.State, m.Live, m.MaxEntries,
			m.Tombstones, m.Pending, m.Failed, m.Position, m.Applied, m.Write, scanned(m.Scan))
	}
	fmt.Fprintln(w, "\nPEER\tADDRESS\tRECEIVING\tSENDING\tCLOCK AHEAD\tROUND TRIP")
	for _, p := range s.Peers {
		fmt.Fprintf(w, "%s\t%s\t%t\t%t\t%s\t%s\n", p.Node, p.Address, p.Receiving, p.Sending, seconds(p.ClockOffset), seconds(p.RoundTrip))
	}
	fmt.Fprintln(w, "\nPEER\tMAP\tSTATE\tEQUAL\tRECEIVED\tSENT\tACKED\tLAG\tLAG TIME")
	for _, p := range s.Peers {
		for _, m := range p.Maps {
			lag, late := fmt.Sprint(m.LagEntries), seconds(m.LagSeconds)
			if m.Error != "" || !p.Sending {
				lag, late = "NOT SERVED", "-" // no lag is not what this is
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%s\t%s\n", p.Node, m.Name, m.State, equal(&m),
				m.Received, m.Sent, m.Acked, lag, late)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	printProblems(out, s)
	return nil
}

// scanned says how often a map is scanned: more seldom than set where the budget does
// not allow for it.
func scanned(s *daemon.ScanStatus) string {
	if s == nil {
		return "-"
	}
	return seconds(s.Interval)
}

// equal says whether this node was last seen to hold what the peer told.
func equal(m *daemon.PeerMapStatus) string {
	switch {
	case m.Incomparable != "":
		return "UNKNOWN"
	case m.Divergent > 0:
		return fmt.Sprintf("%d DIFFER", m.Divergent)
	case !m.Agreed:
		return "not proven yet"
	}
	return "yes"
}

func printSecurity(out io.Writer, s *daemon.Status) {
	if !s.TLS {
		fmt.Fprintln(out, "streams are NOT encrypted")
		return
	}
	fmt.Fprintf(out, "streams are encrypted and verified, certificate ends %s\n", s.CertExpires.Format(time.DateOnly))
}

func printProblems(out io.Writer, s *daemon.Status) {
	if s.GossipProblem != "" {
		fmt.Fprintf(out, "gossip: %s\n", s.GossipProblem)
	}
	for _, m := range s.Maps {
		if m.Error != "" {
			fmt.Fprintf(out, "map %s: %s\n", m.Name, m.Error)
		}
	}
	for _, p := range s.Peers {
		if p.Error != "" && !p.Receiving {
			fmt.Fprintf(out, "peer %s: %s\n", p.Node, p.Error)
		}
		for _, m := range p.Maps {
			if m.Error != "" {
				fmt.Fprintf(out, "peer %s, map %s: %s\n", p.Node, m.Name, m.Error)
			}
			if m.Incomparable != "" {
				fmt.Fprintf(out, "peer %s, map %s: cannot be compared: %s\n", p.Node, m.Name, m.Incomparable)
			}
			if m.Divergent > 0 {
				fmt.Fprintf(out, "peer %s, map %s: entries differ, `syncd diff %s --peer %s` lists them\n", p.Node, m.Name, m.Name, p.Node)
			}
		}
	}
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond).String()
}
