package tabletest

import "mapsync/syncd/table"

// drain completes a drain of a node, or ends it. After a drain, the load balancer may clear its map.
func (r *simulation) drain(n *Node) {
	d, e := n.Daemon, &r.config.environment
	switch {
	case d.state < stateReplicating || d.m != n.Map:
	case d.ownHandover() != (table.Handover{}):
		d.endDrain()
		r.stats["drains ended"]++
		r.crashDuringRestore(n)
	case r.awaitPeers(d):
		r.completeDrain(n)
		if e.chance(0.6) {
			r.clearDrained(n)
		}
	}
}

// completeDrain hands the records of a node over.
func (r *simulation) completeDrain(n *Node) {
	d := n.Daemon
	r.Model.drained(n)
	d.tab.Update(func(tx *table.Tx) { tx.RemoveBarrier(d.returnBarrier); n.handover = tx.BeginHandover() })
	d.returnBarrier = nil
	r.stats["drains"]++
	r.notef("%s is drained: %+v", n.Name, n.handover)
	r.moves++
}

// clearDrained lets the load balancer of a drained node clear its map.
func (r *simulation) clearDrained(n *Node) {
	r.notef("%s's load balancer clears its map", n.Name)
	for key := range n.Map.entries {
		n.Remove(key, 0, table.ContextSyscall, true, 0)
	}
}

// awaitPeers scans the map and carries the records of a daemon to its live peers, and reports whether the node may hand its
// records over.
func (r *simulation) awaitPeers(d *Daemon) bool {
	d.scan()
	for range 3 {
		for cpu := range d.queue {
			d.Deliver(cpu)
		}
		if d.canHandOver() {
			return true
		}
		for d.phase != phaseFill {
			d.work(1 << 20)
		}
		d.work(1 << 20)
		for i, inc := range d.view.live {
			p := r.Nodes[i].Daemon
			if i == d.n.ID || inc == 0 || p == nil || !p.n.runs() || p.Inbound[d.n.ID] == nil {
				continue
			}
			p.Inbound[d.n.ID].carry(32)
			for more := p.state >= stateSyncing; more; more = p.phase != phaseFill {
				p.work(1 << 20)
			}
		}
	}
	return d.canHandOver()
}

// carry gives both ends of a stream some turns. Messages may be lost.
func (l *InboundStream) carry(turns int) {
	for range turns {
		if l.request(); l.st == nil {
			return
		}
		l.st.serve(16)
		l.receiveNext()
	}
}

// canHandOver reports whether a drain may be complete: at least one peer is live, and all live peers have acknowledged all
// records.
func (d *Daemon) canHandOver() bool {
	if d.alone() || d.eventsPending() || !d.idle() {
		return false
	}
	for i, inc := range d.view.live {
		if i != d.n.ID && inc != 0 && d.ackOf(i, inc) < d.head() {
			return false
		}
	}
	return true
}

// endDrain ends the drain of a node, as drain_end.go of syncd/daemon: entries that a complete scan has not found are restored.
// The state file keeps the handover: see saveReturn.
func (d *Daemon) endDrain() {
	for d.eventsPending() {
		for cpu := range d.queue {
			d.Deliver(cpu)
		}
	}
	if m := d.n.world.Model; m != nil && d.n.opt.DeletesAny {
		m.writtenDuringScan(d)
	}
	d.scan()
	for range 8 {
		for more := true; more; more = d.phase != phaseFill {
			d.work(1 << 20)
		}
	}
	var absent map[int]bool
	d.tab.View(func(tx *table.Tx) { absent = d.absent(tx, false) })
	d.tab.Update(func(tx *table.Tx) { tx.EndHandover(d.n.clock()) })
	d.tab.View(func(tx *table.Tx) { d.noteRestored(tx, absent) })
	d.inStateFile, d.n.StateFileMap, d.initialSyncDone, d.restores = false, 0, false, false
	d.n.world.moves++
	d.n.world.notef("%s ends its drain", d.n.Name)
}

// saveReturn removes the handover from the state file once the map has the entries that the end of the drain has restored.
// Until then, their absence at the next start does not count as a delete.
func (d *Daemon) saveReturn() {
	if d.n.handover == (table.Handover{}) || d.ownHandover() != (table.Handover{}) {
		return
	}
	pending := 0
	d.tab.View(func(tx *table.Tx) {
		if d.returnBarrier == nil {
			d.returnBarrier = tx.AddBarrier()
		}
		pending = tx.PendingWrites(d.returnBarrier) - tx.FailedWrites(d.returnBarrier)
	})
	if pending == 0 {
		d.tab.View(func(tx *table.Tx) { tx.RemoveBarrier(d.returnBarrier) })
		d.returnBarrier, d.n.handover = nil, table.Handover{}
	}
}

// ownHandover returns what the node hands over at present.
func (d *Daemon) ownHandover() (h table.Handover) {
	d.tab.View(func(tx *table.Tx) { h = tx.Handover(d.n.Name) })
	return h
}

// endDrains ends all drains.
func (w *World) endDrains() {
	for _, n := range w.Up() {
		if d := n.Daemon; d.ownHandover() != (table.Handover{}) && d.m == n.Map && d.state == stateReplicating {
			d.endDrain()
		}
	}
}

// restoreHandover passes the extent of the handover in the state file to a new table, before it reads the map.
func (d *Daemon) restoreHandover() {
	if h := d.n.handover; h != (table.Handover{}) {
		d.tab.Update(func(tx *table.Tx) { tx.SetHandover(d.n.Name, h) })
	}
}

// setHandover sets what the peer has handed over: at the beginning of a subscription and with each change.
func (l *InboundStream) setHandover(h table.Handover) {
	d := l.to
	peer := d.n.world.Nodes[l.peer].Name
	d.tab.Update(func(tx *table.Tx) { tx.SetHandover(peer, h) })
	if m := d.n.world.Model; m != nil && h != (table.Handover{}) {
		m.nodeLeft(d, l.peer)
	}
}

// withdrawHandover forgets what the peer has handed over when its stream ends.
func (l *InboundStream) withdrawHandover() {
	if l.to.wasOffered && l.to.Inbound[l.peer] == l {
		peer := l.to.n.world.Nodes[l.peer].Name
		l.to.tab.Update(func(tx *table.Tx) { tx.SetHandover(peer, table.Handover{}) })
	}
}

// sendHandover sends a change of what the node has handed over, and reports whether there was one.
func (st *stream) sendHandover() bool {
	f, h := st.outbound, st.from.ownHandover()
	if f.handover == h {
		return false
	}
	f.handover = h
	return st.send(message{kind: messageHandover, handover: f.handover})
}

// drained records that a node is about to hand its records over. From then on, the table keeps a record whose entry it finds
// absent. It cannot find out that the data plane has deleted the entry before without an event, and decides no more about one that
// it has found absent.
func (m *Model) drained(n *Node) {
	for key := range m.keys {
		k := &m.keys[key]
		c := n.Daemon.Content(key)
		k.contested = k.contested || k.home == n.ID && (k.unreported || k.gone && c.Live())
		k.handedOver = k.handedOver || k.home == n.ID
	}
}

// keptByDrain reports whether a delete on a drained node leaves the record as it is: the deletes of its collector, and those
// that no hook reports.
func (m *Model) keptByDrain(n *Node, key int, ctx table.Context, reported bool) bool {
	k := &m.keys[key]
	switch {
	case !n.drained() || k.home < 0:
		return false
	case k.home != n.ID:
		m.entryMissing(n, key) // also with DeletesAny
		return true
	}
	if n.Daemon == nil || !n.Daemon.wasOffered || !reported || n.Daemon.awaits(key) > 1 || k.unreported {
		k.contested = true
		return true
	}
	c := n.Daemon.Content(key)
	if c.Live() && c.version == 0 && !k.handedOver {
		k.contested = true // the daemon has not received its record yet, and does not know that the entry was written since
		return true
	}
	if c.version == n.opt.AdoptVersion || c.version == table.AdoptedVersion {
		k.contested = true // the records of peers came too late: it is an entry of this incarnation now, which is not handed over
		return true
	}
	return (ctx == table.ContextSyscall || n.opt.HasTimer) && c.Live() && (k.handedOver || n.Daemon.handedOver(&c))
}

// drained reports whether the node has handed over records: by its table, or by the state file if it has none.
func (n *Node) drained() bool {
	if d := n.Daemon; d != nil && d.wasOffered {
		return d.ownHandover() != (table.Handover{})
	}
	return n.handover != (table.Handover{})
}

// hasHandover reports whether a node has handed over records, as far as a daemon has received that.
func (d *Daemon) hasHandover(node int) (yes bool) {
	if d.tab != nil {
		d.tab.View(func(tx *table.Tx) { yes = tx.Handover(d.n.world.Nodes[node].Name) != (table.Handover{}) })
	}
	return yes
}
