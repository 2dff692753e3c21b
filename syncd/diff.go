package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"mapsync/syncd/daemon"

	"github.com/spf13/cobra"
)

func newDiff() *cobra.Command {
	var c connection
	var asJSON, raw bool
	var query daemon.DiffQuery
	cmd := &cobra.Command{
		Use:   "diff MAP",
		Short: "Print the entries of a map that differ between this node and its peers",
		Long: `Compare the records of a map at this node with those of its peers. Print the entries that differ
for longer than it takes to send them, with the content, the owner and the time of the change at
both nodes. Entries that are not replicated follow, with the reason: this node cannot send
unsent_here, this node cannot hold refused_here, and the peer cannot hold refused_there. The last
line of each peer is a summary. syncd also finds and repairs differences without this command.
Exit code 0: nothing differs. 1: something differs or is not replicated, or a peer could not be
compared with; the output has the reason. 2: wrong use, such as no such map or peer.`,
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
			return printDifferences(cmd, c.client(), args[0], query, asJSON)
		},
	}
	cmd.Flags().StringVar(&query.Peer, "peer", "", "compare with this peer only (default: all live peers)")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per line")
	cmd.Flags().BoolVar(&raw, "raw", false, "print keys and values as hex, in the bytes of the kernel map")
	c.bind(cmd)
	c.completeMap(cmd)
	c.completeFlag(cmd, "peer", func(n *daemon.Names, _ []string) []string { return n.Peers })
	return cmd
}

// printDifferences prints the entries of a map that differ, as JSON or as text. It returns errReported if there is one.
func printDifferences(cmd *cobra.Command, client *daemon.Client, name string, query daemon.DiffQuery, asJSON bool) error {
	some := false
	out := bufio.NewWriter(cmd.OutOrStdout())
	encoder := json.NewEncoder(out)
	err := client.Diff(cmd.Context(), name, query, func(e *daemon.DiffEntry) error {
		some = some || e.Summary == nil || !e.Summary.Clean()
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
}

// printDifference prints an entry as its key and one line for each side, or a summary or an
// error.
func printDifference(out io.Writer, e *daemon.DiffEntry) error {
	switch {
	case e.Error != "" && e.Peer == "":
		wrap(out, e.Error)
		return nil
	case e.Error != "":
		wrap(out, "peer "+e.Peer+": "+e.Error)
		return nil
	case e.Summary != nil:
		wrap(out, "peer "+e.Peer+": "+summary(e.Summary))
		return nil
	case e.Entry != "":
		_, err := fmt.Fprintf(out, "%s peer=%s %s\n    reason: %s\n", e.Entry, e.Peer, e.Kind, e.Reason)
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

// summary returns the result of a comparison in one line.
func summary(r *daemon.DiffResult) string {
	var parts []string
	add := func(n int, text string) {
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, text))
		}
	}
	add(r.Differ, "entries differ")
	add(r.Unsent, "entries cannot be sent by this node")
	add(r.PeerUnsent, "entries cannot be sent by the peer")
	add(r.Refused, "entries of the peer cannot be held here")
	add(r.RefusedThere, "entries of this node cannot be held by the peer")
	add(r.NotHeld, "entries do not go into the peer's kernel map")
	add(r.NotHeldHere, "entries of the peer do not go into the kernel map of this node")
	if r.Problem != "" {
		parts = append(parts, r.Problem)
	}
	if r.Clean() {
		parts = append(parts, "compared, nothing differs")
	}
	add(r.UnderWay, "changes are under way")
	return strings.Join(parts, ", ")
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

// plain decodes a JSON string.
func plain(text json.RawMessage) (s string, err error) {
	if err := json.Unmarshal(text, &s); err != nil {
		return "", fmt.Errorf("read entry: %w", err)
	}
	return s, nil
}

// changed returns the time of a change, or "unknown" for an entry that is older than syncd.
func changed(at time.Time) string {
	if at.IsZero() {
		return "unknown"
	}
	return at.Format(time.RFC3339Nano)
}
