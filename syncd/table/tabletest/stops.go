package tabletest

import (
	"fmt"

	"mapsync/syncd/table"
)

// configureStops makes the nodes save their records at some of their stops, if they have any.
func (r *simulation) configureStops() {
	r.config.stops = true
	for _, n := range r.Nodes {
		n.opt.AdoptVersion = table.RestoredVersions
	}
}

// stopAll stops all daemons. Most of the stops are clean.
func (r *simulation) stopAll() {
	r.stats["stops of all"]++
	for _, n := range r.Nodes {
		if n.Daemon == nil {
			continue
		}
		r.noteForgotten(n)
		r.Model.Stopping(n)
		if r.chance(0.8) {
			n.saveStop()
		}
		n.Stop()
		r.Model.Stopped(n)
	}
}

// saveStop makes the next stop of the daemon a clean one.
func (n *Node) saveStop() {
	if d := n.Daemon; d.m != nil && d.wasOffered && d.loaded == d.m.ID {
		d.tab.View(func(tx *table.Tx) { n.stop = tx.Stop(1) })
		n.stopMap, n.clean = d.m.ID, true
		n.world.notef("%s saves %d records", n.Name, n.stop.Len())
	}
}

// takeStop returns what the last daemon has saved of the map, and removes it: a daemon takes it before it offers the map to
// peers.
func (n *Node) takeStop() (s table.Stop) {
	if n.stopMap == n.Map.ID {
		s = n.stop
	}
	n.Daemon.afterClean, n.clean = n.clean, false
	n.stop, n.stopMap = table.Stop{}, 0
	return s
}

// hasRestored reports whether a record was restored, and its owner is another node. A daemon that has an entry of its key
// adopts the entry.
func (d *Daemon) hasRestored(tx *table.Tx, r *table.Record) bool {
	return r.Version < d.n.opt.AdoptVersion && tx.Owner(r.Owner).Node != d.n.Name
}

// checkRestores checks that a daemon restores no records at its adoption after its node was killed: a killed daemon leaves no file.
func (d *Daemon) checkRestores() {
	for key := range d.n.world.keys {
		if !d.afterClean && d.internals().Restores(d.tab, d.key(key)) {
			d.n.world.fail(fmt.Errorf("%s restores the record of %s after a kill", d.n.Name, d.n.world.name(key)))
		}
	}
}
