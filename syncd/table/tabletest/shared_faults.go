package tabletest

import (
	"fmt"
	"math/rand/v2"
	"time"

	"mapsync/syncd/table"
)

// sharedFaults are settings and faults that decide about keys besides the writes of load balancers. The model cannot
// predict the last state of a key then, so they exist only in runs whose keys have no home: the nodes must agree.
type sharedFaults struct {
	// rand is the source of these faults alone, so that they change no other run.
	rand    *rand.Rand
	on      bool // the run has such faults
	removal bool // the operator removes records
	storms  bool // daemons restart often
	resizes bool // load balancers replace maps by larger or smaller ones, or of another type
	expiry  bool // entries that were taken over expire
	uses    bool // load balancers use entries without a change
}

// sharedFaultShare is the share of the runs with shared faults.
const sharedFaultShare = 0.2

// drawSharedFaults draws whether a run has shared faults, and which.
func (r *simulation) drawSharedFaults() {
	f := &r.config.shared
	f.rand = rand.New(rand.NewPCG(r.seed, 0x736861726564))
	if f.on = f.chance(sharedFaultShare); !f.on {
		return
	}
	f.removal, f.storms, f.resizes, f.expiry = f.chance(0.5), f.chance(0.3), f.chance(0.5), f.chance(0.5)
	f.uses = f.expiry && f.chance(0.5)
	r.config.homes = 0
	// Only a scan shows that an entry has not changed.
	r.scans = r.scans || f.expiry
}

// chance returns true with a probability.
func (f *sharedFaults) chance(p float64) bool { return f.rand.Float64() < p }

// one returns one of some durations.
func (f *sharedFaults) one(all ...time.Duration) time.Duration { return all[f.rand.IntN(len(all))] }

// configureSharedFaults sets the options that belong to the shared faults, the same on all nodes.
func (r *simulation) configureSharedFaults() {
	f := &r.config.shared
	if !f.on {
		return
	}
	var takeover, skew, lifetime time.Duration
	if f.expiry {
		takeover = f.one(100*time.Millisecond, 3*time.Second, 20*time.Second)
	}
	if f.chance(0.5) {
		skew = f.one(time.Millisecond, time.Second, 30*time.Second)
	}
	if f.chance(0.3) {
		lifetime = f.one(2*time.Second, 10*time.Second)
	}
	for _, n := range r.Nodes {
		n.opt.TakeoverExpiry, n.opt.MaxSkew = takeover, skew
		if f.uses {
			n.uses = make([]int64, len(r.keys))
		}
		if lifetime > 0 {
			n.opt.TombstoneTTL = lifetime
		}
		n.lru = n.lru && !f.expiry // syncd refuses this setting for LRU maps
	}
}

// sharedFault injects one of the shared faults at times.
func (r *simulation) sharedFault(n *Node) {
	f := &r.config.shared
	if f.uses && f.chance(0.3) {
		n.use(f.rand.IntN(len(r.keys)))
	}
	if !f.on || !f.chance(0.05) {
		return
	}
	switch f.rand.IntN(3) {
	case 0:
		if f.storms {
			r.restart(n)
		}
	case 1:
		if f.resizes && n.Daemon != nil {
			r.resize(n)
		}
	default:
		if f.removal && n.Daemon != nil && n.Daemon.wasOffered {
			r.removeRecords(n)
		}
	}
}

// restart ends a daemon that runs, and starts the next one at once.
func (r *simulation) restart(n *Node) {
	r.stats["restarts"]++
	if n.Daemon != nil {
		r.crash(n)
	}
	r.setClock(n)
	n.Start()
}

// resize replaces the map of a node by one with another size or, at times, another type.
func (r *simulation) resize(n *Node) {
	f := &r.config.shared
	r.stats["resizes"]++
	n.room = f.rand.IntN(len(r.keys) + 2)
	if !n.opt.DeletesAny && !f.expiry && f.chance(0.5) {
		n.lru = !n.lru
	}
	r.replace(n)
}

// removeRecords lets the operator of a node remove records, in several calls.
func (r *simulation) removeRecords(n *Node) {
	f, d := &r.config.shared, n.Daemon
	sel := &table.Selection{Orphaned: f.chance(0.5), Failed: f.chance(0.5)}
	if f.chance(0.5) {
		sel.Owner = r.Nodes[f.rand.IntN(len(r.Nodes))].Name
	}
	c := d.tab.NewCursor(0)
	defer c.Close()
	removed := 0
	for more := true; more; {
		d.tab.Update(func(tx *table.Tx) {
			var count int
			count, more = tx.Remove(sel, n.clock(), c, 3)
			removed += count
		})
	}
	r.stats["removed"] += removed
	r.moves += removed
	r.notef("%s removes %d records: %s", n.Name, removed, fmt.Sprintf("%+v", *sel))
}
