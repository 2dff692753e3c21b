package daemon

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// clockLogInterval is the minimum time between two log lines about one clock problem.
const clockLogInterval = time.Minute

// clockProblem is a node whose clock differs from this node's clock by more than max-clock-ahead.
// syncd reads the clock once, at its start.
type clockProblem struct {
	node string
	// ahead is how far the other node's clock is ahead. If it is negative, this node's clock is
	// ahead. limit is max-clock-ahead.
	ahead, limit time.Duration
}

// text returns the problem and its remedy.
func (c *clockProblem) text() string {
	if c.ahead < 0 {
		return fmt.Sprintf("%s refuses this node or its changes: this node's clock is %s ahead (max-clock-ahead is %s): set this node's clock, then restart syncd here",
			c.node, -c.ahead.Round(time.Second), c.limit)
	}
	return fmt.Sprintf("%s or its changes are refused: its clock is at least %s ahead of this node's (max-clock-ahead is %s): set its clock, then restart syncd there",
		c.node, c.ahead.Round(time.Second), c.limit)
}

// clockProblems returns the nodes whose clocks differ too much, sorted by name. Both nodes report
// the problem: a node whose clock is ahead still receives from its peers, which refuse it.
func (d *Daemon) clockProblems() (list []clockProblem) {
	limit := d.config.MaxClockAhead
	for _, u := range d.replicator.Unverified(maxUnverified) {
		if u.Ahead > 0 {
			list = append(list, clockProblem{u.Node, u.Ahead, limit})
		}
	}
	for _, c := range d.replicator.ClockOffsets() {
		if c.Offset.Abs() > limit {
			list = append(list, clockProblem{c.Node, c.Offset, limit})
		}
	}
	slices.SortFunc(list, func(a, b clockProblem) int { return cmp.Compare(a.node, b.node) })
	return list
}

// watchClocks logs each clock problem once per minute until ctx ends.
func (d *Daemon) watchClocks(ctx context.Context) error {
	tick := time.NewTicker(contactInterval)
	defer tick.Stop()
	logged := make(map[string]time.Time)
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			for node, at := range logged {
				if now.Sub(at) > clockLogInterval {
					delete(logged, node)
				}
			}
			for _, c := range d.clockProblems() {
				if _, is := logged[c.node]; !is {
					logged[c.node] = now
					d.remoteLog.Error("clocks of nodes are too far apart", slog.String("peer", c.node), slog.String("problem", c.text()),
						slog.String("hint", "correct the clock of the node that is ahead (chronyc makestep), then restart its syncd"))
				}
			}
		}
	}
}
