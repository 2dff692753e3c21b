package table

import "bytes"

// refreshes reports whether the table sends a change without a significant difference, because it sent the
// record longer than Options.Refresh ago. It counts the refresh.
func (t *Table) refreshes(c *Change, s uint32) bool {
	m := t.meta(s)
	if t.opt.Refresh == 0 || m.is(flagUnversioned) || t.versionAt(c.Time) < m.version+Version(t.opt.Refresh) {
		return false
	}
	// A reread of the same value does not show a use of the key. A write of the same value does.
	touched := m.is(flagUnsent) || !t.equalCarried(s, c.Value) || (c.Context < ContextSyscall && t.sentByLivePeer(m))
	if touched {
		t.stats.Refreshed++
	}
	return touched
}

// keepUnsent stores a value without sending it now.
func (t *Table) keepUnsent(c *Change, s uint32) {
	b := t.observe(c, s)
	if !bytes.Equal(t.value(s), c.Value) {
		t.invalidateReadings(s) // an open one may have an older value
	}
	if !t.equalCarried(s, c.Value) {
		t.stats.Unsent++
		t.meta(s).flags |= flagUnsent
	}
	copy(t.value(s), c.Value)
	t.hold(s, b)
}
