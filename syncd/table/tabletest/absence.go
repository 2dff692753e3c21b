package tabletest

import (
	"fmt"

	"mapsync/syncd/table"
)

// received records and checks what a table has concluded from a record: that an entry of its map is gone, or, if tookDelete is set,
// that a repair has to make the delete of another node its own.
func (m *Model) received(d *Daemon, tx *table.Tx, key int, tookDelete bool) {
	m.checkAbsence(d, tx, key)
	// If the home has left, its load balancer may have created the entry again, and its daemon was killed before it could send that.
	k := &m.keys[key]
	k.contested = k.contested || (tookDelete && k.home >= 0 && d.view.live[k.home] == 0)
}

// checkAbsence checks a delete that a daemon has concluded from the absence of an entry in the map of its load balancer, which
// alone writes the key: the load balancer must have deleted the entry. An LRU map may have evicted it. checkSettled checks the
// deletes of a clear.
func (m *Model) checkAbsence(d *Daemon, tx *table.Tx, key int) {
	k := &m.keys[key]
	if k.home != d.n.ID || !k.written || k.gone || k.cleared&(1<<d.n.ID) != 0 || d.m != d.n.Map || d.n.Map.entries[key].live {
		return
	}
	c := d.n.content(tx, key)
	if !c.Dead || c.version == 0 || c.Owner != d.self || k.contested || k.raceOpen || k.racedBefore || k.evicted || k.wasEvicted || k.deleted > 0 || m.pending(d, key) {
		return
	}
	m.world.fail(fmt.Errorf("%s deletes %s, which its map lacks and its load balancer has not deleted", d.n.Name, m.world.name(key)))
}

// entryMissing records that a node's map no longer holds a key of another node. The key returns,
// unless its owner counts as gone.
func (m *Model) entryMissing(n *Node, key int) {
	k := &m.keys[key]
	k.missing |= 1 << n.ID
	if d := n.Daemon; d != nil && (d.view.live[k.home] == 0 || d.hasHandover(k.home)) {
		k.contested = true
	}
}

// nodeLeft records that a node counts another node as gone. From then on, that node may delete keys that
// its map lacks.
func (m *Model) nodeLeft(d *Daemon, node int) {
	for i := range m.keys {
		if k := &m.keys[i]; k.home == node && (k.missing&(1<<d.n.ID) != 0 || m.copyPending(d, i)) {
			k.contested = true
		}
	}
}
