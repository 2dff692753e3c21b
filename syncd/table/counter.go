package table

import "bytes"

// Counter observes the values of entries. The table calls it under its lock, so it must not call the table. It must not
// keep or change the slices.
type Counter interface {
	// Changed notes a local change of an entry from one value to another, also if they differ in nothing that is
	// significant. from is nil if the entry is new. Changed reports whether a counter is lower in to than in from.
	//
	// Changes are left out if the former value of the entry is unknown: before the map was read, while a record of a
	// peer waits for its write, and after such a write whose order with a local change is unknown.
	Changed(key, from, to []byte) (decreased bool)

	// Decreases reports whether a counter is lower in to than in from. The table asks if to may be the earlier value.
	Decreases(from, to []byte) bool
}

// base is the value of a record that Counter has, while changes may arrive that are older than it. Events of other CPUs are
// late by up to timestampMargin, and those of writes before a read arrive after it. The first later change ends it.
type base struct {
	// value is the value that Counter has.
	value []byte
	// most is the value with the highest counters since, nil for none. Counter does not have it.
	most []byte
	// reset is true if value is that of a reset. Higher values may be from before it, so that most stays nil.
	reset bool
	// until is the time in nanoseconds of the wall clock up to which a change may be older than value. It never changes, so
	// that a reread ends the base.
	until int64
}

func (t *Table) newBase(value []byte, c *Change, m *meta) *base {
	return &base{value: bytes.Clone(value), until: max(t.now, c.Time, m.seen) + timestampMargin}
}

// observe passes a change to the counter before it becomes the record's content. It removes the base of the record, and
// returns the one for hold.
func (t *Table) observe(c *Change, s uint32) *base {
	if t.opt.Counter == nil {
		return nil
	}
	b := t.bases[s]
	if c.Op != OpUpdate && b != nil && c.Time > b.until {
		t.endBase(s)
		return nil
	}
	delete(t.bases, s)
	if c.Op != OpUpdate {
		return b
	}
	m := t.meta(s)
	created := m.seq == 0 && !m.is(flagUnversioned) // a new record has no value yet
	var from []byte
	switch {
	case m.is(flagUncounted):
		if c.Context == ContextReread {
			m.flags &^= flagUncounted
		}
		return nil
	case m.is(flagDirty):
		return nil
	case created && (t.loading != nil || t.unscanned && c.Context == ContextReread):
		return nil // the entry may be older than this syncd
	case b != nil:
		from = b.value
	case created || !m.live() && !m.is(flagReleased):
		t.opt.Counter.Changed(c.Key, nil, c.Value)
		return nil
	default:
		// The map may still hold an evicted entry: the event of the eviction may be late.
		from = t.value(s)
	}
	if b != nil && c.Time <= b.until || b == nil && t.mayBeOlder(c, s) {
		decreases := t.opt.Counter.Decreases(from, c.Value)
		if b == nil && decreases {
			b = t.newBase(from, c, m)
		}
		if b != nil {
			if !b.reset && !decreases && (b.most == nil || !t.opt.Counter.Decreases(b.most, c.Value)) {
				b.most = bytes.Clone(c.Value)
			}
			return b
		}
	}
	if !t.opt.Counter.Changed(c.Key, from, c.Value) {
		return nil
	}
	b = t.newBase(c.Value, c, m)
	b.reset = true
	return b
}

// observeDelete handles the base of a record when the key is not in the map. If the entry may be later than that, the
// record gets one. If the table accepts the delete, observe follows.
func (t *Table) observeDelete(c *Change, s uint32) {
	if t.opt.Counter == nil {
		return
	}
	m := t.meta(s)
	switch b := t.bases[s]; {
	case b == nil:
		if m.live() && !m.is(flagDirty|flagUncounted) && t.mayBeOlder(c, s) {
			t.hold(s, t.newBase(t.value(s), c, m))
		}
	case c.Time <= b.until:
		if c.Context == ContextReread {
			t.requestReread(s)
		}
	case !m.live():
		t.endBase(s)
	}
}

// mayBeOlder reports whether a change may be older than the record's content. The time of a read is that at which it
// began. The table has only lastRead, by which it ended.
func (t *Table) mayBeOlder(c *Change, s uint32) bool {
	m := t.meta(s)
	if c.Context == ContextReread {
		return t.uncertain(c, m) || c.Read != nil && c.Read.isStale(s)
	}
	return t.uncertain(c, m) || m.lastCPU() == cpuNone && (t.loading != nil || c.Time <= t.lastRead)
}

// hold sets the base of a record, nil for none, after a change became the record's content.
func (t *Table) hold(s uint32, b *base) {
	if b == nil {
		return
	}
	if t.bases == nil {
		t.bases = make(map[uint32]*base)
	}
	t.bases[s] = b
	t.requestReread(s)
}

// endBase passes the highest value to the counter, and removes the base of a record whose entry ends or is replaced.
func (t *Table) endBase(s uint32) {
	b := t.bases[s]
	if b == nil {
		return
	}
	delete(t.bases, s)
	if b.most != nil {
		t.opt.Counter.Changed(t.key(s), b.value, b.most)
	}
}

// release frees a slot. The slot must be in no list.
func (t *Table) release(s uint32) {
	delete(t.bases, s)
	t.useCopy(t.key(s))
	t.slab.release(s)
}
