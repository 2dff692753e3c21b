package table

// compact moves the compaction cursor of a daemon's table as far as possible, as if enough time had
// passed.
func (d *simDaemon) compact() {
	was := d.tab.log.n
	d.tab.Update(func(*Tx) {
		for d.tab.compact(d.n.clock()+compactAfter, 2) {
		}
	})
	d.n.sim.compacted += d.tab.log.n - was
}

// compacts reports whether compact would change any tombstone.
func (d *simDaemon) compacts() bool {
	t := d.tab
	for s := t.meta(t.compactCursor.at).next; s != order; s = t.meta(s).next {
		if m := t.meta(s); !m.live() && !m.is(flagInTombs) {
			settled := m.seq <= t.applied && !m.is(flagDirty|flagReread|flagUncertain|flagReleased)
			return !t.tooRecent(m, d.n.clock()+compactAfter, settled)
		}
	}
	return false
}
