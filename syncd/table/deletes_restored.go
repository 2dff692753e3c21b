package table

// ownedByLivePeer reports whether another node owns the record and has not left the cluster.
func (t *Table) ownedByLivePeer(m *meta) bool {
	o := &t.owners.list[m.owner]
	return !m.is(flagUnversioned) && !o.ours && !o.gone
}

// protected reports whether a delete of the record by bpf(2) on this node does not replicate.
func (t *Table) protected(m *meta) bool { return !t.opt.DeletesAny && t.ownedByLivePeer(m) }

// restoreDeleted makes the writer restore a deleted entry. If the delete is from a reread that may be
// outdated, the key is reread instead.
func (t *Table) restoreDeleted(c *Change, s uint32) Outcome {
	if c.Context == ContextReread && t.predates(c, s) {
		t.requestReread(s)
		return Stale
	}
	if m := t.meta(s); c.Context == ContextReread && !m.is(flagReread) {
		m.flags &^= flagDeleteSeen
	}
	t.replaced.change(c.Key, nil)
	t.markDirty(s)
	t.moveTail(s)
	return Restored
}
