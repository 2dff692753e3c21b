package table

// acknowledge reports to the table the position that all others have reached, as syncd/replicate's
// acknowledge.go does.
func (d *simDaemon) acknowledge() {
	d.tab.Update(func(tx *Tx) { tx.SetAcknowledged(d.acknowledged()) })
}

// acknowledged returns the position up to which every node that this daemon knows has
// acknowledged; 0 if one is away that may come back in time.
func (d *simDaemon) acknowledged() uint64 {
	if d.toldAt == 0 || d.state < simReplicating {
		return 0
	}
	least := d.tab.seq
	for i, inc := range d.view.live {
		switch {
		case i == d.n.id:
		case inc != 0:
			least = min(least, d.ackOf(i, inc))
		case d.met[i] && d.n.sim.now-d.goneAt[i] < int64(d.n.opt.TombstoneTTL):
			return 0
		}
	}
	return least
}

// ackOf returns the position that a life of a peer has acknowledged on its present stream.
func (d *simDaemon) ackOf(peer int, inc uint64) uint64 {
	for _, st := range d.sessions {
		if st.to.n.id != peer || st.to.self.Incarnation != inc {
			continue
		}
		l := st.to.links[d.n.id]
		if l == nil || l.st != st || l.state != simServed {
			return 0
		}
		if st.to.tab.applied >= l.head {
			l.acked = l.position
		}
		return l.acked
	}
	return 0
}
