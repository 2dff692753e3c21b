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
		f.filters, f.lostMap, f.reboots = true, true, true
	case FocusDrains:
		r.scans, e.on, e.drains, l.timers = true, true, true, r.coin()
	case FocusRekeys:
		f.resend, e.on, e.rekeys = true, true, true
	case FocusLayouts:
		f.filters, f.reboots, l.changes = true, r.coin(), true
	case FocusStops:
		f.stops, f.lostMap, f.newMap = true, r.coin(), r.coin()
	}
	f.environment, f.layouts = *e, *l
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

// reboot reboots a machine whose map is lost, and that filters records or has too small a map. Its daemon exchanges records with
// the others, and is then killed. The filters have ended when the next one starts.
func (r *simulation) reboot(n *Node) {
	if slices.ContainsFunc(r.Nodes, func(n *Node) bool { return n.frozen || n.suspendedAt != 0 || n.hidden }) || n.Daemon == nil {
		return
	}
	r.stats["reboots"]++
	r.crash(n)
	if !n.clean {
		r.loseMap(n)
	}
	room := n.room
	switch r.rand.IntN(4) {
	case 0:
		n.room = 1 + r.rand.IntN(2)
		for range 3 {
			r.stepLoadBalancer(n)
		}
	case 1:
		n.filtering = filtering{stoppedAt: n.clock() - r.rand.Int64N(int64(time.Minute))}
	default:
		n.filters = make([]filter, len(r.keys))
		for i := range n.filters {
			n.filters[i] = filter(r.rand.IntN(3))
		}
	}
	r.Now += r.tick + 1 // each incarnation is another one
	n.Start()
	for range r.rand.IntN(5) {
		r.Now += r.rand.Int64N(int64(3 * time.Second))
		for _, n := range r.Nodes {
			if n.Daemon != nil {
				n.Daemon.RunUntilIdle()
			}
		}
		r.PumpAll()
		if r.coin() {
			r.stepLoadBalancer(n)
		}
	}
	n.Daemon.SaveMapID()
	r.notef("%s is killed, and its filters end", n.Name)
	r.noteForgotten(n)
	r.Model.Stopping(n)
	n.Stop()
	r.Model.Stopped(n)
	n.filtering, n.room = filtering{}, room
	r.Now += r.tick + 1
	n.Start()
}
