package table

// Counter observes the values of entries. The table calls it under its lock, so it must not call the table. It must not
// keep or change the slices.
type Counter interface {
	// Changed notes a local change of an entry from one value to another, also if they differ in nothing that is
	// significant. from is nil if the entry is new. ordered is false if from may be the later value of the two.
	//
	// Changes are left out if the former value of the entry is unknown: before the map was read, while a record of a
	// peer waits for its write, and after such a write whose order with a local change is unknown.
	Changed(key, from, to []byte, ordered bool)
}

// observe passes a change to the counter before it becomes the record's content.
func (t *Table) observe(c *Change, s uint32) {
	if t.opt.Counter == nil || c.Op != OpUpdate {
		return
	}
	m := t.meta(s)
	created := m.seq == 0 && !m.is(flagUnversioned) // a new record has no value yet
	switch {
	case m.is(flagUncounted):
		m.flags &^= flagUncounted
		return
	case m.is(flagDirty):
		return
	case created && (t.loading != nil || t.unscanned && c.Context == ContextReread):
		return // the entry may be older than this syncd
	case created || !m.live() && !m.is(flagReleased):
		t.opt.Counter.Changed(c.Key, nil, c.Value, true)
	default:
		// The map may still hold an evicted entry: the event of the eviction may be late.
		t.opt.Counter.Changed(c.Key, t.value(s), c.Value, !t.uncertain(c, m))
	}
}
