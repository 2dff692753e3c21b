package table

import (
	"maps"
	"strings"
)

// A node that is drained hands its records over to its peers. From then on its load balancer may clear its map or stop,
// so the delete of an entry there by bpf(2), or its absence, no longer shows that a session has ended. Peers treat the
// records like those of a node that has left, except that this node still sends them and lists them in its digest.
//
// The drained node keeps such a record without its entry in the kernel map. It marks the record like an evicted one, and
// EndHandover writes the entry again.

// Handover is the extent of the records that a node has handed over: those of incarnations below Incarnation, and those
// of Incarnation with versions up to Version. The zero value is none.
type Handover struct {
	// Incarnation is the incarnation of the node that has completed a drain.
	Incarnation uint64
	// Version is the highest version of a record of that incarnation at the end of the drain. It may be 0.
	Version Version
}

// covered returns the highest version of an owner's records that h covers, or 0 if it covers none of them.
func (h Handover) covered(incarnation uint64) Version {
	switch {
	case incarnation < h.Incarnation:
		return maxVersion
	case incarnation == h.Incarnation:
		return h.Version
	}
	return 0
}

// Handover returns the extent of the records that a node has handed over, as far as SetHandover has set it.
func (tx *Tx) Handover(node string) Handover { return tx.t.owners.handovers[node] }

// BeginHandover hands over all records of this node that it has now, and returns their extent. It visits all records in
// one call.
func (tx *Tx) BeginHandover() Handover {
	t := tx.t
	h := Handover{Incarnation: t.opt.Self.Incarnation}
	for s := firstSlot; s < t.allocated; s++ {
		m := t.meta(s)
		if m.is(flagFree) || !m.live() {
			continue
		}
		// The record would be sent once the interval is over, and would then be one that this node has written later.
		m.flags &^= flagUnsent
		if m.owner == selfID {
			h.Version = max(h.Version, m.version)
		}
	}
	tx.SetHandover(t.opt.Self.Node, h)
	t.clock.lowest, t.clock.lowestSince = h.Version+1, t.now
	return h
}

// LocalAccepted returns Stats.LocalAccepted.
func (tx *Tx) LocalAccepted() uint64 { return tx.t.stats.LocalAccepted }

// SetHandover sets the extent of the records that a node has handed over. Only that node may announce it, because other
// nodes may then delete these records. The zero Handover withdraws it. For this node, callers use it to restore the
// extent after a restart, before the load of the map.
func (tx *Tx) SetHandover(node string, h Handover) {
	o := &tx.t.owners
	if o.handovers[node] == h {
		return
	}
	if h == (Handover{}) {
		delete(o.handovers, node)
	} else {
		o.handovers[strings.Clone(node)] = h
	}
	_, o.drained = o.handovers[tx.t.opt.Self.Node]
	for i := range o.list {
		if w := &o.list[i]; w.Node == node && !w.free() {
			w.handedOver = h.covered(w.Incarnation)
			w.resetLeft()
		}
	}
	tx.t.noteDeparted(func(w *ownerInfo) bool { return w.Node == node && w.handedOver > 0 })
	tx.changed = true // streams send it
}

// EndHandover ends the handover of this node. Entries that the kernel map lacks become dirty, so that the writer restores
// them. It returns their number. The caller calls it after a scan that began after the load balancer's last delete and
// after the rereads that the scan requested: an entry that is found absent later was deleted. now is the wall clock in
// nanoseconds. EndHandover visits all records in one call.
//
// The owner of an entry may have returned meanwhile. In an LRU map that cannot hold all records, the kernel may have
// evicted entries of other nodes, so only this node's own ones return there.
func (tx *Tx) EndHandover(now int64) (restored int) {
	t := tx.t
	ownOnly := t.opt.LRU && t.stats.Live > t.opt.MaxEntries
	for s := firstSlot; s < t.allocated; s++ {
		m := t.meta(s)
		if m.is(flagFree|flagDirty|flagUnversioned) || !m.is(flagEvicted) || !m.live() || (ownOnly && !t.ours(m.owner)) {
			continue
		}
		m.seen = max(m.seen, now) // the event of the delete may arrive late
		m.setCPU(cpuNone)
		t.markDirty(s)
		t.moveTail(s)
		restored++
	}
	if h := tx.Handover(t.opt.Self.Node); h != (Handover{}) {
		t.owners.returned, t.owners.returnedAt = h, now
	}
	tx.SetHandover(t.opt.Self.Node, Handover{})
	return restored
}

// forgetHandovers forgets the handovers of nodes that membership has forgotten.
func (o *owners) forgetHandovers() {
	maps.DeleteFunc(o.handovers, func(node string, _ Handover) bool {
		return !o.seen[node] && node != o.list[selfID].Node
	})
	for i := range o.list {
		if w := &o.list[i]; !w.free() {
			w.handedOver = o.handovers[w.Node].covered(w.Incarnation)
			w.resetLeft()
		}
	}
}

// resetLeft forgets when an owner left if it is back.
func (o *ownerInfo) resetLeft() {
	if !o.departed() && !o.ended {
		o.leftAt = 0
	}
}

// departed reports whether the owner has left the cluster, or has handed over records.
func (o *ownerInfo) departed() bool { return o.gone || o.handedOver > 0 }

// handedOver reports whether the owner of a record has handed the record over.
func (t *Table) handedOver(m *meta) bool {
	return m.version <= t.owners.list[m.owner].handedOver && m.version > 0
}

// drained reports whether this node has handed over its records.
func (t *Table) drained() bool { return t.owners.drained }

// keptWhileDrained reports whether the record stays although the entry has left the kernel map of this drained node: a
// record that was handed over here or on another node, or whose owner has left. Records of live peers are restored in
// the kernel map, and those that this node has written since are ordinary ones.
func (t *Table) keptWhileDrained(m *meta) bool {
	return t.drained() && !m.is(flagUnversioned) && (t.handedOver(m) || t.owners.list[m.owner].gone)
}

// mayBeTimer reports whether the delete of an entry by the data plane may be the end of a timer, on a drained node that has
// handed over the record. The record of an unversioned entry may arrive later.
func (t *Table) mayBeTimer(m *meta) bool {
	return t.opt.HasTimer && (t.keptWhileDrained(m) || t.drained() && m.is(flagUnversioned))
}

// keepDeleted enters a delete by bpf(2) or an absence of a record that stays. The record counts as evicted until
// EndHandover, or until it changes.
func (t *Table) keepDeleted(c *Change, s uint32) Outcome {
	if c.Context == ContextReread && t.predates(c, s) {
		t.requestReread(s)
		return Stale
	}
	t.unhold(s)
	t.markEvicted(c, s)
	t.meta(s).noteEvidence(c)
	t.invalidateReadings(s)
	t.stats.KeptDeletes++
	return Ignored
}

// deltaHandedOver reports whether the owner of a delta has handed the record over.
func (t *Table) deltaHandedOver(d *Delta) bool { return d.Version <= t.owners.list[d.Owner].handedOver }
