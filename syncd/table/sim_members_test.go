package table

import "time"

// This file corresponds to membership.go, peers.go and roles.go of syncd/replicate. The tables are
// connected by function calls only.

// simView is the membership at one time, as one node sees it. It is immutable.
type simView struct {
	self       int
	live       []uint64 // incarnations by node, 0: not live
	departures int      // number of nodes that have left so far
}

// simMembers is the state of a daemon about the other nodes.
type simMembers struct {
	view           *simView
	membersSetAt   int64   // time of the first membership view with peers; 0: none yet
	everLive       []bool  // by node: the node was live at some time
	proven         []bool  // by node: like everLive, without nodes that were found only through their records
	gone           []bool  // by node: the node is no longer live
	goneAt         []int64 // by node: the time since which it is gone
	ownersChecked  OwnerID // owner ids below this one were compared with the nodes that were live
	fallbackSender int     // the fallback sender
}

const simUnknownGrace = int64(60 * time.Second)

func (d *simDaemon) initMembers() {
	n := len(d.n.sim.nodes)
	d.everLive, d.proven, d.gone, d.inbound = make([]bool, n), make([]bool, n), make([]bool, n), make([]*simInboundStream, n)
	d.view, d.fallbackSender = d.newView(make([]uint64, n)), d.n.id
	d.goneAt = make([]int64, n)
}

func (d *simDaemon) newView(live []uint64) *simView {
	v := &simView{self: d.n.id, live: live}
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

func (v *simView) orphaned(owner int) bool { return v.live[owner] == 0 && owner != v.self }

// before reports whether a live node started before another one.
func (v *simView) before(node int, inc uint64, other int) bool {
	o := v.live[other]
	return inc != 0 && (inc < o || (inc == o && node < other))
}

// comparable reports whether the records of a node are sent by the sender to the receiver, and should
// be equal on both.
func (v *simView) comparable(node, sender, receiver int) bool {
	return node == sender || (node != receiver && v.orphaned(node))
}

// simCoverage defines which records a node sends over a stream besides its own, as coverage.go of
// syncd/replicate.
type simCoverage struct {
	view     *simView
	orphaned bool
}

func (c *simCoverage) sends(owner Owner, node int, target *simDaemon) bool {
	switch node {
	case target.n.id:
		return owner != target.self
	case c.view.self:
		return true
	}
	return c.orphaned && c.view.orphaned(node)
}

// exceeds reports whether a coverage may include owners that an older one does not include.
func (c *simCoverage) exceeds(old *simCoverage) bool {
	return c.orphaned && (old.view == nil || !old.orphaned || c.view.departures != old.view.departures)
}

// assign selects the peers from which orphaned records are requested. If this node is the fallback
// sender, it requests them from all peers, and otherwise from the fallback sender only. The fallback
// sender is the node that started first among those that serve the map to this node, or may do so
// soon.
func (d *simDaemon) assign() {
	d.fallbackSender = d.n.id
	for _, l := range d.inbound {
		if l == nil || d.view.live[l.peer] != l.inc || l.state == simPendingMap {
			continue
		}
		if d.view.before(l.peer, l.inc, d.fallbackSender) {
			d.fallbackSender = l.peer
		}
	}
	for _, l := range d.inbound {
		if l == nil || d.view.live[l.peer] != l.inc || l.state != simServed {
			continue
		}
		wanted := d.fallbackSender == d.n.id || d.fallbackSender == l.peer
		if wanted != l.wanted || (wanted && l.departures != d.view.departures) {
			l.wanted = wanted
			l.serial++
		}
		l.departures = d.view.departures
	}
}

// alone reports whether the view of a node contains no other live node.
func (d *simDaemon) alone() bool {
	for i, inc := range d.view.live {
		if inc != 0 && i != d.n.id {
			return false
		}
	}
	return true
}

// setPeers sets which nodes are live, by their incarnations.
func (d *simDaemon) setPeers(live []uint64) {
	s := d.n.sim
	old, v := d.view, d.newView(live)
	d.view = v
	if d.membersSetAt == 0 {
		d.membersSetAt = s.now
	}
	for i, inc := range v.live {
		switch {
		case i == d.n.id:
		case inc != 0:
			d.everLive[i], d.proven[i] = true, true
			if d.gone[i] {
				d.setGone(i, false)
			}
			d.setInbound(i, inc)
		case d.everLive[i] && !d.gone[i]:
			d.setGone(i, true)
			if d.inbound[i] != nil {
				d.inbound[i].cut()
			}
		}
	}
	if d.wasOffered {
		d.applyMembers()
	}
	for i := len(d.outbound) - 1; i >= 0; i-- {
		d.outbound[i].checkPeer(old, v)
	}
	s.moves++
	if s.notes != nil {
		s.notes("%s sees %s", d.n.name, v.names(s))
	}
}

// names returns the names of the live nodes.
func (v *simView) names(s *sim) (names string) {
	for i, inc := range v.live {
		if inc != 0 {
			names += s.nodes[i].name
		}
	}
	return names
}

// node returns the number of a node.
func (s *sim) node(name string) int {
	for i, n := range s.nodes {
		if n.name == name {
			return i
		}
	}
	return -1
}

func (d *simDaemon) setGone(node int, gone bool) {
	s := d.n.sim
	d.gone[node] = gone
	if gone {
		d.everLive[node], d.goneAt[node] = true, s.now
		if s.model != nil {
			s.model.nodeLeft(d, node)
		}
	}
	if d.wasOffered {
		d.tab.Update(func(tx *Tx) { tx.SetGone(map[string]bool{s.nodes[node].name: gone}) })
	}
}

func (d *simDaemon) applyMembers() {
	var live, left []string
	for i, inc := range d.view.live {
		switch name := d.n.sim.nodes[i].name; {
		case i == d.n.id:
		case inc != 0:
			live = append(live, name)
		case d.proven[i]:
			left = append(left, name)
		}
	}
	d.tab.Update(func(tx *Tx) { tx.SetMembers(live, left) })
}

// applyGone applies the gone nodes to a table that was just offered.
func (d *simDaemon) applyGone() {
	d.applyMembers()
	for i, gone := range d.gone {
		if gone {
			d.tab.Update(func(tx *Tx) { tx.SetGone(map[string]bool{d.n.sim.nodes[i].name: true}) })
		}
	}
}

// findUnknown marks owners as gone that no membership view ever contained.
func (d *simDaemon) findUnknown() {
	s := d.n.sim
	if !d.wasOffered || d.membersSetAt == 0 || s.now-d.membersSetAt <= simUnknownGrace {
		return
	}
	for end := d.internals().OwnerIDs(d.tab); d.ownersChecked < end; d.ownersChecked++ {
		var owner Owner
		d.tab.View(func(tx *Tx) { owner = tx.Owner(d.ownersChecked) })
		if i := s.node(owner.Node); i >= 0 && i != d.n.id && !d.everLive[i] {
			d.setGone(i, true)
			s.moves++
		}
	}
}
