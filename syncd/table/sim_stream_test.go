package table

import "slices"

// simStream is what one node knows of another: the cursor on the sender's order
// and where the receiver is in its walk.
type simStream struct {
	from, to *simNode
	source   *Table // of the incarnation that the stream reads
	target   *Table
	cursor   *Cursor
	reset    bool // walking from the beginning
	sweep    bool // sweep at the end of the walk
	begin    uint64
	caughtUp bool // the end was reached once
}

// stream returns the stream of a link, begun anew if either end restarted.
func (s *sim) stream(from, to *simNode) *simStream {
	l := link{from.name, to.name}
	st := s.streams[l]
	if st == nil || st.source != from.tab || st.target != to.tab {
		// What the receiver holds of the sender may be gone there; but a receiver
		// that has just started holds nothing of it that the sender did not say.
		sweep := st != nil && st.target == to.tab
		st = &simStream{from: from, to: to, source: from.tab, target: to.tab, sweep: sweep}
		s.streams[l] = st
		st.restart()
	}
	return st
}

// restart begins a walk from position 0.
func (st *simStream) restart() {
	if st.cursor != nil {
		st.cursor.Close()
		st.sweep = true
	}
	st.cursor = st.source.NewCursor(0)
	st.reset = true
	st.target.View(func(tx *Tx) { st.begin = tx.Head() + 1 })
}

// resume closes the cursor and opens it again at its position, as a reconnect
// does.
func (st *simStream) resume() {
	p := st.cursor.Position()
	st.cursor.Close()
	st.cursor = st.source.NewCursor(p)
}

type simDelta struct {
	Delta
	owner Owner
}

// pump carries up to limit records over the stream and returns whether there
// is more.
func (st *simStream) pump(limit int) (more bool) {
	var batch []simDelta
	st.source.View(func(tx *Tx) {
		if !st.reset && st.cursor.Position() < tx.Floor() {
			more = true
			return
		}
		var r Record
		for len(batch) < limit {
			if !tx.Next(st.cursor, &r) {
				return
			}
			o := tx.Owner(r.Owner)
			if st.from.serves(st.to, o) {
				batch = append(batch, simDelta{
					Delta: Delta{Key: slices.Clone(r.Key), Value: slices.Clone(r.Value), Version: r.Version, Delete: r.Delete},
					owner: o,
				})
			}
		}
		more = true
	})
	if more && len(batch) == 0 {
		st.restart()
		return true
	}
	now := st.to.clock()
	st.target.Update(func(tx *Tx) {
		for _, d := range batch {
			d.Owner = tx.Intern(d.owner)
			o := tx.Remote(&d.Delta, now, RemoteOptions{Touch: st.reset})
			st.from.sim.trace("%s > %s: %s %s v%d %s: %s", st.from.name, st.to.name,
				text(d.Key), text(d.Value), d.Version, d.owner.Node, o)
		}
	})
	if !more {
		st.caughtUp = true
	}
	// Until the sender has claimed what its map held, not to meet a record says
	// nothing: the walk goes on, and meets it at the tail.
	if !more && st.reset && st.from.claims {
		st.finishWalk(now)
	}
	return more
}

func (st *simStream) finishWalk(now int64) {
	if st.sweep {
		c := st.target.NewCursor(0)
		st.target.Update(func(tx *Tx) {
			for tx.Sweep(st.from.name, st.begin, now, c, 3) {
			}
		})
		c.Close()
	}
	st.reset, st.sweep = false, false
}

// serves is the rule of who streams what: the owner what it owns, and everyone
// what belongs to those who cannot.
func (n *simNode) serves(to *simNode, o Owner) bool {
	switch {
	case o == to.self:
		return false
	case o.Node == n.name:
		return true
	case o.Node == to.name:
		return true
	default:
		return !n.sim.nodes[o.Node].up
	}
}

// claim takes over what was loaded, once every peer has said what it knows.
func (n *simNode) claim() {
	for _, name := range n.sim.names {
		p := n.sim.nodes[name]
		if p != n && p.up && !n.sim.stream(p, n).caughtUp {
			return
		}
	}
	n.tab.Update(func(tx *Tx) {
		for tx.Claim(n.clock(), 2) {
		}
	})
	n.claims = true
}

// membership tells every node who is gone, and lets each send again what the
// gone ones owned.
func (s *sim) membership() {
	for _, name := range s.names {
		n := s.nodes[name]
		if !n.up {
			continue
		}
		for _, other := range s.names {
			gone := s.nodes[other].seen && !s.nodes[other].up
			n.tab.Update(func(tx *Tx) { tx.SetGone(other, gone) })
			if !gone {
				continue
			}
			c := n.tab.NewCursor(0)
			n.tab.Update(func(tx *Tx) {
				for tx.Touch(other, c, 3) {
				}
			})
			c.Close()
		}
	}
}

// pump carries records between two nodes if both are up.
func (s *sim) pump(from, to string, limit int) bool {
	f, t := s.nodes[from], s.nodes[to]
	if f == t || !f.up || !t.up {
		return false
	}
	return s.stream(f, t).pump(limit)
}

func (s *sim) syncAll() {
	for _, from := range s.names {
		for _, to := range s.names {
			for s.pump(from, to, 16) {
			}
		}
	}
}
