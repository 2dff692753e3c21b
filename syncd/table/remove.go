package table

// Selection is a choice of records by what an operator wants to be rid of. A record that any of
// the fields selects is selected.
type Selection struct {
	// Owner selects the records of every incarnation of a node; empty: none.
	Owner string
	// Orphaned selects records whose owner has left. See SetGone.
	Orphaned bool
	// Unfit selects records that the writer could not write to the kernel map, displaced ones
	// included.
	Unfit bool
}

// Remove deletes the selected records, as if this node's data plane had deleted the keys now: each
// becomes a tombstone of this node with a version above the record's, is deleted from the kernel
// map and replicates. Expired records, whose entries a kernel map may still hold, are deleted too.
// Records of this node are selected by Unfit alone. now is the wall clock in nanoseconds.
//
// Remove looks at up to limit records and returns how many it deleted; while more is true, call it
// again with the same cursor. Begin with a new cursor at position 0; records that change after the
// first call are left alone.
func (tx *Tx) Remove(sel *Selection, now int64, c *Cursor, limit int) (removed int, more bool) {
	t := tx.t
	tx.Now(now)
	for range limit {
		s := c.bounded()
		if s == 0 {
			return removed, false
		}
		var m meta
		t.read(s, &m)
		if !t.selected(&m, sel) {
			continue
		}
		if s&compactBit != 0 {
			s = t.thaw(t.log.hashOf(s), s)
		}
		t.remove(s, now)
		t.refreeze()
		removed++
	}
	return removed, true
}

func (t *Table) selected(m *meta, sel *Selection) bool {
	if !m.live() && !m.is(flagExpired) {
		return false
	}
	o := &t.owners.list[m.owner]
	switch {
	case sel.Unfit && m.is(flagFailed):
		return true
	case o.ours:
		return false
	}
	return o.Node == sel.Owner || (sel.Orphaned && o.gone)
}

// remove makes a record a tombstone of this node. The writer deletes the entry even if the kernel
// should not hold it: it evicted the entry, or the last write failed.
func (t *Table) remove(s uint32, now int64) {
	m := t.meta(s)
	v := max(t.versionAt(now), m.version+1)
	t.markDirty(s)
	t.put(s, nil, true, now)
	m.cpu = cpuNone // no event of a CPU removed it
	t.stamp(s, v, selfID)
}
