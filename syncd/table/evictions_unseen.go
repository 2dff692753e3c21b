package table

// mayBeEvicted reports whether a delete counts as an eviction. A reread of an LRU map cannot distinguish them, unless
// hooks have reported a delete. The event of an eviction may be lost, may arrive after the reread, or no hook reports it.
func (t *Table) mayBeEvicted(c *Change, m *meta) bool {
	return c.Context == ContextReread && t.opt.LRU && !m.is(flagDeleteSeen)
}

// evictUnseen enters a reread that did not find a key, in an LRU map. The entry counts as evicted, until the event of
// a delete arrives: restoring it would evict another one.
func (t *Table) evictUnseen(c *Change, s uint32) Outcome {
	if t.predates(c, s) {
		t.requestReread(s)
		return Stale
	}
	o := t.localEvict(c, s)
	t.meta(s).noteEvidence(c)
	// Another open reading, such as that of a scan, may have read the entry before.
	t.invalidateReadings(s)
	return o
}
