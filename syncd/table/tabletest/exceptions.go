package tabletest

import "mapsync/syncd/table"

// This file lists the cases in which the rules guarantee less than the last write of a load balancer,
// with the reasons.

// merged records that a stream delivered a record. An earlier write of the key's load balancer may lose
// against the record if the table receives the write later. The caller holds the table's lock.
func (m *Model) merged(l *InboundStream, tx *table.Tx, key int) {
	d, k := l.to, &m.keys[key]
	if !d.n.Map.entries[key].live {
		m.clearUncertain(d.n)
	}
	if k.home != d.n.ID {
		return
	}
	k.receivedAt = m.world.Now
	var r table.Record
	// A peer that was cut off until the delete was forgotten may have sent an older record already, above all with its
	// first full sync.
	late := k.gone && k.forgotAt > 0 && (m.world.Now-k.forgotAt < syncTimeout || !l.synced)
	if late || (m.pending(d, key) && tx.Get(d.key(key), &r) && r.Dirty) {
		k.raceOpen, k.racedBefore = true, true
	}
}

// adoptedEarly records that a restored record, or a delete of one, may have made a table adopt the entry of its map before the
// initial sync has ended. As in checkAdoption, the entry may have changed while no daemon ran, and then belongs to this node.
func (m *Model) adoptedEarly(d *Daemon, tx *table.Tx, key int) {
	k, c := &m.keys[key], d.n.content(tx, key)
	found := c.version == d.n.opt.AdoptVersion || c.version == d.n.opt.AdoptVersion+1
	k.contested = k.contested || (k.home != d.n.ID && c.Live() && c.Owner == d.self && found)
}

// undecided reports whether a table holds a value that it read just before the last write and has a
// pending reread of the key. By the time in its event, that write came before the read.
func (m *Model) undecided(d *Daemon, key int) bool {
	if !d.wasOffered {
		return false
	}
	k, c := &m.keys[key], d.Content(key)
	if c.Live() == !k.gone && sameValue(c.Value, k.last) {
		return false
	}
	seen, uncertain := d.internals().Uncertain(d.tab, d.key(key))
	since := k.when + d.n.Offset - seen
	return uncertain && since >= 0 && since < TimestampMargin
}

// mapAttached records that a daemon has attached a map. same is true if the state file names it.
func (m *Model) mapAttached(n *Node, how loadKind, same bool) {
	switch {
	case how == loadRefill, how == loadFirst && !same:
		m.mapReplaced(n)
	case how == loadFirst:
		m.absentAtStart(n)
	case how == loadAgain:
		m.absentAfterDetach(n)
	}
}

// mapReplaced records that a daemon treats its node's map as a new one, so that entries deleted there
// may return. If clocks differ, older records may return, too: of two earlier incarnations the first
// may have the clock that is ahead. A record that a peer sends and that equals the map's entry counts
// as a record of an earlier incarnation.
func (m *Model) mapReplaced(n *Node) {
	m.deletesLost(n) // events of the former map are ignored
	ahead := m.skewed && n.incarnations > 2
	for i := range m.keys {
		if k := &m.keys[i]; k.home == n.ID && (k.gone || ahead) {
			k.mayRevert, k.racedBefore = true, k.racedBefore || ahead
		}
	}
}

// LostMap records that a node's map is lost. The records of the daemon stay, unless an event arrives
// later. That event may be older than a change in place that the daemon has read, and the key cannot be
// reread. Records that only the map held are lost with it.
func (m *Model) LostMap(n *Node) {
	for i := range m.keys {
		k := &m.keys[i]
		if k.home != n.ID {
			continue
		}
		var r table.Record
		held := false
		if !n.holdsUnversioned(i, k.refilled) {
			k.refilled = 0
		}
		if n.Daemon != nil && n.Daemon.wasOffered && n.Daemon.awaits(i) == 0 {
			n.Daemon.tab.View(func(tx *table.Tx) { held = tx.Get(n.Daemon.key(i), &r) && !r.Delete })
			if held == !k.gone && (!held || sameValue(n.Daemon.value(r.Value), k.last)) {
				continue
			}
		}
		k.mayRevert = true
	}
}

// holdsUnversioned reports whether the table of a node has an unversioned record with the value of a write. It outlives a map of
// another layout.
func (n *Node) holdsUnversioned(key, number int) bool {
	if n.Daemon == nil || !n.Daemon.wasOffered {
		return false
	}
	c := n.Daemon.Content(key)
	return c.Live() && c.version == 0 && c.Value.Number() == number
}

// Stopped records that a daemon ends. Records that its map does not hold at that time are lost with
// it. The map's entry is older in that case, because only the daemon can have written it. The next
// daemon treats the entry as a change by the load balancer. It wins over newer records of peers that
// were out of reach so far.
func (m *Model) Stopped(n *Node) {
	m.deletesLost(n)
	for i := range m.keys {
		k, e := &m.keys[i], &n.Map.entries[i]
		if k.home != n.ID {
			continue
		}
		k.refilled = 0
		// The map was lost before, and the new one has not received the record from a peer that was out of
		// reach. It is another matter if the daemon knows that the map lacks the record. For the next daemon the key was deleted or evicted.
		if k.mayRevert && !e.live && !k.gone && n.StateFileMap == n.Map.ID && !n.lacking[i] {
			k.raceOpen, k.racedBefore = true, true
		}
		// In an LRU map, an absent key counts as evicted at the next start.
		k.mayRevert = k.mayRevert || k.gone && n.lru && !n.opt.EvictionDeletes
		// The state file still has the key as one whose absence means nothing.
		k.mayRevert = k.mayRevert || k.gone && n.unheldKeys&(1<<(i%64)) != 0
		// The next daemon keeps what the node has handed over, also if a packet has ended it meanwhile.
		k.mayRevert = k.mayRevert || (k.gone && n.handover != (table.Handover{}))
		if e.live == k.gone || (e.live && !sameValue(e.value, k.last)) {
			k.mayRevert = true
			if e.live {
				k.refilled = e.value.Number()
			}
		}
	}
}

// noteForgotten records which deletes a table has forgotten while a node that has not received them is
// away. A node that this incarnation has never seen counts, too: without expected-peers, a daemon that
// restarts while it is cut off has no record of that node. If lapsed is set, some deletes were forgotten at
// the end of their lifetime, or because there were too many. Then it also covers nodes that are live and
// have not received them: the received position of the node decides.
func (m *Model) noteForgotten(d *Daemon, lapsed bool) {
	away := false
	for i, inc := range d.view.live {
		away = away || (i != d.n.ID && inc == 0) || (lapsed && m.world.Nodes[i].lacks(d))
	}
	if away || lapsed {
		m.deletesLost(d.n)
	}
	if !away {
		return
	}
	for i := range m.keys {
		if k := &m.keys[i]; k.home == d.n.ID && k.gone {
			if c := d.Content(i); !c.Known {
				k.forgotAt = m.world.Now
			}
		}
	}
}

// lacks reports whether a node has a table that has not received all the deletes which the table of a
// daemon has forgotten, or has filtered some.
func (n *Node) lacks(d *Daemon) bool {
	if n == d.n || n.Daemon == nil || !n.Daemon.wasOffered {
		return false
	}
	l := n.Daemon.Inbound[d.n.ID]
	return l == nil || l.inc != d.self.Incarnation || l.position < d.floor() || l.unheld
}

// noteOverflow records which deletes a table has forgotten because there were too many, before it had
// received all records. The table then accepts older records of those keys from peers.
func (m *Model) noteOverflow(d *Daemon) {
	for i := range m.keys {
		if k := &m.keys[i]; k.home == d.n.ID && k.gone {
			if c := d.Content(i); !c.Dead || c.version == 0 {
				k.raceOpen, k.racedBefore = true, true
			}
		}
	}
}

// strictness returns how strict the final check of a key is. The words count in the totals of a
// simulation.
func (m *Model) strictness(key int) string {
	switch k := &m.keys[key]; {
	case k.home < 0:
		return "shared"
	case k.contested:
		return "contested"
	case k.raceOpen || (k.mayRevert && k.racedBefore):
		return "race"
	case k.mayRevert:
		return "may revert"
	case k.evicted:
		return "evicted"
	default:
		return "exact"
	}
}
