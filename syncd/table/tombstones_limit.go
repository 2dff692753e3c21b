package table

// makeRoom forgets one tombstone early and returns true if it found one. A lagging reader may have missed
// that tombstone and detects this by the floor. If the table refused new records instead, a burst of
// deletes would stop replication for the lifetime of its tombstones. makeRoom forgets no tombstone with one
// of the flags kept.
func (t *Table) makeRoom(kept flags) bool {
	const tries = 64 // tombstones with a kept flag go to the back of the queue
	for range tries {
		if t.log.n == 0 {
			t.skipCompaction() // the tombstones of newTombs are younger
		}
		if t.forgetOldest() || t.forgetQueued(kept) {
			t.stats.ExpiredEarly++
			return true
		}
	}
	return false
}

// forgetQueued forgets the first tombstone of the queue, and returns true if it did.
func (t *Table) forgetQueued(kept flags) bool {
	if t.tombs.len() == 0 {
		return false
	}
	q := t.tombs.pop()
	v := t.meta(q.slot).version
	if !t.expireOne(q, kept) {
		return false
	}
	t.forgottenEarly = max(t.forgottenEarly, v)
	return true
}

// isForgottenEarly reports whether a delete of a key without a record counts as one that the table has
// forgotten to make room. Nodes at their limits would otherwise send each other such deletes without end: in
// each full sync, the receiver would forget the same deletes again before it has sent them, and would begin
// full syncs itself. Deletes that are sent outside of a full sync or repair never count as forgotten.
func (t *Table) isForgottenEarly(d *Delta) bool {
	return d.Version <= t.forgottenEarly && t.stats.Tombstones >= t.opt.MaxTombstones && !t.unscanned
}

// keptTombs are the flags of tombstones that the table never forgets early.
const keptTombs = flagDirty | flagUnversioned | flagReleased

// limitTombstones makes room for one more tombstone. Up to twice Options.MaxTombstones it does not forget a
// tombstone whose key waits for a reread.
func (t *Table) limitTombstones() {
	switch n := t.stats.Tombstones; {
	case n < t.opt.MaxTombstones:
	case n < 2*t.opt.MaxTombstones:
		t.makeRoom(keptTombs | flagReread | flagUncertain)
	default:
		t.makeRoom(keptTombs)
	}
}

// forgetOldest forgets the oldest compact tombstone, and returns true if it did. It forgets none if a
// tombstone in a slot is older.
func (t *Table) forgetOldest() bool {
	if t.log.n == 0 {
		return false
	}
	c, i := t.log.oldest()
	// An older tombstone in a slot goes first.
	if t.tombs.len() > 0 {
		if m := t.meta(t.tombs.peek().slot); m.is(flagInTombs) && m.seq < c.seq(i) {
			return false
		}
	}
	t.forgottenEarly = max(t.forgottenEarly, c.versions[i])
	t.forgetCompact(c, i)
	return true
}
