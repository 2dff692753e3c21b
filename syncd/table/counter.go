package table

import "bytes"

// Counter observes the values of entries. The table calls it under its lock, so it must not call the table. It must not
// keep or change the slices.
type Counter interface {
	// Changed notes a local change of an entry from one value to another, also if they differ in nothing that is
	// significant. from is nil if the entry is new.
	//
	// Changes are left out if the former value of the entry is unknown: before the map was read, while a record of a
	// peer waits for its write, and after such a write whose order with a local change is unknown.
	Changed(key, from, to []byte)

	// Decreases reports whether a counter is lower in to than in from. If to may be the earlier value, the table does not
	// call Changed for it. It reads the entry again, and continues from the former value.
	Decreases(from, to []byte) bool
}

// observe passes a change to the counter before it becomes the record's content. If the change may be older than the
// content, and decreases it, observe returns a copy of the value from which the next change counts, for hold.
func (t *Table) observe(c *Change, s uint32) (held []byte) {
	if t.opt.Counter == nil || c.Op != OpUpdate {
		return nil
	}
	m := t.meta(s)
	created := m.seq == 0 && !m.is(flagUnversioned) // a new record has no value yet
	switch {
	case m.is(flagUncounted):
		m.flags &^= flagUncounted
	case m.is(flagDirty):
	case created && (t.loading != nil || t.unscanned && c.Context == ContextReread):
		// The entry may be older than this syncd.
	case created || !m.live() && !m.is(flagReleased):
		t.opt.Counter.Changed(c.Key, nil, c.Value)
	default:
		// The map may still hold an evicted entry: the event of the eviction may be late.
		from, isHeld := t.held[s]
		if !isHeld {
			from = t.value(s)
		}
		if t.mayBeOlder(c, m) && t.opt.Counter.Decreases(from, c.Value) {
			return bytes.Clone(from)
		}
		t.opt.Counter.Changed(c.Key, from, c.Value)
	}
	return nil
}

// mayBeOlder reports whether a change may be older than the record's content. The time of a read is that at which it
// began, but the table knows only that it ended by lastRead.
func (t *Table) mayBeOlder(c *Change, m *meta) bool {
	byRead := m.cpu == cpuNone && !m.is(flagUnversioned)
	return t.uncertain(c, m) || byRead && c.Context != ContextReread && c.Time <= t.lastRead
}

// hold sets the value that observe returned, nil for none, after the change became the record's content.
func (t *Table) hold(s uint32, value []byte) {
	if value == nil {
		delete(t.held, s)
		return
	}
	if t.held == nil {
		t.held = make(map[uint32][]byte)
	}
	t.held[s] = value
	t.requestReread(s)
}
