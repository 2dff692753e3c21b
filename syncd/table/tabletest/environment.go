package tabletest

import (
	"math/rand/v2"
	"time"
)

// environment selects faults and operations of the hosts and of the operators: clocks, copies of maps, clears, drains, digest
// keys and limits of records.
type environment struct {
	// rand is the source of these faults alone, so that they change no other run.
	rand   *rand.Rand
	on     bool // the run has some of them
	clocks bool // machines are suspended, and wall clocks are stepped, also by more than max-clock-ahead
	copies bool // load balancers copy their maps into new ones
	clears bool // load balancers clear their maps
	drains bool // operators drain nodes
	rekeys bool // operators change the digest key
	limits bool // tables have a limit of records
}

// environmentShare is the share of the runs with such faults.
const environmentShare = 0.4

// drawEnvironment draws whether a run has faults of the environment, and which.
func (r *simulation) drawEnvironment(deletesAny bool) {
	e := &r.config.environment
	e.rand = rand.New(rand.NewPCG(r.seed, 0x656e7669726f6e))
	if e.on = e.chance(environmentShare); !e.on {
		return
	}
	e.clocks, e.copies, e.clears = e.chance(0.35), e.chance(0.35) && !deletesAny, e.chance(0.3) && !deletesAny
	e.drains, e.rekeys, e.limits = e.chance(0.35), e.chance(0.35), e.chance(0.25)
	e.drains = e.drains && r.scans // the end of a drain needs a scan
	r.config.resend = r.config.resend || e.rekeys
	if e.clocks {
		r.config.clocks = false // the clocks are about right at the beginning
		r.maxAhead = int64([]time.Duration{time.Second, 10 * time.Second, time.Minute}[e.rand.IntN(3)])
	}
}

// chance returns true with a probability.
func (e *environment) chance(p float64) bool { return e.rand.Float64() < p }

// configureEnvironment sets the options that belong to the environment, the same on all nodes.
func (r *simulation) configureEnvironment() {
	e := &r.config.environment
	if !e.on {
		return
	}
	limit := 2 + e.rand.IntN(2*len(r.keys)+2)
	for _, n := range r.Nodes {
		if e.clocks {
			n.opt.MaxSkew = time.Duration(r.maxAhead / 2)
		}
		if e.limits {
			n.opt.MaxLive = limit
		}
		if e.clears {
			n.opt.HoldClears, n.opt.Refresh, n.leastClear = true, 0, 2
		}
	}
}

// environmentFault injects one of the faults of the environment at times.
func (r *simulation) environmentFault(n *Node) {
	e := &r.config.environment
	if !e.on || !e.chance(0.08) {
		return
	}
	var faults []func(*Node)
	add := func(on bool, fault func(*Node)) {
		if on {
			faults = append(faults, fault)
		}
	}
	add(e.clocks, r.clockFault)
	add(e.copies, r.copyMap)
	add(e.clears, r.clearMap)
	add(e.clears, r.clearStopped)
	add(e.drains && n.runs(), r.drain)
	add(e.rekeys, r.rekey)
	if len(faults) > 0 {
		faults[e.rand.IntN(len(faults))](n)
	}
}

// healEnvironment ends the faults of the environment: clocks are right, all nodes have the same digest key, and tables have
// no limit.
func (w *World) healEnvironment() {
	for _, n := range w.Nodes {
		n.resume()
		if w.maxAhead > 0 {
			n.stepClock(-n.Offset - n.wallStep)
		}
		n.setDigestKey(w.digestKey)
		n.removeLimit()
		if n.Daemon != nil {
			n.Daemon.followClock()
		}
	}
	if w.maxAhead == 0 {
		return
	}
	w.UpdateViews()
	w.PumpAll()              // no message is on its way for so long
	w.Now += 16 * w.maxAhead // every version is in the past then
}
