package tabletest

import (
	"slices"
	"time"
)

// Focus is a kind of faults that makes up a simulation, beside crashes, broken streams and partitions. In a run with all kinds,
// the faults of one kind seldom meet.
type Focus string

// The kinds of faults of a simulation.
const (
	FocusFilters Focus = "filters" // records are filtered, maps are lost or too small, and machines reboot meanwhile
	FocusDrains  Focus = "drains"  // operators drain nodes, and values may have timers
	FocusRekeys  Focus = "rekeys"  // operators change the digest key
	FocusLayouts Focus = "layouts" // load balancers change the layout of their maps, and records are filtered
	FocusStops   Focus = "stops"   // daemons are stopped cleanly, and maps are lost or replaced
	FocusCopies  Focus = "copies"  // load balancers copy their maps, and tables forget tombstones because there are too many
)

// focus leaves only the faults of one kind, and makes them frequent.
func (r *simulation) focus(on Focus) {
	f := &r.config
	e, l := &environment{rand: f.environment.rand}, &layoutFaults{rand: f.layouts.rand}
	*f = config{steps: f.steps, restartChance: f.restartChance, homes: 1, crash: true, cut: r.coin(), partitions: r.coin(), resend: r.coin(), jumps: r.coin()}
	f.workPercent, f.faultPercent = 5+r.rand.IntN(15), 10+r.rand.IntN(20)
	r.blind = false
	switch on {
	case FocusFilters:
		f.filters, f.lostMap, f.sequences = true, true, []func(*Node){r.reboot}
	case FocusDrains:
		r.scans, e.on, e.drains, l.timers = true, true, true, r.coin()
		f.sequences = []func(*Node){r.drainAfterUses}
	case FocusRekeys:
		f.resend, e.on, e.rekeys = true, true, true
	case FocusLayouts:
		f.filters, l.changes = true, true
		if r.coin() {
			f.sequences = []func(*Node){r.reboot}
		}
	case FocusStops:
		f.stops, f.lostMap, f.newMap = true, r.coin(), r.coin()
	case FocusCopies:
		r.scans, e.on, e.copies, f.sequences = true, true, true, []func(*Node){r.copyBeforeDeletes}
	}
	f.environment, f.layouts = *e, *l
}

// configureFocus sets the options of the nodes that belong to a kind of faults.
func (r *simulation) configureFocus(on Focus) {
	switch on {
	case FocusFilters:
		r.configureSmallMaps()
	case FocusDrains:
		r.configureRefresh()
	case FocusCopies:
		limit := 1 + r.rand.IntN(3)
		for _, n := range r.Nodes {
			n.opt.MaxTombstones = limit
		}
	default:
	}
}

// configureSmallMaps gives some nodes maps that are too small for their own entries.
func (r *simulation) configureSmallMaps() {
	small := r.chance(0.3)
	for _, n := range r.Nodes {
		if n.room, n.lru = 0, false; small && r.coin() {
			n.room = 1 + r.rand.IntN(3)
		}
	}
}

// configureRefresh makes the nodes send changes of volatile bytes alone only after some time, in most runs.
func (r *simulation) configureRefresh() {
	if r.chance(0.3) {
		return
	}
	for _, n := range r.Nodes {
		n.opt.Significant, n.opt.Carried, n.opt.Refresh = significantMask, carriedMask, 10*time.Second
	}
}

// exchange lets all daemons work and exchange records for some rounds. The load balancer of a node works meanwhile.
func (r *simulation) exchange(n *Node, rounds int) {
	for range rounds {
		r.Now += r.rand.Int64N(int64(3 * time.Second))
		r.runAll()
		if r.coin() {
			r.stepLoadBalancer(n)
		}
	}
}

// runAll lets all daemons do their work, and exchange their records.
func (r *simulation) runAll() {
	for _, n := range r.Nodes {
		if n.Daemon != nil {
			n.Daemon.RunUntilIdle()
		}
	}
	r.PumpAll()
}

// undisturbed reports whether all nodes work normally, apart from those that are down.
func (r *simulation) undisturbed() bool {
	return !slices.ContainsFunc(r.Nodes, func(n *Node) bool { return n.frozen || n.suspendedAt != 0 || n.hidden })
}
