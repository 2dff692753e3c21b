package table

// makeRoom forgets one tombstone early and returns true if it found one. A lagging reader may have missed
// that tombstone and detects this by the floor. If the table refused new records instead, a burst of
// deletes would stop replication for the lifetime of its tombstones. makeRoom forgets no tombstone with one
// of the flags kept.
func (t *Table) makeRoom(kept flags) bool {
	const tries = 64 // tombstones with a kept flag go to the back of the queue
	for range tries {
		if t.log.n == 0 {
			t.skipCompaction() // tombstones ahead of the compaction cursor are younger
		}
		if t.forgetOldest() || (t.tombs.len() > 0 && t.expireOne(t.tombs.pop(), kept)) {
			t.stats.ExpiredEarly++
			return true
		}
	}
	return false
}

// keptTombs are the flags of tombstones that the table never forgets early.
const keptTombs = flagDirty | flagUnversioned | flagReleased

// limitTombstones makes room for one more tombstone. Up to twice Options.MaxTombstones it does not forget a
// tombstone whose key is about to be read again.
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
	t.forgetCompact(c, i)
	return true
}
