package table

// encoder receives the state of a table.
type encoder = interface {
	Int(v int)
	Bool(all ...bool)
	Version(v Version)
	Time(at int64)
	Position(p uint64)
	Owner(o Owner)
	Value(v []byte)
}

// Encode encodes the part of a table that influences later calls. If cpus is set, this includes the CPUs of
// events.
func (Internals) Encode(t *Table, x encoder, cpus bool) {
	x.Position(t.seq)
	x.Position(t.applied)
	x.Position(t.floor)
	for s := firstSlot; s < t.allocated; s++ {
		m := t.meta(s)
		x.Bool(m.is(flagFree))
		if m.is(flagFree) {
			continue
		}
		if t.encodeMeta(x, m, cpus); m.live() || m.is(raced|flagReleased) {
			x.Value(t.value(s))
		}
		if t.scan.on {
			x.Bool(t.scan.has(s))
			x.Int(int(t.scan.slot))
		}
	}
	t.encodeCompact(x)
	x.Bool(t.scan.on, t.loading != nil, t.unscanned, t.skew.ahead != 0)
	x.Int(t.rereads.len())
	x.Int(t.failures.len())
	x.Int(t.retries.len())
	x.Int(t.withVictim.len())
	x.Int(t.deferred.len())
	x.Version(t.forgottenEarly)
	x.Int(t.evicted.len())
	x.Int(t.released.len())
	x.Int(t.unknownRereads.waiting() / t.opt.KeySize)
	if l := t.loading; l != nil {
		for _, at := range l.deleted {
			x.Time(at)
		}
	}
	for _, e := range t.earlyDeletes {
		if e.hash != 0 {
			x.Time(e.time)
			x.Int(int(e.cpu))
		}
	}
}

func (t *Table) encodeMeta(x encoder, m *meta, cpus bool) {
	x.Int(int(m.flags &^ flagCursor))
	if cpus {
		x.Int(int(m.lastCPU())) // otherwise the event is at another time than any other event
	}
	x.Version(m.version)
	x.Time(m.seen)
	x.Position(m.seq)
	x.Owner(t.owners.list[m.owner].Owner)
}

// encodeCompact encodes the compact tombstones.
func (t *Table) encodeCompact(x encoder) {
	for _, c := range t.log.chunks {
		for i := range c.n {
			var m meta
			if t.log.describe(c, i, &m); !c.is(i, tombDead) {
				t.encodeMeta(x, &m, false)
			}
		}
	}
}

// EncodeReading encodes the part of a reading that influences later calls.
func (Internals) EncodeReading(t *Table, r *Reading, x encoder) {
	x.Bool(r.absent != [8]uint64{})
	for s := firstSlot; s < t.allocated; s++ {
		x.Bool(r.isStale(s))
	}
}
