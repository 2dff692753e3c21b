package table

// ownedByLivePeer reports whether another node owns the record, has not left the cluster, and has not handed the record
// over, or whether a live peer has superseded the record. The entry ends only by that node, or by the data plane.
func (t *Table) ownedByLivePeer(s uint32) bool {
	m := t.meta(s)
	return t.sentByLivePeer(m) && !t.handedOver(m) || t.usedByPeer(s)
}

// sentByLivePeer reports whether another node owns the record and has not left the cluster. That node sends the record,
// also after it has handed it over. Another node must therefore not change it under the owner's name.
func (t *Table) sentByLivePeer(m *meta) bool {
	o := &t.owners.list[m.owner]
	return !m.is(flagUnversioned) && !o.ours && !o.gone
}

// HoldDeletes makes the writer restore the entries of live peers that bpf(2) deletes, in spite of Options.DeletesAny. The
// caller holds the deletes while this node lacks records of its maps: a collector may delete an entry only because a
// related entry has not arrived yet.
func (tx *Tx) HoldDeletes(held bool) { tx.t.deletesHeld = held }

// deletesAny reports whether Options.DeletesAny has effect.
func (t *Table) deletesAny() bool { return t.opt.DeletesAny && !t.deletesHeld && !t.drained() }

// protected reports whether a delete of the record by bpf(2) on this node does not replicate.
func (t *Table) protected(s uint32) bool {
	return t.keptWhileDrained(t.meta(s)) || (!t.deletesAny() && t.ownedByLivePeer(s))
}

// restoreDeleted makes the writer restore a deleted entry. If the delete is from a reread that may be
// outdated, the key is reread instead.
func (t *Table) restoreDeleted(c *Change, s uint32) Outcome {
	if c.Context == ContextReread && t.predates(c, s) {
		t.requestReread(s)
		return Stale
	}
	if m := t.meta(s); c.Context == ContextReread && !m.is(flagReread) {
		m.flags &^= flagDeleteSeen | flagPacketDelete | flagUncertain // the result has arrived
	}
	if m := t.meta(s); t.ours(m.owner) {
		m.noteEvidence(c) // the event of an earlier write may follow
	}
	t.replaced.change(c.Key, nil)
	t.markDirty(s)
	t.moveTail(s)
	return Restored
}
