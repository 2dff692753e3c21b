package tabletest

import "fmt"

// disturb executes an action that concerns filters or clocks.
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
