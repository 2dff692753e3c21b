package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"mapsync/syncd/daemon"
	"mapsync/syncd/events"

	"github.com/spf13/cobra"
)

// nodeEvent is an event of a node.
type nodeEvent struct {
	Node string `json:"node,omitempty"` // empty without --cluster
	events.Event
}

func newEvents() *cobra.Command {
	var c connection
	var cluster, asJSON bool
	var mapName, peer string
	since, limit := 10*time.Minute, 1000
	cmd := &cobra.Command{
		Use:   "events",
		Short: "Show what has happened: joins, losses, repairs, readiness, problems, reloads",
		Long: `Show the latest events of the running daemon, oldest first: the lines of its log from the level info on.
The daemon keeps the last 10,000 in memory, whatever its log level is. --cluster asks all live nodes.
Exit code 0: all events of the period are shown. 1: some are no longer kept, or a node does not answer.
2: wrong use.`,
		Example: `  syncd events
  syncd events --cluster --since 1h --map ct_map
  syncd events --json | jq 'select(.level == "error")'`,
		Args: exactArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 1 {
				return usageError{fmt.Errorf("--limit %d: give a number above 0", limit)}
			}
			list, notes, err := readEvents(cmd, &c, time.Now().Add(-since), limit, cluster)
			if err != nil {
				return err
			}
			list = slices.DeleteFunc(list, func(e nodeEvent) bool {
				return mapName != "" && e.Map != mapName || peer != "" && e.Peer != peer && e.Node != peer
			})
			if err := printEvents(cmd.OutOrStdout(), list, asJSON); err != nil {
				return fmt.Errorf("print events: %w", err)
			}
			for _, note := range notes {
				wrap(cmd.ErrOrStderr(), "syncd: "+note)
			}
			if len(notes) > 0 {
				return errReported
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.Var((*positiveDuration)(&since), "since", "`DURATION` before now from which on events are shown")
	f.IntVar(&limit, "limit", limit, "maximum `NUMBER` of events of each node, the latest ones")
	f.BoolVar(&cluster, "cluster", false, "the events of all live nodes")
	f.StringVar(&mapName, "map", "", "only events about the map `NAME`")
	f.StringVar(&peer, "peer", "", "only events about, or of, the node `NAME`")
	f.BoolVar(&asJSON, "json", false, "print each event as a line of JSON")
	c.bind(cmd)
	c.completeFlag(cmd, "map", func(n *daemon.Names, _ []string) []string { return n.Maps })
	c.completeFlag(cmd, "peer", func(n *daemon.Names, _ []string) []string { return n.Peers })
	return cmd
}

// readEvents returns the events in the order of their times, and notes about what is missing.
func readEvents(cmd *cobra.Command, c *connection, since time.Time, limit int, cluster bool) (list []nodeEvent, notes []string, err error) {
	include := func(node string, l *events.List) {
		for _, e := range l.Events {
			list = append(list, nodeEvent{node, e})
		}
		if !l.Complete {
			notes = append(notes, strings.TrimSpace(node+" earlier events of the period are not shown: raise --limit, or they are no longer kept"))
		}
	}
	if !cluster {
		l, err := c.client().Events(cmd.Context(), since, limit)
		include("", &l)
		return list, notes, err
	}
	a, err := c.client().ClusterEvents(cmd.Context(), since, limit)
	for _, n := range a.Nodes {
		var l events.List
		if failure := decodeAnswer(&n, &l); failure != "" {
			notes = append(notes, n.Node+": no answer: "+failure)
			continue
		}
		include(n.Node, &l)
	}
	slices.SortStableFunc(list, func(a, b nodeEvent) int { return cmp.Compare(a.Time.UnixNano(), b.Time.UnixNano()) })
	return list, notes, err
}

func printEvents(out io.Writer, list []nodeEvent, asJSON bool) error {
	encoder := json.NewEncoder(out)
	for i := range list {
		e := &list[i]
		if asJSON {
			if err := encoder.Encode(e); err != nil {
				return err
			}
			continue
		}
		wrap(out, e.line())
	}
	return nil
}

// line returns an event as a line for people.
func (e *nodeEvent) line() string {
	words := []string{e.Time.UTC().Format("2006-01-02T15:04:05.000Z")}
	if e.Node != "" {
		words = append(words, e.Node)
	}
	words = append(words, strings.ToUpper(e.Level), e.Message)
	if e.Map != "" {
		words = append(words, "map="+e.Map)
	}
	if e.Peer != "" {
		words = append(words, "peer="+e.Peer)
	}
	if e.Details != "" {
		words = append(words, e.Details)
	}
	return strings.Join(words, " ")
}
