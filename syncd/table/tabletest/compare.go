package tabletest

import (
	"fmt"

	"mapsync/syncd/table"
)

// valueText returns a value as text: the name in a script, else the number of its write and its volatile
// byte.
func valueText(b []byte) string {
	if len(b) == 0 || b[0] >= ' ' {
		return trimmed(b)
	}
	v := Value(b)
	return fmt.Sprintf("#%d.%d", v.Number(), v[volatileByte])
}

// valueText returns a value of the table as text.
func (d *Daemon) valueText(b []byte) string {
	if d.layout == 0 || len(b) == 0 {
		return valueText(b)
	}
	v := d.value(b)
	return valueText(v[:])
}

// Content is a record in a form that is comparable between nodes. Positions, dirty marks and evidence
// are local to a node, so they are left out.
type Content struct {
	Known   bool          // the table has a record
	Dead    bool          // the record is a tombstone
	expired bool          // the tombstone is one of an expired record, or inferred: other nodes need not have it
	version table.Version // 0 if the record is unversioned
	Owner   table.Owner
	Value   Value // zero if the record is a tombstone or unknown
}

// String returns value, version and owner of the record.
func (c Content) String() string {
	if !c.Known {
		return "unknown"
	}
	v := valueText(c.Value[:])
	if c.Dead {
		v = "-"
	}
	return fmt.Sprintf("%s v%d %s%d", v, c.version, c.Owner.Node, c.Owner.Incarnation)
}

// content returns what a node's table holds of a key. Without a record, it returns the zero Content.
func (n *Node) content(tx *table.Tx, key int) (c Content) {
	var r table.Record
	if !tx.Get(n.Daemon.key(key), &r) {
		return c
	}
	c = Content{Known: true, Dead: r.Delete, expired: r.Expired || r.Inferred, version: r.Version, Owner: tx.Owner(r.Owner)}
	c.Value = n.Daemon.value(r.Value)
	return c
}

// Up returns the nodes that have a table. A node that still reads its map is not among them: nothing is
// expected of it.
func (w *World) Up() (up []*Node) {
	for _, n := range w.Nodes {
		if n.Daemon != nil && n.Daemon.wasOffered {
			up = append(up, n)
		}
	}
	return up
}

// checkConverged returns the first difference between two nodes that are up, or between a node's table
// and its kernel map. Equality is transitive, so each table is compared with the first one only.
func (w *World) checkConverged() error {
	up := w.Up()
	for i, n := range up {
		if err := n.checkMap(); err != nil {
			return err
		}
		if i == 0 {
			continue
		}
		if err := w.compareTables(up[0], n); err != nil {
			return err
		}
	}
	return nil
}

// compareTables compares the tables of two nodes.
//
// Records must be equal in value, version and owner. Tombstones must be equal, too, unless some node has
// forgotten tombstones, or could not send them: then another may still have them. The digests must agree with the records.
func (w *World) compareTables(a, b *Node) (err error) {
	forgot := w.forgot()
	a.Daemon.tab.View(func(ta *table.Tx) {
		b.Daemon.tab.View(func(tb *table.Tx) {
			for k := range w.keys {
				x, y := a.content(ta, k), b.content(tb, k)
				if !x.same(&y, a.opt.Carried != nil) && ((!forgot && !w.filtered) || x.Live() || y.Live()) {
					err = fmt.Errorf("key %s is %v on %s and %v on %s", w.name(k), x, a.Name, y, b.Name)
					return
				}
			}
			for _, n := range w.Nodes {
				if a.Daemon.layout != b.Daemon.layout {
					break // their digests do not compare
				}
				x := ta.Digest(n.Name, nil)
				if y := tb.Digest(n.Name, nil); x != y {
					err = fmt.Errorf("digest of %s is %v on %s and %v on %s", n.Name, x, a.Name, y, b.Name)
					return
				}
			}
		})
	})
	return err
}

// Live reports whether the table has a record that is not a tombstone.
func (c *Content) Live() bool { return c.Known && !c.Dead }

// same reports whether two nodes hold the same record. If masked is set, bytes that are not significant
// or not replicated may differ.
func (c *Content) same(o *Content, masked bool) bool {
	x, y := *c, *o
	if (x.expired || y.expired) && !x.Live() && !y.Live() {
		return true // a table that does not hold the key does not hold its expiry either
	}
	if masked {
		x.Value[timerByte], x.Value[volatileByte], x.Value[localByte] = 0, 0, 0
		y.Value[timerByte], y.Value[volatileByte], y.Value[localByte] = 0, 0, 0
	}
	return x == y
}

// checkMap compares a node's table with its kernel map.
//
// Four differences are allowed. A full map lacks some records, but none of its own incarnation while it
// holds those of others. An LRU map lacks evicted entries, and may hold released ones. Bytes that are local to
// the map may differ.
func (n *Node) checkMap() (err error) {
	d := n.Daemon
	if d.m == nil {
		return nil
	}
	full := n.room > 0 && d.m.n >= n.room
	if n.lru {
		full = n.fills() > 0 && d.m.n >= n.fills()
	}
	d.tab.View(func(tx *table.Tx) {
		missing, foreign := "", ""
		for k := range n.world.keys {
			c, e := n.content(tx, k), &d.m.entries[k]
			switch {
			case c.Live() && e.live:
				if c.Owner.Node != n.Name {
					foreign = n.world.name(k)
				}
				if !n.equalValues(c.Value, e.value) {
					err = fmt.Errorf("%s: key %s is %v in the table and %s in the map", n.Name, n.world.name(k), c, valueText(e.value[:]))
					return
				}
			case c.Live() && !e.live && (e.evicted || n.lru) && (n.countsAsEvicted(k) || !n.world.scans):
			case c.Live() && full:
				if c.Owner == d.self {
					missing = n.world.name(k)
				}
			case !c.Live() && e.live && n.released(k):
			case c.Live() != e.live:
				err = fmt.Errorf("%s: key %s is %v in the table and %v in the map", n.Name, n.world.name(k), c, e.live)
				return
			}
		}
		if missing != "" && foreign != "" {
			err = fmt.Errorf("%s: own key %s is not in the full map, but key %s of another node is", n.Name, missing, foreign)
		}
	})
	return err
}

// countsAsEvicted reports whether a table treats a key as evicted by the map. The daemon then does not
// write the entry again.
func (n *Node) countsAsEvicted(key int) bool {
	return n.Daemon.internals().Evicted(n.Daemon.tab, n.Daemon.key(key))
}

// released reports whether the map still holds an entry in the state in which its owner released it.
// Neither the table nor the map restores or deletes such an entry.
func (n *Node) released(key int) bool {
	value := n.Daemon.internals().Released(n.Daemon.tab, n.Daemon.key(key))
	return value != nil && n.equalValues(n.Daemon.value(value), n.Daemon.m.entries[key].value)
}

// equalValues compares the value of a record with the value in the map. A field without events is as
// old as the last scan.
func (n *Node) equalValues(v, e Value) bool {
	if n.opt.Carried != nil {
		v[localByte], v[timerByte] = e[localByte], e[timerByte]
		if !n.world.scans {
			v[volatileByte] = e[volatileByte]
		}
	}
	return v == e
}
