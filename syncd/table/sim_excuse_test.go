package table

// Where the rules promise less than what a load balancer wrote last, and why.

// merged notes that a stream delivered a record. An earlier write of the key's load balancer may
// lose against it if the table receives that write later.
func (m *simModel) merged(d *simDaemon, tx *Tx, key int) {
	k := &m.keys[key]
	if k.home != d.n.id {
		return
	}
	k.told = m.sim.now
	var r Record
	// A peer that was cut off for longer than that may have sent an older record already.
	late := k.gone && k.forgot > 0 && m.sim.now-k.forgot < simSyncTimeout
	if late || (m.pending(d, key) && tx.Get(m.sim.keys[key][:], &r) && r.Dirty) {
		k.unsure, k.muddled = true, true
	}
}

// another notes that a daemon does not take its node's map for the one that it knew, so that
// entries deleted there may come back. Where clocks are apart, older records may come back, too: of
// two earlier incarnations the first may be ahead. A record that a peer sends as it is in the map
// is that of an earlier incarnation like any other.
func (m *simModel) another(n *simNode) {
	ahead := m.skewed && n.lives > 2
	for i := range m.keys {
		if k := &m.keys[i]; k.home == n.id && (k.gone || ahead) {
			k.loose, k.muddled = true, k.muddled || ahead
		}
	}
}

// lostMap notes that a node's map is lost. The daemon's records stay, unless an event arrives
// later: the event may be older than a change in place that the daemon has read, and the key cannot
// be read again.
func (m *simModel) lostMap(n *simNode) {
	for i := range m.keys {
		k := &m.keys[i]
		if k.home != n.id {
			continue
		}
		var r Record
		held := false
		if n.d != nil && n.d.known && n.d.awaits(i) == 0 {
			n.d.tab.View(func(tx *Tx) { held = tx.Get(m.sim.keys[i][:], &r) && !r.Delete })
			if held == !k.gone && (!held || sameValue(entryValue(r.Value), k.last)) {
				continue
			}
		}
		k.loose = true
	}
}

// stopped notes that a daemon ends. Records that its map does not hold by then are lost with it.
func (m *simModel) stopped(n *simNode) {
	for i := range m.keys {
		k, e := &m.keys[i], &n.lb.entries[i]
		if k.home == n.id && (e.live == k.gone || (e.live && !sameValue(e.value, k.last))) {
			k.loose = true
		}
	}
}

// forgot notes which deletes a table has forgotten while a node that has not received them is away.
func (m *simModel) forgot(d *simDaemon) {
	away := false
	for i, inc := range d.view.live {
		away = away || (d.met[i] && inc == 0)
	}
	if !away {
		return
	}
	for i := range m.keys {
		if k := &m.keys[i]; k.home == d.n.id && k.gone {
			if c := d.content(i); !c.known {
				k.forgot = m.sim.now
			}
		}
	}
}

// overflowed notes which deletes a table has forgotten, before it had received all records, because
// there were too many. Older records of those keys that peers send are then accepted.
func (m *simModel) overflowed(d *simDaemon) {
	if d.tab.stats.ExpiredEarly == 0 {
		return
	}
	for i := range m.keys {
		if k := &m.keys[i]; k.home == d.n.id && k.gone {
			if c := d.content(i); !c.dead || c.version == 0 {
				k.unsure, k.muddled = true, true
			}
		}
	}
}
