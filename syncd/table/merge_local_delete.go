package table

// localDelete enters a delete, or a reread that did not find the key. s is the slot of the key, 0 if it has
// no record.
func (t *Table) localDelete(c *Change, h, s uint32) Outcome {
	if s == 0 {
		t.noteAbsent(h, c.Time, c.CPU, c.Context < ContextSyscall)
		t.noteDeleted(c)
		if t.loading != nil {
			t.loading.noteDelete(c)
		}
		return Unchanged
	}
	t.observeDelete(c, s)
	m := t.meta(s)
	// The data plane deleted the entry before the writer did, for which the tombstone is no evidence.
	if m.is(flagInferred) && c.Context < ContextSyscall {
		return t.change(c, s)
	}
	// The table already has the key as deleted or evicted. An absence that a scan has found before the event of a
	// bpf(2) delete was no eviction. A released tombstone loses its mark, unless the
	// change may be older than a write of the entry.
	if !m.live() || (m.is(flagEvicted) && c.Context == ContextReread && !m.is(flagDeleteSeen)) {
		if m.is(flagReleased) && t.predates(c, s) {
			t.requestReread(s) // the entry may have been written since
			return Stale
		}
		if m.is(flagReleased) && m.is(flagDirty) {
			t.markDirty(s) // the writer may have restored the entry after that
			t.moveTail(s)
		}
		t.unrelease(m)
		m.noteEvidence(c)
		if c.Context < ContextSyscall {
			t.earlyDeletes.note(h, c.Time, c.CPU, true) // the create may arrive later
		}
		if m.is(flagUnversioned) || m.owner != selfID && t.ours(m.owner) {
			t.noteDeleted(c)
		}
		return Unchanged
	}
	t.setFlags(m, flagEntry, 0)
	packet := c.Context < ContextSyscall || c.Context == ContextReread && m.is(flagPacketDelete)
	switch {
	case m.is(flagHeld) && !packet: // the table has the entry as absent
		return t.confirmHeld(c, s)
	case t.mayBeEvicted(c, m):
		return t.evictUnseen(c, s)
	// On a drained node, a delete by bpf(2) shows no intention: its load balancer may clear the map. Neither does the
	// end of a timer, because packets restart it on another node.
	case packet && !t.mayBeTimer(m), t.deletesAny() && (!t.opt.HoldClears || m.is(flagUnversioned)):
	case m.is(flagUnversioned):
		return t.deleteUnversioned(c, s)
	case t.keptWhileDrained(m):
		return t.keepDeleted(c, s)
	// Only the data plane of this node may delete a record of a live peer. The writer restores the entry.
	case t.protected(s):
		return t.restoreDeleted(c, s)
	case t.opt.HoldClears && (t.stats.Live >= t.clears.least || t.clears.held > 0):
		return t.holdDelete(c, s)
	}
	return t.change(c, s)
}

// deleteUnversioned notes that a key with an unversioned record is not in the map any more. The owner's
// record decides once it arrives: the writer restores a record of a peer, and the table deletes a record of
// an earlier incarnation of this node.
func (t *Table) deleteUnversioned(c *Change, s uint32) Outcome {
	m := t.meta(s)
	if c.Context == ContextReread && t.predates(c, s) {
		t.requestReread(s)
		return Stale
	}
	m.noteEvidence(c)
	t.clearDirty(s)
	t.makeTombstone(s, c.Time)
	t.noteDeleted(c)
	return Accepted
}
