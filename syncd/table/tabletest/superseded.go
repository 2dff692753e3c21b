package tabletest

import (
	"fmt"
	"maps"

	"mapsync/syncd/table"
)

// supersededBy is a record of a table that a live peer has superseded by one that was filtered.
type supersededBy struct {
	peer    int     // the number of the node
	inc     uint64  // its incarnation
	content Content // of the table
}

// noteSuperseded notes that a peer has a newer record of a key than the table. The caller holds the table's lock.
func (d *Daemon) noteSuperseded(tx *table.Tx, x *delta, peer int) {
	c := d.n.content(tx, x.key)
	if !c.Live() || c.version == 0 || c.version > x.version || c.Owner.Node == x.owner.Node {
		return
	}
	if d.superseded == nil {
		d.superseded = make(map[int]supersededBy)
	}
	d.superseded[x.key] = supersededBy{peer, d.Inbound[peer].inc, c}
}

// endFullSync notes that the peer has sent all its records.
func (l *InboundStream) endFullSync() {
	d := l.to
	l.fullSyncOpen = false
	peer := table.Owner{Node: d.n.world.Nodes[l.peer].Name, Incarnation: l.inc}
	d.tab.Update(func(tx *table.Tx) { tx.EndFullSync(peer, l.round) })
	for key, s := range d.superseded {
		if s.peer == l.peer && s.inc < l.inc {
			delete(d.superseded, key)
		}
	}
}

// endSuperseded notes that a peer has left: a filtered record of it no longer counts until it comes again.
func (d *Daemon) endSuperseded(peer int) {
	maps.DeleteFunc(d.superseded, func(_ int, s supersededBy) bool { return s.peer == peer })
}

// usedByPeers returns the keys whose records are still superseded: the live peer has a newer record.
func (d *Daemon) usedByPeers() (keys []int) {
	for key, s := range d.superseded {
		c, p := d.Content(key), d.n.world.Nodes[s.peer]
		if !c.Live() || c.version != s.content.version || c.Owner != s.content.Owner || d.view.live[s.peer] == 0 || p.Daemon == nil || !p.Daemon.wasOffered {
			continue
		}
		if o := p.Daemon.Content(key); o.Live() && o.Owner.Node == p.Name && o.version > c.version {
			keys = append(keys, key)
		}
	}
	return keys
}

// checkUsedByPeers checks that the records of keys from usedByPeers are still live. how ended them.
func (d *Daemon) checkUsedByPeers(keys []int, how string) {
	for _, key := range keys {
		if c := d.Content(key); !c.Live() {
			d.n.world.fail(fmt.Errorf("%s: %s ends %s, which %s uses", d.n.Name, how, d.n.world.name(key), d.n.world.Nodes[d.superseded[key].peer].Name))
		}
	}
}
