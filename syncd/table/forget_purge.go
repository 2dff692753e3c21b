package table

import "time"

// Selection selects records that an operator wants to delete. A record is selected if any of the fields
// selects it.
type Selection struct {
	// Owner selects the records of all incarnations of a node. Empty: none.
	Owner string
	// Orphaned selects records whose owner has left the cluster. See SetGone.
	Orphaned bool
	// Failed selects records that the writer could not write to the kernel map, displaced records included.
	Failed bool
	// Unused selects records that could expire after a takeover: see Unused. Nil: none.
	Unused *Unused
	// All selects all records, this node's included.
	All bool
}

// Unused selects the records of owners that have left, and this node's records that syncd has written, whose last change
// and last use are at least For ago.
type Unused struct {
	For  time.Duration
	Uses Uses // nil: changes alone count
	// Changes ignores how long uses and changes were observed: the time begins with the last known change.
	Changes bool
}

// TakeoverObserved returns for how long each change and each use of entries has been observed. now is the wall clock in
// nanoseconds.
func (tx *Tx) TakeoverObserved(now int64) time.Duration {
	if tx.t.takeover.since == 0 {
		return 0
	}
	return time.Duration(max(0, now-tx.t.takeover.since))
}

// unused reports whether sel selects a record.
func (t *Table) unused(s uint32, sel *Unused, now int64) bool {
	m := t.meta(s)
	at := t.takenOver(s)
	switch o := &t.owners.list[m.owner]; {
	case at == 0:
		return false
	case sel.Changes:
		return now-max(int64(t.changed(m.version))-t.clock.offset, o.leftAt) >= int64(sel.For)
	}
	return t.takeover.scanned-at >= int64(sel.For) && idleFor(t.key(s), sel.Uses, sel.For)
}

// Remove deletes the selected records as if this node's data plane had deleted the keys now. Each becomes a
// tombstone of this node with a version above the record's: just above that of an unused record, so that a later change on
// another node keeps the entry. The writer deletes it from the kernel map, and
// it replicates. Remove also deletes expired records, whose entries a kernel map may still hold. Only
// Failed, Unused and All select records of this node, and only All those whose entries live peers use: see NoteSuperseded. now is the wall clock in nanoseconds.
//
// Remove looks at up to limit records and returns the number of deleted records. While more is true, the
// caller calls it again with the same cursor. The first call needs a new cursor at position 0. Remove
// ignores records that change after the first call.
func (tx *Tx) Remove(sel *Selection, now int64, c *Cursor, limit int) (removed int, more bool) {
	t := tx.t
	tx.AdvanceClock(now)
	for range limit {
		s := c.nextBounded()
		if s == 0 {
			return removed, false
		}
		var m meta
		t.read(s, &m)
		if sel.Unused != nil && m.live() && t.unused(s, sel.Unused, now) {
			t.expireTakenOver(s, now)
			removed++
			continue
		}
		if !t.selected(&m, sel) || !sel.All && s&compactBit == 0 && t.usedByPeer(s) {
			continue
		}
		if s&compactBit != 0 {
			s = t.expandTombstone(t.log.hashOf(s), s)
		}
		t.remove(s, now)
		t.finishChange()
		removed++
	}
	return removed, true
}

// selected reports whether sel selects a record.
func (t *Table) selected(m *meta, sel *Selection) bool {
	if !m.live() && !m.is(flagExpired) {
		return false
	}
	o := &t.owners.list[m.owner]
	switch {
	case sel.All, sel.Failed && m.is(flagFailed):
		return true
	case o.ours:
		return false
	}
	return o.Node == sel.Owner || (sel.Orphaned && o.gone)
}

// remove makes a record a tombstone of this node. The writer deletes the entry even if the table has
// evidence that the kernel does not hold it, such as an eviction or a failed write.
func (t *Table) remove(s uint32, now int64) {
	t.removeAs(s, max(t.versionAt(now), t.meta(s).version+1), now)
}

// removeNext is remove with the next version of the record, which loses against each later change.
func (t *Table) removeNext(s uint32, now int64) { t.removeAs(s, t.meta(s).version+1, now) }

// removeAs is remove with a version.
func (t *Table) removeAs(s uint32, v Version, now int64) {
	m := t.meta(s)
	t.markDirty(s)
	t.put(s, nil, true, now)
	m.setCPU(cpuNone) // no event of a CPU removed it
	t.stamp(s, v, selfID)
}
