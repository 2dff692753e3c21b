package table

// acknowledge sets the position that all other nodes have acknowledged, as acknowledge.go of
// syncd/replicate does.
func (d *simDaemon) acknowledge() {
	position := d.acknowledged()
	d.tab.Update(func(tx *Tx) { tx.SetAcknowledged(position) })
}

// acknowledged returns the position up to which every node that this daemon has seen has acknowledged.
// It returns 0 if an absent node may still return in time.
func (d *simDaemon) acknowledged() uint64 {
	if d.membersSetAt == 0 || d.state < simReplicating {
		return 0
	}
	least := d.head()
	for i, inc := range d.view.live {
		switch {
		case i == d.n.id:
		case inc != 0:
			least = min(least, d.ackOf(i, inc))
		case d.everLive[i] && d.n.sim.now-d.goneAt[i] < int64(d.n.opt.TombstoneTTL):
			return 0
		}
	}
	return least
}

// ackOf returns the position that an incarnation of a peer has acknowledged on its present stream.
func (d *simDaemon) ackOf(peer int, inc uint64) uint64 {
	for _, st := range d.outbound {
		if st.to.n.id != peer || st.to.self.Incarnation != inc {
			continue
		}
		l := st.to.inbound[d.n.id]
		if l == nil || l.st != st || l.state != simServed {
			return 0
		}
		if st.to.applied() >= l.head {
			l.acked = l.position
		}
		return l.acked
	}
	return 0
}

// head returns the position of the newest change in the table.
func (d *simDaemon) head() (position uint64) {
	d.tab.View(func(tx *Tx) { position = tx.Head() })
	return position
}

// applied returns the position up to which the map holds the records of the table.
func (d *simDaemon) applied() (position uint64) {
	d.tab.View(func(tx *Tx) { position = tx.AppliedPosition() })
	return position
}

// floor returns the highest position of a tombstone that the table has forgotten.
func (d *simDaemon) floor() (position uint64) {
	d.tab.View(func(tx *Tx) { position = tx.Floor() })
	return position
}
