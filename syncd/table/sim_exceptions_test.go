package table

// This file lists the cases in which the rules guarantee less than the last write of a load balancer,
// with the reasons.

// merged records that a stream delivered a record. An earlier write of the key's load balancer may
// lose against the record if the table receives the write later.
func (m *simModel) merged(d *simDaemon, tx *Tx, key int) {
	k := &m.keys[key]
	if k.home != d.n.id {
		return
	}
	k.receivedAt = m.sim.now
	var r Record
	// A peer that was cut off for longer than simSyncTimeout may have sent an older record already.
	late := k.gone && k.forgotAt > 0 && m.sim.now-k.forgotAt < simSyncTimeout
	if late || (m.pending(d, key) && tx.Get(m.sim.keys[key][:], &r) && r.Dirty) {
		k.raceOpen, k.racedBefore = true, true
	}
}

// undecided reports whether a table holds a value that it read just before the last write and has a
// pending reread of the key. By the time in its event, that write came before the read.
func (m *simModel) undecided(d *simDaemon, key int) bool {
	if !d.wasOffered {
		return false
	}
	k, c := &m.keys[key], d.content(key)
	if c.live() == !k.gone && sameValue(c.value, k.last) {
		return false
	}
	seen, uncertain := d.internals().Uncertain(d.tab, m.sim.keys[key][:])
	since := k.when + d.n.offset - seen
	return uncertain && since >= 0 && since < timestampMargin
}

// mapReplaced records that a daemon treats its node's map as a new one, so that entries deleted there
// may return. If clocks differ, older records may return, too: of two earlier incarnations the first
// may have the clock that is ahead. A record that a peer sends and that equals the map's entry counts
// as a record of an earlier incarnation.
func (m *simModel) mapReplaced(n *simNode) {
	ahead := m.skewed && n.incarnations > 2
	for i := range m.keys {
		if k := &m.keys[i]; k.home == n.id && (k.gone || ahead) {
			k.mayRevert, k.racedBefore = true, k.racedBefore || ahead
		}
	}
}

// lostMap records that a node's map is lost. The records of the daemon stay, unless an event arrives
// later. That event may be older than a change in place that the daemon has read, and the key cannot
// be reread.
func (m *simModel) lostMap(n *simNode) {
	for i := range m.keys {
		k := &m.keys[i]
		if k.home != n.id {
			continue
		}
		var r Record
		held := false
		k.refilled = 0
		if n.d != nil && n.d.wasOffered && n.d.awaits(i) == 0 {
			n.d.tab.View(func(tx *Tx) { held = tx.Get(m.sim.keys[i][:], &r) && !r.Delete })
			if held == !k.gone && (!held || sameValue(entryValue(r.Value), k.last)) {
				continue
			}
		}
		k.mayRevert = true
	}
}

// stopped records that a daemon ends. Records that its map does not hold at that time are lost with
// it. The map's entry is older in that case, because only the daemon can have written it. The next
// daemon treats the entry as a change by the load balancer. It wins over newer records of peers that
// were out of reach so far.
func (m *simModel) stopped(n *simNode) {
	for i := range m.keys {
		k, e := &m.keys[i], &n.lb.entries[i]
		if k.home != n.id {
			continue
		}
		k.refilled = 0
		if e.live == k.gone || (e.live && !sameValue(e.value, k.last)) {
			k.mayRevert = true
			if e.live {
				k.refilled = e.value.number()
			}
		}
	}
}

// noteForgotten records which deletes a table has forgotten while a node that has not received them is
// away. If lapsed is set, some deletes were forgotten at the end of their lifetime. Then it also
// covers nodes that are live and have not received them: the received position of the node decides.
func (m *simModel) noteForgotten(d *simDaemon, lapsed bool) {
	away := false
	for i, inc := range d.view.live {
		away = away || (d.everLive[i] && inc == 0) || (lapsed && m.sim.nodes[i].lacks(d))
	}
	if !away {
		return
	}
	for i := range m.keys {
		if k := &m.keys[i]; k.home == d.n.id && k.gone {
			if c := d.content(i); !c.known {
				k.forgotAt = m.sim.now
			}
		}
	}
}

// lacks reports whether a node has a table that has not received all the deletes which the table of a
// daemon has forgotten.
func (n *simNode) lacks(d *simDaemon) bool {
	if n == d.n || n.d == nil || !n.d.wasOffered {
		return false
	}
	l := n.d.inbound[d.n.id]
	return l == nil || l.inc != d.self.Incarnation || l.position < d.floor()
}

// noteOverflow records which deletes a table has forgotten because there were too many, before it had
// received all records. The table then accepts older records of those keys from peers.
func (m *simModel) noteOverflow(d *simDaemon) {
	if d.tab.Stats().ExpiredEarly == 0 {
		return
	}
	for i := range m.keys {
		if k := &m.keys[i]; k.home == d.n.id && k.gone {
			if c := d.content(i); !c.dead || c.version == 0 {
				k.raceOpen, k.racedBefore = true, true
			}
		}
	}
}
