package tabletest

import (
	"fmt"
	"time"

	"mapsync/syncd/table"
)

// clocks is the state of the clocks of a node. Node.Offset belongs to the clock of the table, which follows the monotonic
// clock. See clock_step.go of syncd/daemon.
type clocks struct {
	wallStep    int64  // the wall clock minus the clock of the table, in ns
	suspendedAt int64  // the time at which the machine was suspended; 0: it runs
	incarnation uint64 // of the last daemon, as in state-dir
}

// wall returns the wall clock of the node in nanoseconds.
func (n *Node) wall() int64 { return n.clock() + n.wallStep }

// clockFault suspends or resumes a machine, or steps its wall clock.
func (r *simulation) clockFault(n *Node) {
	e := &r.config.environment
	switch x := e.rand.IntN(4); {
	case n.suspendedAt != 0:
		n.resume()
	case x == 0:
		n.suspendedAt = r.Now
	case x == 1:
		n.stepClock(-n.Offset - n.wallStep)
	default:
		n.stepClock(e.rand.Int64N(6*r.maxAhead) - 3*r.maxAhead)
	}
	r.stats["clock faults"]++
	r.notef("%s suspended: %v, wall clock %v ahead", n.Name, n.suspendedAt != 0, time.Duration(n.Offset+n.wallStep))
}

// resume resumes a machine that was suspended. Its monotonic clock has not advanced.
func (n *Node) resume() {
	if n.suspendedAt == 0 {
		return
	}
	paused := n.world.Now - n.suspendedAt
	n.suspendedAt = 0
	n.Offset -= paused
	n.wallStep += paused
}

// stepClock steps the wall clock of a node.
func (n *Node) stepClock(by int64) { n.wallStep += by }

// beginIncarnation makes the clock of the table the wall clock, and returns the incarnation of the next daemon.
func (n *Node) beginIncarnation() uint64 {
	n.resume()
	n.Offset, n.wallStep = n.Offset+n.wallStep, 0
	inc := uint64(n.clock())
	if ahead := n.incarnation - inc; n.world.maxAhead > 0 && n.incarnation >= inc && ahead <= uint64(n.world.maxAhead) {
		inc = n.incarnation + 1
	}
	n.incarnation = inc
	return inc
}

// followClock passes a step of the wall clock to the table, as syncd does each second.
func (d *Daemon) followClock() {
	n := d.n
	if d.tab == nil || d.wallStep == n.wallStep {
		return
	}
	stepped := n.wallStep - d.wallStep
	d.wallStep = n.wallStep
	withdraw := false
	d.tab.Update(func(tx *table.Tx) {
		withdraw = tx.FollowClock(n.clock(), n.wallStep)
		if max(stepped, -stepped) > longPause {
			tx.PostponeTakeover(n.clock())
		}
		if withdraw {
			n.world.filtered = true // peers with a wrong clock have not refused the former versions
		}
	})
	if d.withdraw(); withdraw {
		d.checkWithdrawn()
	}
	for _, l := range d.Inbound {
		if l != nil && l.repeatAt != 0 {
			l.repeatAt = n.world.Now
		}
	}
	n.world.moves++
}

// longPause is the step of the clock in nanoseconds above which uses of entries may have been missed.
const longPause = int64(10 * time.Second)

// withdraw gives new versions to records that peers have refused.
func (d *Daemon) withdraw() {
	c := d.tab.NewCursor(0)
	defer c.Close()
	for more := true; more; {
		d.tab.Update(func(tx *table.Tx) { more = tx.Withdraw(d.n.clock(), c, 3) })
	}
}

// checkWithdrawn checks that no record of this node is too far ahead after a pass of withdraw.
func (d *Daemon) checkWithdrawn() {
	w := d.n.world
	for key := range w.keys {
		if c := d.Content(key); w.maxAhead > 0 && c.Owner == d.self && int64(c.version) > d.n.wall()+w.maxAhead {
			w.fail(fmt.Errorf("%s: the version of %s, %v, is still too far ahead", d.n.Name, w.name(key), c))
		}
	}
}
