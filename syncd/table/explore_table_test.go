package table

// records adds a table.
func (x *exploreState) records(d *simDaemon) {
	t := d.tab
	x.position(t.seq)
	x.position(t.applied)
	x.position(t.floor)
	for s := firstSlot; s < t.allocated; s++ {
		m := t.meta(s)
		x.is(m.is(flagFree))
		if m.is(flagFree) {
			continue
		}
		x.n(int(m.flags &^ flagCursor))
		if x.cpus > 1 {
			x.n(int(m.cpu)) // otherwise the event is at another time than any other event
		}
		x.ahead(d, m.version)
		x.time(m.seen)
		x.position(m.seq)
		o := &t.owners.list[m.owner]
		x.n(int(o.Node[0]))
		x.rank(kindIncarnation, o.Incarnation)
		if m.live() || m.is(raced|flagReleased) {
			x.value(entryValue(t.value(s)))
		}
		if t.scan.on {
			x.is(t.scan.has(s))
			x.n(int(t.scan.slot))
		}
	}
	x.compact(d)
	x.position(t.compactCursor.pos)
	x.is(t.scan.on, t.loading != nil, t.unscanned, t.skew.ahead != 0)
	x.n(t.rereads.len())
	x.n(t.failures.len())
	x.n(t.retries.len())
	x.n(t.evicted.len())
	x.n(t.released.len())
	x.n(t.unknownRereads.len(simKey))
	if l := t.loading; l != nil {
		for _, at := range l.deleted {
			x.time(at)
		}
	}
	for _, e := range t.earlyDeletes {
		if e.hash != 0 {
			x.time(e.time)
			x.n(int(e.cpu))
		}
	}
}

// compact adds the compact tombstones of a table.
func (x *exploreState) compact(d *simDaemon) {
	t := d.tab
	for _, c := range t.log.chunks {
		for i := range c.n {
			var m meta
			if t.log.describe(c, i, &m); c.is(i, tombDead) {
				continue
			}
			x.n(int(m.flags))
			x.ahead(d, m.version)
			x.time(m.seen)
			x.position(m.seq)
			o := &t.owners.list[m.owner]
			x.n(int(o.Node[0]))
			x.rank(kindIncarnation, o.Incarnation)
		}
	}
}
