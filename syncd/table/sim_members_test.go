package table

import "time"

// What follows is syncd/replicate's membership.go and peers.go over tables that nothing
// but function calls connect: who tells what, and what is moved to the tail for it.

// simView is the membership of one moment, as one node sees it. It does not change.
type simView struct {
	self     int
	live     []uint64 // incarnations by node, 0: not live
	survivor int
}

// simMembers is what a daemon knows of others.
type simMembers struct {
	view     *simView
	toldAt   int64   // when it was told of peers first; 0: not yet
	met      []bool  // every node that ever was live
	gone     []bool  // those that are not any more
	touching []bool  // nodes whose records are to be moved to the tail
	looked   OwnerID // owners below were looked for among those met
	passed   []simPassed
}

// simPassed is under which view a stream to a life of a peer went on last.
type simPassed struct {
	inc  uint64
	view *simView
}

const simUnknownGrace = int64(60 * time.Second)

func (d *simDaemon) initMembers() {
	n := len(d.n.sim.nodes)
	d.met, d.gone, d.touching = make([]bool, n), make([]bool, n), make([]bool, n)
	d.links, d.passed = make([]*simLink, n), make([]simPassed, n)
	d.view = d.newView(make([]uint64, n))
}

func (d *simDaemon) newView(live []uint64) *simView {
	v := &simView{self: d.n.id, live: live, survivor: d.n.id}
	v.live[v.self] = d.self.Incarnation
	for i, inc := range v.live {
		if first := v.live[v.survivor]; inc != 0 && (inc < first || (inc == first && i < v.survivor)) {
			v.survivor = i
		}
	}
	return v
}

// covers reports whether a node tells the records of an owner to a target although they are
// not its own.
func (v *simView) covers(owner, target int) bool {
	if owner == v.self || owner == target || v.live[owner] != 0 {
		return owner == target
	}
	return v.survivor == v.self || v.survivor == target
}

func (v *simView) serves(owner int, inc uint64, target *simDaemon) bool {
	if owner == target.n.id && inc == target.self.Incarnation {
		return false
	}
	return owner == v.self || v.covers(owner, target.n.id)
}

// comparable reports whether a node's records are part of what a sender tells a receiver,
// and both hold alike.
func (v *simView) comparable(node, sender, receiver int) bool {
	if node == sender || node == receiver {
		return node == sender
	}
	return v.live[node] == 0 && (v.survivor == sender || v.survivor == receiver)
}

// takesOver reports whether a view makes a node responsible for records of an owner that a
// stream to a target may have passed under the old one.
func (v *simView) takesOver(old *simView, owner, target int) bool {
	return v.covers(owner, target) && (old == nil || !old.covers(owner, target))
}

// alone reports whether a node knows of no other.
func (d *simDaemon) alone() bool {
	for i, inc := range d.view.live {
		if inc != 0 && i != d.n.id {
			return false
		}
	}
	return true
}

// setPeers tells a daemon which nodes are live, by their incarnations.
func (d *simDaemon) setPeers(live []uint64) {
	s := d.n.sim
	old, v := d.view, d.newView(live)
	d.view = v
	if d.toldAt == 0 {
		d.toldAt = s.now
	}
	for i, inc := range v.live {
		switch {
		case i == d.n.id:
		case inc != 0:
			d.met[i] = true
			if d.gone[i] {
				d.setGone(i, false)
			}
			d.relink(i, inc)
		case d.met[i] && !d.gone[i]:
			d.setGone(i, true)
			if d.links[i] != nil {
				d.links[i].cut()
			}
		}
	}
	for i := len(d.sessions) - 1; i >= 0; i-- {
		d.sessions[i].checkPeer(old, v)
	}
	for _, st := range d.sessions {
		d.planTouch(old, st.to.n.id)
	}
	s.moves++
	if s.notes != nil {
		s.notes("%s sees %s", d.n.name, v.names(s))
	}
}

// planTouch notes whose records a node tells a target from now on, of those that a stream may have
// passed under an old view.
func (d *simDaemon) planTouch(old *simView, target int) {
	if !d.known {
		return
	}
	for _, o := range d.tab.owners.list {
		if owner := d.n.sim.node(o.Node); d.view.takesOver(old, owner, target) {
			d.touching[owner] = true
		}
	}
}

// names are those of the live nodes.
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
		d.met[node] = true
		if s.model != nil {
			s.model.missed(d, node)
		}
	}
	if d.known {
		d.tab.Update(func(tx *Tx) { tx.SetGone(s.nodes[node].name, gone) })
	}
}

// tellGone tells a table that was just offered who is gone.
func (d *simDaemon) tellGone() {
	for i, gone := range d.gone {
		if gone {
			d.tab.Update(func(tx *Tx) { tx.SetGone(d.n.sim.nodes[i].name, true) })
		}
	}
}

// findUnknown takes owners that no membership ever showed for gone.
func (d *simDaemon) findUnknown() {
	s := d.n.sim
	if !d.known || d.toldAt == 0 || s.now-d.toldAt <= simUnknownGrace {
		return
	}
	for ; int(d.looked) < len(d.tab.owners.list); d.looked++ {
		if i := s.node(d.tab.owners.list[d.looked].Node); i != d.n.id && !d.met[i] {
			d.setGone(i, true)
			s.moves++
		}
	}
}

// touch moves the records of planned nodes to the tail.
func (d *simDaemon) touch() {
	for i, wanted := range d.touching {
		if !wanted {
			continue
		}
		d.touching[i] = false
		if !d.known {
			continue
		}
		c := d.tab.NewCursor(0)
		d.tab.Update(func(tx *Tx) {
			for tx.Touch(d.n.sim.nodes[i].name, c, 3) {
			}
		})
		c.Close()
		d.n.sim.moves++
	}
}
