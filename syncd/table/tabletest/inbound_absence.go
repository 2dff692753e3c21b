package tabletest

import (
	"fmt"
	"slices"

	"mapsync/syncd/table"
)

// sweepRest deletes records of the peer that the full sync did not include. Records that were merged
// since the subscription stay.
func (l *InboundStream) sweepRest() {
	l.infer(&table.Absence{Before: l.before, Acknowledged: l.merged}, &l.coverage)
}

// infer deletes the records of the peer that an answer lacks and that are not covered, and returns their number. It
// sets the fields Peer and Covered of a.
func (l *InboundStream) infer(a *table.Absence, filtered *table.Coverage) (deleted int) {
	w := l.to.n.world
	a.Covered = func(key, value []byte) bool {
		return filtered.Has(key) || l.to.n.filter(l.to.keyNumber(key)) != filterNone || !l.peerCanHold(value)
	}
	a.Peer = table.Owner{Node: l.to.n.world.Nodes[l.peer].Name, Incarnation: l.inc}
	named := l.to.namedEntries()
	c := l.to.tab.NewCursor(0)
	defer c.Close()
	l.to.tab.Update(func(tx *table.Tx) {
		for more := true; more; {
			var n int
			n, more = tx.Sweep(a, l.to.n.clock(), c, 3)
			deleted += n
		}
	})
	if deleted > 0 {
		w.inferred = true
		l.checkInferred()
	}
	if w.Model != nil {
		w.Model.checkNamed(l, named)
	}
	return deleted
}

// peerCanHold reports whether the map of the peer can hold an entry of this node: a conversion has dropped the others.
func (l *InboundStream) peerCanHold(value []byte) bool {
	return layouts[l.st.from.layout].fits(l.to.value(value))
}

// namedEntries returns the keys of entries of the map of which peers have only named the owner.
func (d *Daemon) namedEntries() (keys []int) {
	d.tab.View(func(tx *table.Tx) {
		var r table.Record
		for key := range d.n.world.keys {
			if tx.Get(d.key(key), &r) && r.Named {
				keys = append(keys, key)
			}
		}
	})
	return keys
}

// named reports whether a node has an entry of a key of which peers have only named the owner.
func (w *World) named(key int) bool {
	return slices.ContainsFunc(w.Up(), func(n *Node) bool { return slices.Contains(n.Daemon.namedEntries(), key) })
}

// ownerLacksNamed reports whether a node has an entry of which peers have only named the owner, and that owner has no record
// of the key: it has lost its map, or has deleted the entry while no daemon ran. The first full sync of the owner's
// incarnation has no sweep, so the comparison finds that.
func (w *World) ownerLacksNamed() bool {
	for _, n := range w.Up() {
		for _, key := range n.Daemon.namedEntries() {
			owner := w.node(n.Daemon.Content(key).Owner.Node)
			if p := w.Nodes[owner].Daemon; p != nil && p.tab != nil {
				if c := p.Content(key); !c.Live() {
					return true
				}
			}
		}
	}
	return false
}

// checkNamed checks the adoption of entries that a sweep has found. A node adopts an entry of which third nodes have named the
// owner once the owner has sent all its records without the key. It must not do so if the owner has sent the record. A key that
// it adopts correctly no longer belongs to another node, as in checkAdoption.
func (m *Model) checkNamed(l *InboundStream, named []int) {
	d, p := l.to, m.world.Nodes[l.peer].Daemon
	for _, key := range named {
		if c := d.Content(key); c.Owner != d.self || c.version != max(table.AdoptedVersion, d.n.opt.AdoptVersion) {
			continue
		}
		k := &m.keys[key]
		// A delete, or an expiry after an eviction, may be undone only if the peer has forgotten it: after its lifetime, because
		// there were too many, because it has restarted, or because all nodes that it has seen had received it. Or the peer cannot
		// send it, because it filters the key.
		switch {
		case k.home == d.n.ID:
		case k.home != l.peer || !k.gone && !k.evicted || p == nil,
			m.world.Now-max(k.when, k.evictedAt) >= int64(p.n.opt.TombstoneTTL), p.stats().ExpiredEarly > 0, k.when <= p.since, k.mayRevert, k.forgotAt > 0,
			p.n.filter(key) == filterKey:
			k.contested = true
		}
		if p == nil || p.self.Incarnation != l.inc || p.epoch != l.epoch {
			continue
		}
		var r table.Record
		p.tab.View(func(tx *table.Tx) {
			if tx.Get(p.key(key), &r) && !r.Delete && sendable(&r) && !r.Undecided && tx.Owner(r.Owner).Node == p.n.Name && r.Position <= l.position {
				m.world.fail(fmt.Errorf("%s adopts %s although its owner %s has sent it", d.n.Name, m.world.name(key), p.n.Name))
			}
		})
	}
}

// inferred reports whether the table has inferred the delete of a key.
func (d *Daemon) inferred(key int) bool {
	var r table.Record
	d.tab.View(func(tx *table.Tx) { tx.Get(d.key(key), &r) })
	return r.Inferred
}

// checkSent checks that the sender of a delete has not inferred it.
func (l *InboundStream) checkSent(x *delta) {
	if from := l.st.from; x.dead && from.tab != nil && from.inferred(x.key) && from.Content(x.key).version == x.version {
		from.n.world.fail(fmt.Errorf("%s sends a delete of %s that it has inferred", from.n.Name, from.n.world.name(x.key)))
	}
}

// noteOwner notes that another node has a record of a key, and whether the entry of this node is now one of which peers have only
// named the owner.
func (d *Daemon) noteOwner(tx *table.Tx, x *delta, exact bool) {
	tx.NoteOwner(d.key(x.key), tx.Intern(x.owner), exact)
	var r table.Record
	if tx.Get(d.key(x.key), &r) && r.Named {
		d.named[x.key] = tx.Owner(r.Owner)
	}
}

// checkNotNamed checks that a node does not send an entry of which peers have only named the owner before that has left, also after a
// conversion.
func (st *stream) checkNotNamed(x *delta) {
	d, w := st.from, st.from.n.world
	if owner, named := d.named[x.key]; named && owner == x.owner && x.version == table.NamedVersion && !x.dead && !d.gone[w.node(owner.Node)] {
		w.fail(fmt.Errorf("%s sends the entry %s, of which peers have only named the owner %s", d.n.Name, w.name(x.key), owner.Node))
	}
}

// checkInferred checks that the peer does not have the records whose deletes were inferred from its silence. Later records
// would correct a wrong delete, but the entry has left the kernel map by then.
func (l *InboundStream) checkInferred() {
	d, w := l.to, l.to.n.world
	p := w.Nodes[l.peer]
	if p.Daemon == nil || p.Daemon.tab == nil || p.Daemon.self.Incarnation != l.inc {
		return
	}
	for key := range w.keys {
		c, x := d.Content(key), p.Daemon.Content(key)
		if d.inferred(key) && p.Daemon.hasDropped(key, c.version, c.Owner) {
			w.fail(fmt.Errorf("%s infers a delete of %s, which the map of %s cannot hold", d.n.Name, w.name(key), p.Name))
		}
		if d.inferred(key) && c.Owner.Node == p.Name && p.Daemon.Inbound[d.n.ID].lacksOwn(key, c.version) {
			w.fail(fmt.Errorf("%s infers a delete of %s from the silence of %s, which has filtered the record", d.n.Name, w.name(key), p.Name))
		}
		// A record that the peer has received or adopted since its answer was missing in it.
		if r := p.Daemon.regained[key]; r.epoch > l.epoch || r.epoch == l.epoch && r.position > l.position {
			continue
		}
		if d.inferred(key) && c.Owner.Node == p.Name && x.Live() && x.version == c.version && x.Owner == c.Owner {
			w.fail(fmt.Errorf("%s infers a delete of %s from the silence of %s, which has %v", d.n.Name, w.name(key), p.Name, x))
		}
	}
}

// noteMerged notes that a daemon has merged a record, and whether it is one of its node that it did not have before.
func (d *Daemon) noteMerged(tx *table.Tx, x *delta, before *Content) {
	delete(d.named, x.key)
	if x.owner.Node == d.n.Name && !x.dead && !before.Live() {
		d.regain(x.key, tx.Head())
	}
}

// adopt lets the table adopt the entries of its map.
func (d *Daemon) adopt(tx *table.Tx) {
	head := tx.Head()
	for tx.Adopt(2) {
	}
	var r table.Record
	for key := range d.n.world.keys {
		if tx.Get(d.key(key), &r) && !r.Delete && r.Position > head {
			d.regain(key, r.Position)
		}
	}
}

// regained is the position of a record of a node that it did not have before, and the epoch of that position.
type regained struct {
	epoch    int
	position uint64
}

// regain notes the position of a record of this node that it did not have before.
func (d *Daemon) regain(key int, position uint64) {
	if d.regained == nil {
		d.regained = make(map[int]regained)
	}
	d.regained[key] = regained{d.epoch, position}
}

// endRepair deletes records of the peer in the buckets that the peer did not resend. The receiver holds
// what the peer holds in these buckets, or newer records.
func (l *InboundStream) endRepair() {
	j := l.repair
	j.found += l.infer(&table.Absence{Before: j.before, Acknowledged: j.merged, Buckets: j.in, DigestID: j.key}, &j.coverage)
	l.repair = nil
	l.to.n.world.repaired += j.found
	l.to.n.world.notef("%s: repair changed %d records from %s", l.to.n.Name, j.found, l.to.n.world.Nodes[l.peer].Name)
}
