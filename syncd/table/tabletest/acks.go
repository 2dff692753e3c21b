package tabletest

import "mapsync/syncd/table"

// acknowledge sets the position that all other nodes have acknowledged, as acknowledge_tombstones.go of
// syncd/replicate does, which also waits for nodes that are not ready, and for records under way. Tombstones up to it are forgotten
// early, so a position that is too high would revive deleted keys.
func (d *Daemon) acknowledge() {
	position := d.acknowledged()
	d.tab.Update(func(tx *table.Tx) { tx.SetAcknowledged(position) })
}

// acknowledged returns the position up to which every node that this daemon has seen has acknowledged.
// It returns 0 if an absent node may still return in time. A node that this daemon has never seen does
// not count.
func (d *Daemon) acknowledged() uint64 {
	if d.membersSetAt == 0 || d.state < stateReplicating || d.hasUnsentDeletes() {
		return 0
	}
	least := d.head()
	for i, inc := range d.view.live {
		switch {
		case i == d.n.ID:
		// The record of such an incarnation may be above the tombstone that the peer has acknowledged.
		case inc != 0 && d.Inbound[i].lacksFiltered():
			return 0
		case inc != 0:
			least = min(least, d.mergedBy(i, inc))
		case d.everLive[i] && d.n.world.Now-d.goneAt[i] < int64(d.n.opt.TombstoneTTL):
			return 0
		}
	}
	return least
}

// hasUnsentDeletes reports whether this node has deletes that it cannot send.
func (d *Daemon) hasUnsentDeletes() bool {
	for key := range d.n.world.keys {
		if d.unsentDeletes&(1<<(key%64)) == 0 {
			continue
		}
		if c := d.Content(key); c.Dead {
			return true
		}
	}
	return false
}

// ackOf returns the position that an incarnation of a peer has acknowledged on its present stream.
//
// It also acknowledges on behalf of the peer: the position counts once the peer's map holds everything
// that the peer had merged with it. 0: the peer is not served.
func (d *Daemon) ackOf(peer int, inc uint64) uint64 {
	for _, st := range d.outbound {
		if st.to.n.ID != peer || st.to.self.Incarnation != inc {
			continue
		}
		l := st.to.Inbound[d.n.ID]
		if l != nil && l.st != st {
			continue // a former stream whose end this node has not seen
		}
		if l == nil || l.state != inboundServed {
			return 0
		}
		if st.to.applied() >= l.head {
			l.acked = l.position
		}
		return l.acked
	}
	return 0
}

// mergedBy returns the position up to which a peer has merged the deletes and the records of its earlier incarnations, like
// acknowledgedBy of syncd/replicate.
func (d *Daemon) mergedBy(peer int, inc uint64) (position uint64) {
	position = d.ackOf(peer, inc)
	for _, st := range d.outbound {
		if st.to.n.ID == peer && st.to.self.Incarnation == inc && st.to.Inbound[d.n.ID] != nil && st.to.Inbound[d.n.ID].unheld {
			position = 0
		}
	}
	return position
}

// lacksFiltered reports whether this node has filtered records of its earlier incarnations that the peer has, or deletes, and
// the full sync that brings them again has not ended.
func (l *InboundStream) lacksFiltered() bool { return l != nil && (l.unheld || l.sweep) }
