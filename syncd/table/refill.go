package table

// Refill prepares the table for a new, empty kernel map: every live record is dirty, no tombstone is dirty,
// and the applied position is 0. The writer must start again with a new cursor. Unversioned records follow
// when Adopt adopts them. Refill visits all records in one call. LoadNewMap enters what the map holds nevertheless.
func (tx *Tx) Refill() {
	t := tx.t
	for _, list := range [...]uint32{order, unversioned} {
		for s, next := t.meta(list).next, uint32(0); s != list; s = next {
			m := t.meta(s)
			if next = m.next; m.is(flagHeld) && t.isRestored(m.version) {
				t.moveTail(s) // see Record.Undecided
			}
			t.setFlags(m, flagWritten|flagEntry|flagEvicted|flagDeleteSeen|flagPacketDelete, 0)
			t.unrelease(m)
			t.unhold(s)
			t.clearNotHeld(m) // the failed writes were writes to the old map
			if m.live() {
				t.markDirty(s)
			} else {
				t.clearDirty(s)
			}
		}
	}
	// The victim cursors have the places of the old map.
	for _, h := range append(t.owners.groups, &t.owners.otherOwners) {
		t.closeVictimCursor(h)
	}
	// The writer restores the absent entries that were not decided yet. A part of them would not look like a clear.
	t.opt.SameMap = t.opt.SameMap && t.clears.absent.len() == 0
	clear(t.bases)
	t.copies, t.opt.Stop = nil, Stop{} // the entries of the former map
	t.applied, t.takeover.since = 0, 0
	t.unscanned = true // until a scan of the new map has ended
	tx.changed = true
}
