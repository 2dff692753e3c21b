package tabletest

import (
	"fmt"

	"mapsync/syncd/table"
)

// disturb executes an action that concerns filters, clocks, layouts, digest keys or timers.
func (w *exploreWorld) disturb(n *Node, k exploreAction) {
	switch k {
	case actFilter:
		if n.filters == nil {
			n.filters = []filter{filterValue}
		} else {
			n.endFilters()
		}
	case actClock:
		if n.wallStep == 0 {
			n.stepClock(3 * w.maxAhead)
		} else {
			n.stepClock(-n.wallStep)
		}
	case actLayout:
		n.changeLayout(2 - n.layout) // to another size and back
	case actRekey:
		w.digestKey = []byte("k")
		n.setDigestKey(w.digestKey)
	case actRepair:
		for _, l := range n.Daemon.Inbound {
			if l != nil && l.state == inboundServed {
				l.requestRepair(table.AllBuckets())
				w.filtered = true
			}
		}
	case actExpire:
		w.Now += int64(2 * n.opt.TakeoverExpiry)
		n.Daemon.scan()
		n.Daemon.expireTakenOver()
	case actFollow:
		n.Daemon.followClock()
	case actRepeat:
		for _, l := range n.Daemon.Inbound {
			if l != nil && l.repeatAt != 0 {
				l.repeatAt = w.Now
				l.request()
			}
		}
	}
}

// nextValue returns a value for the next write of the key by a load balancer, with a timer if values have one.
func (w *exploreWorld) nextValue(n *Node) Value {
	v := n.fittingValue(0)
	if w.conf.timers {
		v[timerByte] = 1
	}
	return v
}

// verify lets the cluster come to rest and returns the first error in its state. The world cannot be
// used for further actions.
func (w *exploreWorld) verify() error {
	w.Heal()
	if w.conf.bare > 0 {
		w.Nodes[w.conf.bare].hidden = true
	}
	err := w.Converge()
	for range 4 {
		if err == nil || w.err != nil || !w.filtered {
			break
		}
		w.Compare()
		w.PumpAll()
		err = w.Converge()
	}
	if err != nil {
		return err
	}
	for _, n := range w.Up() {
		n.Daemon.internals().Check(w, n.Daemon.tab)
	}
	if up := w.Up(); len(up) > 0 {
		c := up[0].Daemon.Content(0)
		return w.Model.Check(0, &c)
	}
	return nil
}

// Helper does nothing. With Fatalf, it implements Checker.
func (w *exploreWorld) Helper() {}

// Fatalf records a violated invariant as the error of the world.
func (w *exploreWorld) Fatalf(format string, args ...any) { w.fail(fmt.Errorf(format, args...)) }
