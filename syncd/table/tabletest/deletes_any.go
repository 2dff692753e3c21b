package tabletest

import (
	"slices"

	"mapsync/syncd/table"
)

// Deletes of another node's keys that replicate: see table.Options.DeletesAny. The model has the outcome of
// such a delete if its event shows that it came after the last write of the key's home.

// deletedElsewhere records that a node other than the home deleted a key.
func (m *Model) deletedElsewhere(n *Node, key int, reported bool) {
	k := &m.keys[key]
	home := m.world.Nodes[k.home]
	switch {
	case m.skewed, m.world.maxAhead > 0, !reported, home.Daemon == nil, n.Daemon.view.live[k.home] == 0, m.closeToLast(k):
		k.contested = true
	case n.opt.Refresh > 0:
		// The home may refresh the key before it receives the delete, which counts as a later write.
		k.contested = true
	case k.gone, k.unreported, home.Daemon.awaits(key) > 0, !m.holdsLast(n, key), !m.holdsLast(home, key),
		n.Daemon.Content(key).version != home.Daemon.Content(key).version:
		// The last write may be on its way, or a write of the daemon, and may come later. So may a scan that
		// finds a change of volatile bytes at the home. Of two records of the home, a reread may find the first.
		k.contested = true
	default:
		m.numbers++
		k.gone, k.deleted, k.at, k.when, k.deletedBy = true, m.numbers, m.numbers, m.world.Now, n.ID+1
	}
}

// writtenDuringScan records that a drain ends with a scan while the daemon has yet to report its latest writes. The scan does not
// look for these entries. A delete of one of them that no hook reports is found later, and counts then.
func (m *Model) writtenDuringScan(d *Daemon) {
	for i := range d.batch {
		w := &d.batch[i]
		if k := &m.keys[w.key]; w.done && w.err == nil && !w.dead && k.home != d.n.ID && !d.m.entries[w.key].live {
			k.contested = true
		}
	}
}

// holdsLast reports whether the table of a node has the last write of a key, without a pending write to the map.
// At the home, the bytes that do not count as a difference must be equal, too.
func (m *Model) holdsLast(n *Node, key int) bool {
	var r table.Record
	has := false
	if !n.Daemon.wasOffered {
		return false
	}
	n.Daemon.tab.View(func(tx *table.Tx) {
		has = tx.Get(n.Daemon.key(key), &r) && !r.Delete && !r.Dirty && sameValue(n.Daemon.value(r.Value), m.keys[key].last)
		has = has && (n.ID != m.keys[key].home || equalBytes(n.Daemon.value(r.Value), n.Map.entries[key].value))
	})
	return has
}

// rewrittenAfterDelete records that the home writes a key that another node may have deleted. If the delete has
// not reached the map of the home, either of the two may win: the write may change nothing and then has no
// version of its own, the daemon may end before it receives the event, or it may write the delete after that.
func (m *Model) rewrittenAfterDelete(key int, gone bool) {
	k := &m.keys[key]
	k.rewritten = k.rewritten || k.deletedBy > 0
	// A daemon that reads the map afterwards cannot decide whether such a write came after the delete.
	d := m.world.Nodes[k.home].Daemon
	k.contested = k.contested || (k.rewritten && !gone && (d == nil || !d.wasOffered))
	k.contested = k.contested || (k.deletedBy > 0 && (m.closeToLast(k) || !m.homeHasDelete(key)))
	k.deletedBy = 0
}

// homeHasDelete reports whether the home of a key has received the delete of the key and written it.
func (m *Model) homeHasDelete(key int) bool {
	d := m.world.Nodes[m.keys[key].home].Daemon
	if d == nil || !d.wasOffered {
		return false
	}
	var r table.Record
	known := false
	d.tab.View(func(tx *table.Tx) { known = tx.Get(d.key(key), &r) })
	return known && r.Delete && r.Version != 0 && !r.Dirty
}

// Stopping records that a daemon is about to end. If its node wrote a key after another node's delete, and the daemon has
// not received that write, or a node has not received its record, the next daemon cannot detect that the delete was in
// the map before the write.
func (m *Model) Stopping(n *Node) {
	if n.Daemon != nil && n.Daemon.m != n.Map {
		m.unreadMap(n)
	}
	for i := range m.keys {
		k := &m.keys[i]
		if k.home != n.ID || !k.rewritten || n.Daemon == nil {
			continue
		}
		if n.Daemon.wasOffered {
			c := n.Daemon.Content(i)
			k.rewritten = m.isDeletedElsewhere(i) || (!c.Live() && (!c.Known || c.Owner.Node != n.Daemon.self.Node))
		}
		k.contested = k.contested || (k.rewritten && !k.gone)
	}
}

// isDeletedElsewhere reports whether a node has a delete of a key by a node other than its home.
func (m *Model) isDeletedElsewhere(key int) bool {
	home := m.world.Nodes[m.keys[key].home]
	return slices.ContainsFunc(m.world.Nodes, func(n *Node) bool {
		if n == home || n.Daemon == nil || !n.Daemon.wasOffered {
			return false
		}
		c := n.Daemon.Content(key)
		return c.Dead && c.Owner.Node != home.Name
	})
}

// deletesLost records that the daemon of a node has ended, or has forgotten tombstones. Deletes of other nodes'
// keys that it no longer has are lost, unless the home has received them.
func (m *Model) deletesLost(n *Node) {
	for key := range m.keys {
		k := &m.keys[key]
		if k.deletedBy != n.ID+1 || m.homeHasDelete(key) {
			continue
		}
		var c Content
		if n.Daemon != nil {
			c = n.Daemon.Content(key)
		}
		k.contested = k.contested || !c.Dead
	}
}
