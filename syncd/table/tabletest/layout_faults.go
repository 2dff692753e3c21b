package tabletest

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"mapsync/syncd/table"
)

// layoutFaults are changes of the layout of a map, and maps with timers.
type layoutFaults struct {
	// rand is the source of these faults alone, so that they change no other run.
	rand    *rand.Rand
	changes bool // load balancers make their maps again with other layouts
	timers  bool // values have a timer, which load balancers set up
}

// drawLayoutFaults draws whether a run has these faults.
func (r *simulation) drawLayoutFaults() {
	f := &r.config.layouts
	f.rand = rand.New(rand.NewPCG(r.seed, 0x6c61796f757473))
	f.changes, f.timers = f.rand.Float64() < 0.12, f.rand.Float64() < 0.12
}

// configureLayoutFaults configures maps with timers on all nodes. The kernel sets a timer to zero with each update, and no
// node sends it. syncd refuses maps with timers that evict entries if their entries expire after a takeover.
func (r *simulation) configureLayoutFaults() {
	if !r.config.layouts.timers {
		return
	}
	for _, n := range r.Nodes {
		n.configureTimers()
	}
}

// configureTimers gives the values of a map a timer.
func (n *Node) configureTimers() {
	o := &n.opt
	o.HasTimer, n.lru = true, false
	if o.Carried == nil {
		o.Significant, o.Carried = significantMask, carriedMask
	}
	o.Significant, o.Carried = slices.Clone(o.Significant), slices.Clone(o.Carried)
	o.Significant[timerByte], o.Carried[timerByte] = 0, 0
	o.Stable = slices.Repeat([]byte{0xff}, valueSize)
	o.Stable[timerByte] = 0
	if o.TakeoverExpiry > 0 {
		o.Timers = []table.Range{{Offset: timerByte, Size: 1}}
	}
}

// layoutFault changes the layout of a map at times.
func (r *simulation) layoutFault(n *Node) {
	f := &r.config.layouts
	if !f.changes || f.rand.Float64() >= 0.01 || n.suspendedAt != 0 {
		return
	}
	r.stats["layouts"]++
	n.changeLayout((n.layout + 1 + f.rand.IntN(len(layouts)-1)) % len(layouts))
}

// fittingValue returns a value for the next write of a key that the map of a node can hold.
func (n *Node) fittingValue(key int) Value {
	for {
		if v := n.world.Model.NextValue(key); layouts[n.layout].fits(v) {
			return v
		}
	}
}

// setTimer lets a load balancer set up the timer of a value that it writes, in most cases. A change in place keeps the timer.
func (r *simulation) setTimer(v *Value, inPlace bool) {
	f := &r.config.layouts
	if !f.timers || inPlace && v[timerByte] != 0 {
		return
	}
	v[timerByte] = 0
	if f.rand.IntN(4) > 0 {
		v[timerByte] = 1
	}
}

// withTimers returns the keys with a live record of this node whose entries have a timer that the latest complete scan has
// found. Their timers delete the entries.
func (d *Daemon) withTimers() (keys []int) {
	if d.n.opt.Timers == nil || d.m == nil || d.internals().Rereads(d.tab) > 0 {
		return nil
	}
	for key := range d.m.entries {
		e, c := &d.m.entries[key], d.Content(key)
		if e.live && e.value[timerByte] != 0 && e.timerSince < d.scanDone && d.awaits(key) == 0 && c.Live() && c.Owner.Node == d.n.Name {
			keys = append(keys, key)
		}
	}
	return keys
}

// checkTimers checks that the records of withTimers have not expired.
func (d *Daemon) checkTimers(keys []int) {
	for _, key := range keys {
		if c := d.Content(key); !c.Live() {
			d.n.world.fail(fmt.Errorf("%s: the entry %s with a timer expires", d.n.Name, d.n.world.name(key)))
		}
	}
}

// equalBytes reports whether two values agree except for the timer.
func equalBytes(a, b Value) bool {
	a[timerByte] = b[timerByte]
	return a == b
}
