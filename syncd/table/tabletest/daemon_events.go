package tabletest

import (
	"fmt"

	"mapsync/syncd/table"
)

// Deliver enters the oldest event of one CPU, if it is its turn. The event buffer keeps the order of all
// events except those at about the same time. That order is undefined for events of two CPUs within
// maxDisorder.
func (d *Daemon) Deliver(cpu int) {
	q := d.queue[cpu]
	if len(q) == 0 {
		return
	}
	for _, o := range d.queue {
		if len(o) > 0 && q[0].time > o[0].time+maxDisorder {
			return
		}
	}
	e := q[0]
	d.queue[cpu] = q[1:]
	d.event(&e)
}

// maxDisorder is the longest delay of an event behind a later one of another CPU, in nanoseconds.
const maxDisorder = 5 * TimestampMargin

// event enters an event into the table. It ignores events of a map that is not attached any more. If
// hooks report keys only, it requests a reread instead.
func (d *Daemon) event(e *event) {
	d.n.world.moves++
	if d.m == nil || e.mapID != d.m.ID {
		return
	}
	c := table.Change{Key: d.key(e.key), Time: e.time, CPU: e.cpu, Op: e.op, Context: e.ctx}
	if e.op == table.OpUpdate {
		c.Value = d.bytes(&e.value)
	}
	if d.n.world.keysOnly && e.op == table.OpUpdate {
		d.tab.Update(func(tx *table.Tx) { tx.RequestRereadOfChange(c.Key) })
		return
	}
	if d.n.world.deletedKeys && e.op == table.OpDelete && e.ctx == table.ContextSyscall {
		d.tab.Update(func(tx *table.Tx) { tx.RequestRereadOfDelete(c.Key) })
		return
	}
	before, used, usedBefore := d.Content(e.key), d.usedByPeers(), d.internals().UsedByPeer(d.tab, c.Key)
	o := d.local(&c)
	if e.op != table.OpUpdate && before.Live() {
		d.checkDelete(e, &before, o, usedBefore)
		if e.ctx == table.ContextSyscall && !d.n.opt.DeletesAny {
			d.checkUsedByPeers(used, "a collector")
		}
	}
}

// Content returns what the table holds of a key.
func (d *Daemon) Content(key int) (c Content) {
	d.tab.View(func(tx *table.Tx) { c = d.n.content(tx, key) })
	return c
}

// checkDelete checks which deletes take effect. A collector's delete and an eviction may only delete
// records of this node or of a gone node, or those that a node has handed over, unless a live peer uses the entry. A collector's delete must delete those. With DeletesAny, it may
// delete any record.
//
// It is a check on the table alone, and does not use the model. A violation ends the run.
func (d *Daemon) checkDelete(e *event, before *Content, o table.Outcome, used bool) {
	w := d.n.world
	owner := w.node(before.Owner.Node)
	allowed := before.version != 0 && !used && (owner == d.n.ID || d.gone[owner] || d.handedOver(before))
	waits := d.n.opt.HoldClears && o == table.Unchanged // since before the owner has returned: it is decided later
	after := d.Content(e.key)
	switch deleted := after.Dead && after.version != 0; {
	case e.op == table.OpDelete && (e.ctx != table.ContextSyscall || d.n.opt.DeletesAny):
		return // the data plane may delete any record
	case deleted && !allowed, e.op == table.OpDelete && before.version != 0 && !used && !waits && allowed == (o == table.Restored):
		w.fail(fmt.Errorf("%s: the %s of %s, %v, by %s is %s", d.n.Name, e.op, w.name(e.key), before, e.ctx, o))
	}
}

// local enters a change and counts it as progress if it changed the table.
func (d *Daemon) local(c *table.Change) (o table.Outcome) {
	d.tab.Update(func(tx *table.Tx) { tx.AdvanceClock(d.n.clock()); o = tx.Local(c) })
	if o == table.Accepted || o == table.Restored {
		d.n.world.moves++
	}
	if d.n.world.trace != nil {
		d.n.world.trace("%s %s %s %s by %s: %s", d.n.Name, c.Op, d.n.world.name(d.keyNumber(c.Key)), d.valueText(c.Value), c.Context, o)
	}
	return o
}

// awaitsRecords reports whether peers may still send a record of a key without a record in the table.
// Until then, the daemon cannot decide whether a delete is newer than them. The daemon does not wait for a peer
// that is out of reach, which may have such a record, too.
func (d *Daemon) awaitsRecords(key int) bool {
	if d.state < stateReplicating {
		return true
	}
	return (!d.initialSyncDone || !d.receivedFromAll()) && !d.Content(key).Known
}

// receivedFromAll reports whether each other node, live or not, has sent all its records.
func (d *Daemon) receivedFromAll() bool {
	for i := range d.n.world.Nodes {
		if l := d.Inbound[i]; i != d.n.ID && (l == nil || !l.complete) {
			return false
		}
	}
	return true
}

// unwritten reports whether a daemon still has to write a live record into its map.
func (d *Daemon) unwritten(key int) bool {
	if !d.wasOffered {
		return false
	}
	var r table.Record
	d.tab.View(func(tx *table.Tx) { tx.Get(d.key(key), &r) })
	return r.Dirty && !r.Delete
}

// awaits returns how many events of a key are on their way to a table.
func (d *Daemon) awaits(key int) (n int) {
	for cpu := range d.queue {
		for i := range d.queue[cpu] {
			if d.queue[cpu][i].key == key {
				n++
			}
		}
	}
	return n
}
