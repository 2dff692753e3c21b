package daemon

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// nodeClock is the clock of a node.
type nodeClock struct {
	node string
	// ahead is the node's clock minus this node's clock.
	ahead time.Duration
	// startedAhead reports that peers refuse the node until it restarts: its clock was ahead when it started.
	startedAhead bool
	// unsynchronised reports that the node's kernel has no synchronised clock.
	unsynchronised bool
	// unverified reports that there is no stream to the node, so the report of its kernel is missing.
	unverified bool
}

// clockProblem is one clock that differs from those of the majority, or several of which none is known to be
// right. limit is max-clock-ahead.
type clockProblem struct {
	clocks []nodeClock
	wrong  bool // there is one clock, and its field ahead counts from the reference
	limit  time.Duration
}

// text returns the problem and its remedy.
func (c *clockProblem) text() string {
	if !c.wrong {
		var list []string
		restart := ""
		for _, n := range c.clocks {
			if n.startedAhead {
				restart = ", then restart syncd on " + n.node + " if that is it"
			}
			list = append(list, fmt.Sprintf("%s %s", n.node, signed(n.ahead)))
		}
		return fmt.Sprintf("the clocks of nodes are more than max-clock-ahead (%s) apart, and no majority shows which one is wrong: %s: compare each with a time server (chronyc tracking), then set the wrong one (chronyc makestep)%s",
			c.limit, strings.Join(list, ", "), restart)
	}
	n := &c.clocks[0]
	side, restart := "ahead of", ""
	if n.ahead < 0 {
		side = "behind"
	}
	if n.startedAhead {
		restart = ", then restart syncd there, which started with that clock"
	}
	return fmt.Sprintf("the clock of %s is %s %s those of the other nodes (max-clock-ahead is %s): set the clock of %s (chronyc makestep)%s",
		n.node, n.ahead.Abs().Round(time.Second), side, c.limit, n.node, restart)
}

// signed returns a difference with its sign.
func signed(d time.Duration) string {
	if d = d.Round(time.Second); d < 0 {
		return d.String()
	}
	return "+" + d.String()
}

// findWrongClocks returns the problems of a cluster's clocks. A clock is wrong if it differs by more than limit from
// those of the majority. Without a majority, synchronised clocks that agree decide.
func findWrongClocks(clocks []nodeClock, limit time.Duration) (list []clockProblem) {
	slices.SortFunc(clocks, func(a, b nodeClock) int {
		return cmp.Or(cmp.Compare(a.ahead, b.ahead), cmp.Compare(a.node, b.node))
	})
	last := len(clocks) - 1
	if last < 1 || clocks[last].ahead-clocks[0].ahead <= limit {
		return nil
	}
	low, high, decided := referenceClocks(clocks, limit)
	for _, n := range clocks {
		if n.ahead = max(n.ahead-high, 0) + min(n.ahead-low, 0); n.ahead.Abs() > limit && decided {
			list = append(list, clockProblem{[]nodeClock{n}, true, limit})
		}
	}
	if len(list) > 0 {
		return list
	}
	all := slices.Clone(clocks)
	slices.SortFunc(all, func(a, b nodeClock) int { return cmp.Compare(a.node, b.node) })
	return []clockProblem{{all, false, limit}}
}

// referenceClocks returns the range of the clocks that are right. clocks is sorted.
func referenceClocks(clocks []nodeClock, limit time.Duration) (low, high time.Duration, ok bool) {
	n := len(clocks)
	low, high = clocks[(n-1)/2].ahead, clocks[n/2].ahead
	near := 0
	for _, c := range clocks {
		if high-c.ahead <= limit && c.ahead-low <= limit {
			near++
		}
	}
	if 2*near > n {
		return low, high, true
	}
	synchronised := slices.DeleteFunc(slices.Clone(clocks), func(c nodeClock) bool { return c.unsynchronised })
	if len(synchronised) == 0 || slices.ContainsFunc(clocks, func(c nodeClock) bool { return c.unverified }) {
		return 0, 0, false
	}
	low, high = synchronised[0].ahead, synchronised[len(synchronised)-1].ahead
	return low, high, high-low <= limit
}

// clockProblems returns the problems of the clocks of this node and of the nodes that it measures or refuses.
func (d *Daemon) clockProblems() []clockProblem {
	limit := d.config.MaxClockAhead
	clocks := []nodeClock{{node: d.self.Node, unsynchronised: d.unsynchronised()}}
	for _, u := range d.replicator.Unverified(maxUnverified) {
		if u.Ahead > 0 {
			clocks = append(clocks, nodeClock{node: u.Node, ahead: u.Ahead, startedAhead: true, unverified: true})
		}
	}
	// The peers refuse this node if its incarnation is ahead of most of their clocks.
	refusing, peers := 0, 0
	started := time.Duration(int64(d.self.Incarnation) - d.clock.wall().UnixNano())
	for _, c := range d.replicator.ClockOffsets() {
		clocks = append(clocks, nodeClock{node: c.Node, ahead: c.Offset, unsynchronised: c.Unsynchronised})
		if peers++; started-c.Offset > limit {
			refusing++
		}
	}
	clocks[0].startedAhead = peers > 0 && refusing == peers
	return findWrongClocks(clocks, limit)
}

// nodes returns the names of the nodes of a problem.
func (c *clockProblem) nodes() string {
	var list []string
	for _, n := range c.clocks {
		list = append(list, n.node)
	}
	return strings.Join(list, ",")
}
