package tabletest

import (
	"slices"
	"time"

	"mapsync/syncd/table"
)

// This file corresponds to view.go, peers.go and fallback_sender.go of syncd/replicate. The tables are
// connected by function calls only.

// view is the membership at one time, as one node sees it. It is immutable.
type view struct {
	self       int      // number of the node whose view it is
	live       []uint64 // incarnations by node, 0: not live
	departures int      // number of nodes that have left so far
}

// members is the state of a daemon about the other nodes.
type members struct {
	view           *view         // never nil after initMembers
	membersSetAt   int64         // time of the first membership view with peers; 0: none yet
	everLive       []bool        // by node: the node was live at some time
	verified       []bool        // by node: like everLive, without nodes that were found only through their records
	gone           []bool        // by node: the node is no longer live
	goneAt         []int64       // by node: the time since which it is gone
	ownersChecked  table.OwnerID // owner ids below this one were compared with the nodes that were live
	fallbackSender int           // the fallback sender
}

// unknownGrace is the time in nanoseconds after which owners without a live node count as gone, as
// Options.UnknownGrace of syncd/replicate.
const unknownGrace = int64(60 * time.Second)

// initMembers begins with a view in which no other node is live.
func (d *Daemon) initMembers() {
	n := len(d.n.world.Nodes)
	d.everLive, d.verified, d.gone, d.Inbound = make([]bool, n), make([]bool, n), make([]bool, n), make([]*InboundStream, n)
	d.view, d.fallbackSender = d.newView(make([]uint64, n)), d.n.ID
	d.goneAt = make([]int64, n)
}

// newView returns the view that follows the present one. It keeps live and sets the entry of this node.
func (d *Daemon) newView(live []uint64) *view {
	v := &view{self: d.n.ID, live: live}
	v.live[v.self] = d.self.Incarnation
	if d.view != nil {
		v.departures = d.view.departures
		for i, inc := range d.view.live {
			if inc != 0 && v.live[i] == 0 {
				v.departures++
			}
		}
	}
	return v
}

// orphaned reports whether the records of a node are orphaned.
func (v *view) orphaned(owner int) bool { return v.live[owner] == 0 && owner != v.self }

// before reports whether a live node started before another one. Nodes with the same incarnation are
// ordered by their numbers.
func (v *view) before(node int, inc uint64, other int) bool {
	o := v.live[other]
	return inc != 0 && (inc < o || (inc == o && node < other))
}

// comparable reports whether the records of a node are sent by the sender to the receiver, and should
// be equal on both.
func (v *view) comparable(node, sender, receiver int) bool {
	return node == sender || (node != receiver && v.orphaned(node))
}

// coverage defines which records a node sends over a stream besides its own, as sent_owners.go of
// syncd/replicate. The zero coverage has no view and sends nothing.
type coverage struct {
	view     *view
	orphaned bool
}

// sends reports whether the records of an owner are sent to a target. node is the number of the owner's
// node.
func (c *coverage) sends(owner table.Owner, node int, target *Daemon) bool {
	switch node {
	case target.n.ID:
		return owner != target.self
	case c.view.self:
		return true
	}
	return c.orphaned && c.view.orphaned(node)
}

// exceeds reports whether a coverage may include owners that an older one does not include.
func (c *coverage) exceeds(old *coverage) bool {
	return c.orphaned && (old.view == nil || !old.orphaned || c.view.departures != old.view.departures)
}

// assign selects the peers from which orphaned records are requested. If this node is the fallback
// sender, it requests them from all peers, and otherwise from the fallback sender only. The fallback
// sender is the node that started first among those that serve the map to this node, or may do so soon.
// Each request has a new serial, so that an answer to an older one does not count.
func (d *Daemon) assign() {
	d.fallbackSender = d.n.ID
	for _, l := range d.Inbound {
		if l == nil || d.view.live[l.peer] != l.inc || l.state == inboundPending {
			continue
		}
		if d.view.before(l.peer, l.inc, d.fallbackSender) {
			d.fallbackSender = l.peer
		}
	}
	for _, l := range d.Inbound {
		if l == nil || d.view.live[l.peer] != l.inc || l.state != inboundServed {
			continue
		}
		wanted := d.fallbackSender == d.n.ID || d.fallbackSender == l.peer
		if l.dropped && l.departures != d.view.departures {
			l.again, l.dropped = true, false
		}
		if wanted != l.wanted || (wanted && l.departures != d.view.departures) {
			l.wanted = wanted
			l.serial++
		}
		l.departures = d.view.departures
	}
}

// alone reports whether the view of a node contains no other live node.
func (d *Daemon) alone() bool {
	for i, inc := range d.view.live {
		if inc != 0 && i != d.n.ID {
			return false
		}
	}
	return true
}

// setPeers sets which nodes are live, by their incarnations. It begins and ends streams accordingly, and
// passes the change to the table. It keeps live.
func (d *Daemon) setPeers(live []uint64) {
	w := d.n.world
	old, v := d.view, d.newView(live)
	d.view = v
	if w.Model != nil && !slices.Equal(old.live, v.live) {
		w.Model.clearUncertain(d.n)
	}
	if d.membersSetAt == 0 {
		d.membersSetAt = w.Now
	}
	for i, inc := range v.live {
		switch {
		case i == d.n.ID:
		case inc != 0:
			d.everLive[i], d.verified[i] = true, true
			if d.gone[i] {
				d.setGone(i, false)
			}
			d.setInbound(i, inc)
		case d.everLive[i] && !d.gone[i]:
			d.setGone(i, true)
			d.endSuperseded(i)
			if d.Inbound[i] != nil {
				d.Inbound[i].cut()
			}
		}
	}
	if d.wasOffered {
		d.applyMembers()
	}
	for i := len(d.outbound) - 1; i >= 0; i-- {
		d.outbound[i].checkPeer(old, v)
	}
	w.moves++
	if w.notes != nil {
		w.notes("%s sees %s", d.n.Name, v.names(w))
	}
}

// names returns the names of the live nodes.
func (v *view) names(w *World) (names string) {
	for i, inc := range v.live {
		if inc != 0 {
			names += w.Nodes[i].Name
		}
	}
	return names
}

// node returns the number of a node. It returns -1 if there is none.
func (w *World) node(name string) int {
	for i, n := range w.Nodes {
		if n.Name == name {
			return i
		}
	}
	return -1
}

// setGone records that a node is gone or back, also in the table if it is offered.
func (d *Daemon) setGone(node int, gone bool) {
	w := d.n.world
	d.gone[node] = gone
	if gone {
		d.everLive[node], d.goneAt[node] = true, w.Now
		if w.Model != nil {
			w.Model.nodeLeft(d, node)
		}
	}
	if d.wasOffered {
		d.tab.Update(func(tx *table.Tx) { tx.SetGone(map[string]bool{w.Nodes[node].Name: gone}) })
	}
}

// applyMembers passes the nodes that membership has verified to the table. All others are unverified owners to it.
func (d *Daemon) applyMembers() {
	var live, left []string
	for i, inc := range d.view.live {
		switch name := d.n.world.Nodes[i].Name; {
		case i == d.n.ID:
		case inc != 0:
			live = append(live, name)
		case d.verified[i]:
			left = append(left, name)
		}
	}
	d.tab.Update(func(tx *table.Tx) { tx.SetMembers(live, left) })
}

// applyGone applies the gone nodes to a table that was just offered.
func (d *Daemon) applyGone() {
	d.applyMembers()
	for i, gone := range d.gone {
		if gone {
			d.tab.Update(func(tx *table.Tx) { tx.SetGone(map[string]bool{d.n.world.Nodes[i].Name: true}) })
		}
	}
}

// findUnknown marks owners as gone that no membership view ever contained. Only after unknownGrace: a
// node that starts sees records before it sees all live nodes.
func (d *Daemon) findUnknown() {
	w := d.n.world
	if !d.wasOffered || d.membersSetAt == 0 || w.Now-d.membersSetAt <= unknownGrace {
		return
	}
	for end := d.internals().OwnerIDs(d.tab); d.ownersChecked < end; d.ownersChecked++ {
		var owner table.Owner
		d.tab.View(func(tx *table.Tx) { owner = tx.Owner(d.ownersChecked) })
		if i := w.node(owner.Node); i >= 0 && i != d.n.ID && !d.everLive[i] {
			d.setGone(i, true)
			w.moves++
		}
	}
}
