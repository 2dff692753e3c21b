package table

// mayBeEvicted reports whether a delete counts as an eviction. A reread cannot distinguish them, unless a call
// of bpf(2) has deleted the key. If hooks report evictions, an eviction whose event is lost counts as a delete.
func (t *Table) mayBeEvicted(c *Change, m *meta) bool {
	return c.Context == ContextReread && t.opt.EvictionsUnseen && !m.is(flagCallDeleted)
}

// evictUnseen enters a reread that did not find a key, in an LRU map whose evictions no hook reports. The
// entry counts as evicted: restoring it would evict another one.
func (t *Table) evictUnseen(c *Change, s uint32) Outcome {
	if t.predates(c, s) {
		t.requestReread(s)
		return Stale
	}
	t.meta(s).noteEvidence(c)
	o := t.localEvict(c, s)
	// Another open reading, such as that of a scan, may have read the entry before.
	t.invalidateReadings(s)
	return o
}
