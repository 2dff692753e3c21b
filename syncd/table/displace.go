package table

// displaceSteps bounds how many records one search for a victim looks at.
const displaceSteps = 64

// displaced marks a record that the writer took out of a full kernel map: it is to be
// written again like one whose write failed. No other record has all three.
const displaced = flagDirty | flagFailed | flagEvicted

// Displace makes way for a record whose write failed because the kernel map is full: it
// picks the oldest record that another node owns and that the map holds, describes it in
// victim, and has the refused record written again. It returns false when there is nothing
// that should make way: the newest win, and what this node owns is never a
// victim, and goes before all that others own.
//
// The victim stays in the table, as one whose write failed. The caller deletes
// it from the kernel map before anything else is written, and then calls Displaced.
//
// hand is the caller's, made at position 0 and used for nothing else: it remembers where the
// oldest are. Rewind it from time to time.
func (tx *Tx) Displace(hand *Cursor, refused Ref, v Version, victim *Record) bool {
	t := tx.t
	s := uint32(refused)
	if s < firstSlot || s >= t.allocated {
		return false
	}
	m := t.meta(s)
	if m.flags&(flagFree|displaced) != flagDirty|flagFailed || m.version != v || !m.live() {
		return false // it is not what was refused any more
	}
	old := t.oldestForeign(hand)
	if old == 0 {
		return false
	}
	if o := t.meta(old); !t.ours(m.owner) && o.version >= m.version {
		return false
	}
	hand.step()
	t.markDirty(old)
	t.fail(old)
	t.meta(old).flags |= flagEvicted
	t.describe(old, victim)
	t.clearFailed(m)
	t.moveTail(s)
	t.stats.Displaced++
	return true
}

// oldestForeign returns the record after the hand, which it moves over all that cannot
// make way; 0 when it did not get to one.
func (t *Table) oldestForeign(hand *Cursor) uint32 {
	for range displaceSteps {
		s := t.meta(hand.at).next
		if s == order || hand.closed {
			return 0
		}
		m := t.meta(s)
		const unsure = flagDirty | flagEvicted | flagRecheck | flagDoubt
		if m.live() && !m.is(unsure) && !t.ours(m.owner) {
			return s
		}
		hand.step()
	}
	return 0
}

// Rewind moves a cursor to the beginning.
func (tx *Tx) Rewind(c *Cursor) {
	c.at, c.pos, c.end, c.warm = order, 0, 0, 0
	tx.t.meta(order).flags |= flagCursor
}

// Displaced says that a victim of Displace is out of the kernel map. now is a time after
// that, by the clock of changes. What has become of the record meanwhile is
// written again: the map lost it, whoever wrote it.
func (tx *Tx) Displaced(ref Ref, v Version, now int64) {
	t := tx.t
	s := uint32(ref)
	if s < firstSlot || s >= t.allocated {
		return
	}
	m := t.meta(s)
	t.outdate(s)
	switch {
	case m.is(flagFree|flagUnversioned) || !m.live():
	case m.flags&displaced == displaced && m.version == v:
		m.seen = max(m.seen, now)
	case !m.is(flagDirty):
		t.markDirty(s)
		t.moveTail(s)
	}
}
