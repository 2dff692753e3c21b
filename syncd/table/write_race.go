package table

// overtaken handles a record that changed during a write and is not dirty. The write of the older record
// may have replaced its entry in the kernel map.
func (t *Table) overtaken(s uint32) {
	// The data plane may have written the entry before or after syncd's write.
	if m := t.meta(s); t.ours(m.owner) {
		if t.opt.Counter != nil {
			m.flags |= flagUncounted
		}
		t.requestReread(s)
		return
	}
	t.markDirty(s)
	t.moveTail(s)
}

// raced marks a tombstone of this node whose last value syncd may have written to the map after the delete.
// The write was in progress when the data plane deleted the key. The slot still has that value: the table
// does not modify the value bytes of a tombstone.
const raced = flagUnsent

// lateWrite returns flagLateWrite if syncd may write an entry after a delete that an event reports, or may have done so.
func (t *Table) lateWrite(c *Change, m *meta) flags {
	if c.Context != ContextReread && (m.is(flagDirty|flagWritten) || !t.ours(m.owner)) {
		return flagLateWrite
	}
	return 0
}

// isLateWrite is ownWrite for a delete that waits. If an event has shown the entry, too, the load balancer may have written it.
func (t *Table) isLateWrite(c *Change, s uint32) bool {
	const late = flagHeld | flagLateWrite
	return c.Context == ContextReread && t.meta(s).flags&(late|flagDoubted) == late && t.equalCarried(s, c.Value)
}

// ownWrite reports whether the value that a reread found for a deleted key is syncd's own write. Without
// this check the record would become live again although no program uses it.
func (t *Table) ownWrite(c *Change, s uint32) bool {
	m := t.meta(s)
	const asked = raced | flagUncertain
	return c.Context == ContextReread && !m.live() && m.flags&asked == asked && !t.predates(c, s) && t.equalCarried(s, c.Value)
}
