package table

// Remote merges a record that a peer sent. It is accepted if its (version,
// owner) is above that of the record here, and is then to be written to the
// kernel (dirty) if the kernel holds something else. now is the wall clock in
// nanoseconds.
//
// A record that an earlier incarnation of this node owned meets a local map
// that knows better: see mergeOwn.
func (tx *Tx) Remote(d *Delta, now int64, opt RemoteOptions) Outcome {
	o := tx.t.remote(d, now, opt)
	tx.t.refreeze()
	switch o {
	case Accepted:
		tx.t.stats.RemoteAccepted++
	case Unchanged, Stale:
		tx.t.stats.RemoteStale++
	}
	return o
}

func (t *Table) remote(d *Delta, now int64, opt RemoteOptions) Outcome {
	if len(d.Key) != t.opt.KeySize || (!d.Delete && len(d.Value) != t.opt.ValueSize) ||
		d.Version == 0 || d.Version > maxVersion || int(d.Owner) >= len(t.owners.list) {
		t.stats.Refused++
		return Refused
	}
	t.skew.raise(int64(d.Version)-now, now, int64(t.opt.MaxSkew))
	h, s := t.open(d.Key)
	if t.ours(d.Owner) && (s != 0 || !d.Expired) {
		if o, done := t.mergeOwn(d, h, s, now); done {
			return o
		}
	}
	if from := &t.owners.list[d.Owner]; s != 0 && (from.stranger || from.ours) && t.defend(d, s, opt) {
		return Defended
	}
	if d.Expired {
		return t.remoteExpired(d, h, s, now)
	}
	if !d.Delete && (s == 0 || !t.meta(s).live()) {
		if s != 0 && !t.beats(d, t.meta(s)) {
			return t.repeated(d, s, opt)
		}
		if !t.admits(d.Owner, now) {
			t.stats.Rejected++
			return Refused
		}
		if s != 0 && t.meta(s).is(flagFree) {
			s = 0 // the tombstone was forgotten in favour of that of an evicted record
		}
	}
	if s == 0 {
		if s = t.create(h, d.Key); s == 0 {
			return Refused
		}
		t.put(s, d.Value, d.Delete, now)
		// What was deleted may be in the map nevertheless, passed over when that was read: a
		// scan would take it for new.
		if !d.Delete || t.unsure {
			t.markDirty(s)
		}
		t.adopt(s, d, now)
		return Accepted
	}
	m := t.meta(s)
	if !t.beats(d, m) {
		return t.repeated(d, s, opt)
	}
	t.keep(s, d)
	// What is dirty stays dirty: the kernel holds something older still. And where
	// a recheck has yet to tell what it holds, it may not be what the table says.
	if m.is(flagDirty|flagDoubt) || t.differs(d, s) {
		t.markDirty(s)
	}
	t.put(s, d.Value, d.Delete, now)
	t.adopt(s, d, now)
	return Accepted
}

// repeated deals with a delta that is not above the record. In a walk from the
// beginning it proves that the peer still has the key.
func (t *Table) repeated(d *Delta, s uint32, opt RemoteOptions) Outcome {
	m := t.meta(s)
	if opt.Replace != ReplaceNothing && t.replaces(d, s, opt.Replace) {
		return Accepted
	}
	if opt.Repair && !d.Delete && !m.live() && m.owner != d.Owner {
		t.repeatDelete(s, d.Owner)
	}
	if opt.Touch && m.live() && t.owners.list[m.owner].Node == t.owners.list[d.Owner].Node {
		t.moveTail(s)
	}
	if d.Version == m.version && d.Owner == m.owner && d.Delete != m.live() {
		return Unchanged
	}
	return Stale
}

// repeatDelete sends a tombstone again, as this node's own if it was another's. An older
// incarnation's goes as it is to the node that has the key, whose local map is right about it.
func (t *Table) repeatDelete(s uint32, has OwnerID) {
	m := t.meta(s)
	from, to := &t.owners.list[m.owner], &t.owners.list[has]
	if m.owner == selfID || (from.Node == to.Node && from.Incarnation < to.Incarnation) {
		t.moveTail(s)
		return
	}
	t.stamp(s, m.version+1, selfID)
	t.stats.Repeated++
}

// replaces makes a record of another node what a delta of the same owner says, if that is
// something else. It does not look at what may differ between nodes.
func (t *Table) replaces(d *Delta, s uint32, how Replace) bool {
	m := t.meta(s)
	same := d.Version == m.version
	switch {
	case d.Owner != m.owner || t.ours(d.Owner) || (!same && how != ReplaceOwn):
		return false
	case m.is(flagExpired) && how != ReplaceOwn:
		return false // a survivor has given it up
	case same && d.Delete == !m.live() && (d.Delete || t.alike(s, d.Value)):
		return false
	}
	t.keep(s, d)
	t.markDirty(s)
	t.put(s, d.Value, d.Delete, m.seen)
	t.stamp(s, d.Version, d.Owner)
	t.stats.Replaced++
	return true
}

// differs reports whether the kernel holds something else than the delta, going
// by a record that is not dirty.
func (t *Table) differs(d *Delta, s uint32) bool {
	m := t.meta(s)
	held := (m.live() || m.is(flagReleased)) && !m.is(flagEvicted)
	if d.Delete || !held {
		return held == d.Delete
	}
	return !t.held(s, d.Value)
}

// adopt gives a record the version and owner of a delta.
func (t *Table) adopt(s uint32, d *Delta, now int64) {
	m := t.meta(s)
	m.seen, m.cpu = max(m.seen, now), cpuNone
	t.stamp(s, d.Version, d.Owner)
}

// mergeOwn merges a record that names this node as its owner.
//
// If it names this very incarnation, nobody can know better than this table.
// If it names an earlier one, the local map is right about it as long as it is
// the map of that time: what is there with the same content is still what the
// peers hold; what differs was changed, and what is not there was deleted,
// while no daemon watched. A map that is new knows nothing of the old records,
// and is refilled with them, but is right about the keys that it holds.
//
// What the local map says then gets a version just above the peer's: enough to
// win over the old record, and not so much that it wins over a third node which
// took the key over in the meantime.
func (t *Table) mergeOwn(d *Delta, h, s uint32, now int64) (o Outcome, done bool) {
	current := d.Owner == selfID
	if s == 0 {
		if !current && !t.opt.SameMap {
			return 0, false
		}
	} else if m := t.meta(s); !t.beats(d, m) || (!current && !t.mapKnows(m)) {
		return 0, false
	}
	if current {
		t.stats.RemoteConflictOwn++
	}
	if s == 0 {
		return t.buryOwn(d, h, now), true
	}
	m := t.meta(s)
	if !current && m.live() != d.Delete && (d.Delete || t.same(s, d.Value)) {
		t.adopt(s, d, now)
		return Accepted, true
	}
	t.stamp(s, d.Version+1, selfID)
	return Accepted, true
}

// mapKnows reports whether a record says what the local map held when an
// earlier incarnation's record of the key arrives. A new map's value may be under the version of an
// earlier incarnation: one peer had it, and another peer has a later record of that incarnation.
func (t *Table) mapKnows(m *meta) bool {
	return m.owner == selfID || (t.ours(m.owner) && (t.opt.SameMap || m.is(flagLoaded)))
}

// buryOwn records that a key of ours is not in the map.
func (t *Table) buryOwn(d *Delta, h uint32, now int64) Outcome {
	s := t.create(h, d.Key)
	if s == 0 {
		return Refused
	}
	if !d.Delete && t.opt.LRU && !t.opt.EvictionDeletes {
		t.buryEvicted(s, d, now)
		return Accepted
	}
	t.kill(s, now)
	if d.Delete {
		t.adopt(s, d, now)
	} else {
		t.stamp(s, d.Version+1, selfID)
	}
	if t.unsure {
		t.recheck(s) // it may have been passed over
	}
	return Accepted
}
