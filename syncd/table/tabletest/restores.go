package tabletest

import (
	"fmt"
	"maps"
	"time"

	"mapsync/syncd/table"
)

// restoring is the state of entries of a node that its map lacks, although nothing has deleted them: a clear or a drain has
// removed them. If a daemon ends before it has restored such an entry, the absence does not count as a delete at the next start.
type restoring struct {
	toRestore  map[int]bool // keys that the present daemon restores
	unrestored map[int]bool // keys that the last daemon had yet to restore
	// cleared has the keys of a clear of all entries while no daemon ran.
	cleared    map[int]bool
	absentFrom int // id of the map of unrestored and cleared
}

// changed records that the load balancer has written or deleted a key.
func (x *restoring) changed(key int) {
	delete(x.toRestore, key)
	delete(x.unrestored, key)
	delete(x.cleared, key)
}

// absent returns the keys of the node's own live records whose entries its map lacks: those that are dirty, or the others.
func (d *Daemon) absent(tx *table.Tx, dirty bool) map[int]bool {
	keys := make(map[int]bool)
	if d.m == nil || d.m != d.n.Map || d.n.lru {
		return keys
	}
	var r table.Record
	for key := range d.m.entries {
		if !d.m.entries[key].live && tx.Get(d.key(key), &r) && !r.Delete && r.Dirty == dirty && r.Version != 0 && tx.Owner(r.Owner).Node == d.n.Name {
			keys[key] = true
		}
	}
	return keys
}

// noteRestored notes which of the entries that were absent the daemon restores.
func (d *Daemon) noteRestored(tx *table.Tx, before map[int]bool) {
	if d.n.toRestore == nil {
		d.n.toRestore = make(map[int]bool)
	}
	for key := range d.absent(tx, true) {
		if before[key] {
			d.n.toRestore[key] = true
		}
	}
}

// restores reports whether entries are being restored.
func (n *Node) restores() bool {
	for key := range n.toRestore {
		if !n.Map.entries[key].live {
			return true
		}
	}
	return false
}

// noteUnrestored notes at the end of a daemon which entries it had yet to restore.
func (n *Node) noteUnrestored() {
	n.unrestored, n.cleared, n.absentFrom = nil, nil, n.Map.ID
	if d := n.Daemon; d.tab != nil && d.m == n.Map {
		d.tab.View(func(tx *table.Tx) {
			n.unrestored = d.absent(tx, true)
			maps.DeleteFunc(n.unrestored, func(key int, _ bool) bool { return !n.toRestore[key] })
		})
	}
	n.toRestore = nil
}

// checkUnrestored checks that the absence of keys does not count as a delete.
func (d *Daemon) checkUnrestored(tx *table.Tx, keys map[int]bool) {
	if d.n.absentFrom != d.n.Map.ID || d.m != d.n.Map || d.n.opt.TakeoverExpiry > 0 { // restored entries expire
		return
	}
	for key := range keys {
		if c := d.n.content(tx, key); c.Dead && !c.expired && c.Owner == d.self {
			d.n.world.fail(fmt.Errorf("%s counts the absence of an entry as a delete, which it should restore: %v", d.n.Name, c))
		}
	}
}

// checkSettled settles deletes, and checks that the entries of a clear stay: those that the last daemon had yet to restore, and
// those of a clear while no daemon ran, if enough of them are decided about together.
func (d *Daemon) checkSettled(tx *table.Tx, settle func(*table.Tx)) {
	if !d.n.opt.HoldClears {
		settle(tx)
		return
	}
	absent := d.absent(tx, false)
	waiting := maps.Clone(absent)
	maps.DeleteFunc(waiting, func(key int, _ bool) bool { return !d.n.cleared[key] })
	settle(tx)
	d.noteRestored(tx, absent)
	d.checkUnrestored(tx, d.n.unrestored)
	if d.n.leastClear > 0 && len(waiting) >= d.n.leastClear {
		d.checkUnrestored(tx, waiting)
	}
}

// clearStopped kills a daemon, lets its load balancer clear the map, and starts the next daemon. Then it lets some time pass for
// the load balancer. All live peers have all records.
func (r *simulation) clearStopped(n *Node) {
	d := n.Daemon
	if !n.runs() || d.m != n.Map || d.state < stateReplicating || !r.config.crash || !r.scans || n.opt.TakeoverExpiry > 0 || n.drained() || !r.awaitPeers(d) {
		return
	}
	if d.SaveMapID(); n.StateFileMap != n.Map.ID || !r.Model.clearIsDetected(n) {
		return
	}
	r.stats["clears while stopped"]++
	var keys map[int]bool
	d.tab.View(func(tx *table.Tx) { keys = d.own(tx) })
	r.noteForgotten(n)
	r.Model.Stopping(n)
	r.Model.mapCleared(n)
	n.Stop()
	r.notef("%s's load balancer clears its map", n.Name)
	n.clearing = true
	for key := range n.Map.entries {
		n.Remove(key, 0, table.ContextSyscall, false, 0)
	}
	n.clearing = false
	r.Model.Stopped(n)
	n.Start()
	n.cleared, n.absentFrom, n.stoppedUntil = keys, n.Map.ID, r.Now+int64(2*time.Minute)
}

// own returns the keys of the live records of the node.
func (d *Daemon) own(tx *table.Tx) map[int]bool {
	keys := make(map[int]bool)
	for key := range d.n.world.keys {
		if c := d.n.content(tx, key); c.Live() && c.Owner.Node == d.n.Name {
			keys[key] = true
		}
	}
	return keys
}

// settleClear lets the time pass after which the deletes of a clear are decided about, and checks that none is entered.
func (r *simulation) settleClear(n *Node, keys map[int]bool) {
	d := n.Daemon
	if n.opt.TakeoverExpiry > 0 {
		return
	}
	r.stats["clears decided"]++
	// Rereads decide about deletes with an uncertain order, long before the end of that time.
	for step := 0; step < 1000 && !d.idle(); step++ {
		d.work(64)
	}
	r.Now += int64(2100 * time.Millisecond)
	d.upkeep()
	for key := range keys {
		if c := d.Content(key); c.Dead && !c.expired {
			r.fail(fmt.Errorf("%s enters the delete of %s, which belongs to a clear", n.Name, r.name(key)))
		}
	}
	r.Now += int64(2100 * time.Millisecond)
	d.upkeep()
	r.crashDuringRestore(n)
}

// crashDuringRestore ends a daemon at times after it has restored some of the entries of a clear or of a drain.
func (r *simulation) crashDuringRestore(n *Node) {
	e := &r.config.environment
	if !r.config.crash || !n.restores() || e.chance(0.3) {
		return
	}
	for range e.rand.IntN(6) {
		n.Daemon.work(1)
	}
	r.stats["crashes during a restore"]++
	r.crash(n)
}
