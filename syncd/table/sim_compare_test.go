package table

import "fmt"

func valueText(b []byte) string {
	if len(b) == 0 || b[0] >= ' ' {
		return text(b)
	}
	v := entryValue(b)
	return fmt.Sprintf("#%d.%d", v.number(), v[volatileByte])
}

// simContent is a record in a form that is comparable between nodes.
type simContent struct {
	known, dead bool
	expired     bool
	version     Version
	owner       Owner
	value       entryValue
}

func (c simContent) String() string {
	if !c.known {
		return "unknown"
	}
	v := valueText(c.value[:])
	if c.dead {
		v = "-"
	}
	return fmt.Sprintf("%s v%d %s%d", v, c.version, c.owner.Node, c.owner.Incarnation)
}

// content returns what a node's table holds of a key.
func (n *simNode) content(tx *Tx, key int) (c simContent) {
	var r Record
	if !tx.Get(n.sim.keys[key][:], &r) {
		return c
	}
	c = simContent{known: true, dead: r.Delete, expired: r.Expired, version: r.Version, owner: tx.Owner(r.Owner)}
	copy(c.value[:], r.Value)
	return c
}

// up returns the nodes that have a table.
func (s *sim) up() (up []*simNode) {
	for _, n := range s.nodes {
		if n.d != nil && n.d.wasOffered {
			up = append(up, n)
		}
	}
	return up
}

// checkConverged returns the first difference between two nodes that are up, or between a node's table
// and its kernel map.
func (s *sim) checkConverged() error {
	up := s.up()
	for i, n := range up {
		if err := n.checkMap(); err != nil {
			return err
		}
		if i == 0 {
			continue
		}
		if err := s.compareTables(up[0], n); err != nil {
			return err
		}
	}
	return nil
}

// compareTables compares the tables of two nodes.
func (s *sim) compareTables(a, b *simNode) (err error) {
	forgot := s.forgot()
	a.d.tab.View(func(ta *Tx) {
		b.d.tab.View(func(tb *Tx) {
			for k := range s.keys {
				x, y := a.content(ta, k), b.content(tb, k)
				if !x.same(&y, a.opt.Carried != nil) && (!forgot || x.live() || y.live()) {
					err = fmt.Errorf("key %s is %v on %s and %v on %s", s.name(k), x, a.name, y, b.name)
					return
				}
			}
			for _, n := range s.nodes {
				x := ta.Digest(n.name, nil)
				if y := tb.Digest(n.name, nil); x != y {
					err = fmt.Errorf("digest of %s is %v on %s and %v on %s", n.name, x, a.name, y, b.name)
					return
				}
			}
		})
	})
	return err
}

func (c *simContent) live() bool { return c.known && !c.dead }

func (c *simContent) same(o *simContent, masked bool) bool {
	x, y := *c, *o
	if (x.expired || y.expired) && !x.live() && !y.live() {
		return true // a table that does not hold the key does not hold its expiry either
	}
	if masked {
		x.value[volatileByte], x.value[localByte] = 0, 0
		y.value[volatileByte], y.value[localByte] = 0, 0
	}
	return x == y
}

// checkMap compares a node's table with its kernel map.
func (n *simNode) checkMap() (err error) {
	d := n.d
	if d.m == nil {
		return nil
	}
	full := n.room > 0 && d.m.n >= n.room
	d.tab.View(func(tx *Tx) {
		missing, foreign := "", ""
		for k := range n.sim.keys {
			c, e := n.content(tx, k), &d.m.entries[k]
			switch {
			case c.live() && e.live:
				if c.owner.Node != n.name {
					foreign = n.sim.name(k)
				}
				if !n.equalValues(c.value, e.value) {
					err = fmt.Errorf("%s: key %s is %v in the table and %s in the map", n.name, n.sim.name(k), c, valueText(e.value[:]))
					return
				}
			case c.live() && full && !n.lru:
				if c.owner.Node == n.name {
					missing = n.sim.name(k)
				}
			case c.live() && !e.live && e.evicted && (n.countsAsEvicted(k) || !n.sim.scans):
			case !c.live() && e.live && n.released(k):
			case c.live() != e.live:
				err = fmt.Errorf("%s: key %s is %v in the table and %v in the map", n.name, n.sim.name(k), c, e.live)
				return
			}
		}
		if missing != "" && foreign != "" {
			err = fmt.Errorf("%s: own key %s is not in the full map, but key %s of another node is", n.name, missing, foreign)
		}
	})
	return err
}

// countsAsEvicted reports whether a table treats a key as evicted by the map.
func (n *simNode) countsAsEvicted(key int) bool {
	return n.d.internals().Evicted(n.d.tab, n.sim.keys[key][:])
}

// released reports whether the map still holds an entry in the state in which its owner released it.
func (n *simNode) released(key int) bool {
	value := n.d.internals().Released(n.d.tab, n.sim.keys[key][:])
	return value != nil && n.equalValues(entryValue(value), n.d.m.entries[key].value)
}

// equalValues compares the value of a record with the value in the map. A field without events is as
// old as the last scan.
func (n *simNode) equalValues(v, e entryValue) bool {
	if n.opt.Carried != nil {
		v[localByte] = e[localByte]
		if !n.sim.scans {
			v[volatileByte] = e[volatileByte]
		}
	}
	return v == e
}
