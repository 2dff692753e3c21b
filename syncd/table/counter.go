package table

// Counter observes the values of entries. The table calls its methods under its lock, so they must not call the table.
// They must not keep or change the slices.
type Counter interface {
	// Changed notes a local change of an entry to the value to, also if it differs in nothing that is significant. from
	// is the former value of the record. It is nil if there was no entry: without a live record, and after the kernel
	// evicted the entry.
	Changed(key, from, to []byte)
	// Loaded notes an entry that the map held at start, and that had no record: see Tx.Load.
	Loaded(key, value []byte)
}

// observe passes a change to the counter before it becomes the record's content.
func (t *Table) observe(c *Change, s uint32) {
	if t.opt.Counter == nil || c.Op != OpUpdate {
		return
	}
	var from []byte
	m := t.meta(s)
	created := m.seq == 0 && !m.is(flagUnversioned) // a new record has no value yet
	if m.live() && !m.is(flagEvicted) && !created {
		from = t.value(s)
	}
	t.opt.Counter.Changed(c.Key, from, c.Value)
}
