package table

import "time"

// What follows is syncd/replicate's membership.go, peers.go and roles.go over tables that
// nothing but function calls connect.

// simView is the membership of one moment, as one node sees it. It does not change.
type simView struct {
	self       int
	live       []uint64 // incarnations by node, 0: not live
	departures int      // nodes that have left so far
}

// simMembers is what a daemon knows of others.
type simMembers struct {
	view   *simView
	toldAt int64   // when it was told of peers first; 0: not yet
	met    []bool  // every node that ever was live
	proven []bool  // likewise, but for those that were found by their records alone
	gone   []bool  // those that are not any more
	goneAt []int64 // since when
	looked OwnerID // owners below were looked for among those met
	first  int     // the fallback sender
}

const simUnknownGrace = int64(60 * time.Second)

func (d *simDaemon) initMembers() {
	n := len(d.n.sim.nodes)
	d.met, d.proven, d.gone, d.links = make([]bool, n), make([]bool, n), make([]bool, n), make([]*simLink, n)
	d.view, d.first = d.newView(make([]uint64, n)), d.n.id
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

// comparable reports whether a node's records are part of what a sender tells a receiver,
// and both hold alike.
func (v *simView) comparable(node, sender, receiver int) bool {
	return node == sender || (node != receiver && v.orphaned(node))
}

// simCoverage says whose records a node sends over a stream besides its own: see
// syncd/replicate's coverage.go.
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

// exceeds reports whether a coverage may have owners that an older one does not have.
func (c *simCoverage) exceeds(old *simCoverage) bool {
	return c.orphaned && (old.view == nil || !old.orphaned || c.view.departures != old.view.departures)
}

// assign decides of which peers orphaned records are requested: of all if this node is the
// fallback sender, and else of that one alone. It is the node that started first of those
// that serve the map to this one, or may do so in a moment.
func (d *simDaemon) assign() {
	d.first = d.n.id
	for _, l := range d.links {
		if l == nil || d.view.live[l.peer] != l.inc || l.state == simPendingMap {
			continue
		}
		if d.view.before(l.peer, l.inc, d.first) {
			d.first = l.peer
		}
	}
	for _, l := range d.links {
		if l == nil || d.view.live[l.peer] != l.inc || l.state != simServed {
			continue
		}
		wanted := d.first == d.n.id || d.first == l.peer
		if wanted != l.wanted || (wanted && l.departures != d.view.departures) {
			l.wanted = wanted
			l.serial++
		}
		l.departures = d.view.departures
	}
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
			d.met[i], d.proven[i] = true, true
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
	if d.known {
		d.tellMembers()
	}
	for i := len(d.sessions) - 1; i >= 0; i-- {
		d.sessions[i].checkPeer(old, v)
	}
	s.moves++
	if s.notes != nil {
		s.notes("%s sees %s", d.n.name, v.names(s))
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
		d.met[node], d.goneAt[node] = true, s.now
		if s.model != nil {
			s.model.missed(d, node)
		}
	}
	if d.known {
		d.tab.Update(func(tx *Tx) { tx.SetGone(map[string]bool{s.nodes[node].name: gone}) })
	}
}

func (d *simDaemon) tellMembers() {
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

// tellGone tells a table that was just offered who is gone.
func (d *simDaemon) tellGone() {
	d.tellMembers()
	for i, gone := range d.gone {
		if gone {
			d.tab.Update(func(tx *Tx) { tx.SetGone(map[string]bool{d.n.sim.nodes[i].name: true}) })
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
		if i := s.node(d.tab.owners.list[d.looked].Node); i >= 0 && i != d.n.id && !d.met[i] {
			d.setGone(i, true)
			s.moves++
		}
	}
}
