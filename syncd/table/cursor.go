package table

import "slices"

// Cursor is a place in the order of a table. It stays valid while records move. A reader sees a record
// again if it changes after the cursor passed it, and it misses no record. One goroutine at a time may use
// a cursor. The lock of the table protects its fields.
type Cursor struct {
	// t is the table. It never changes.
	t *Table
	// at is the record that the cursor passed last, or the head of the list. That record has flagCursor
	// while the cursor is in t.cursors.
	at uint32
	// pos is the position that the cursor has reached. All changes up to it were passed. It never
	// decreases, except by moveTo.
	pos uint64
	// end is the last position that nextBounded returns. 0: nextBounded was not called yet.
	end uint64
	// prefetched is the position up to which prefetch has read records.
	prefetched uint64
	// logPos is the cursor's place in the log of compact tombstones.
	logPos tombLogPos
	// closed is set by Close. A closed cursor returns no more records in slots.
	closed bool
}

// NewCursor returns a cursor that starts behind a position: the first record that it returns is the first
// one with a higher position. The search starts at the nearest cursor or end of the order, and its cost is
// proportional to the distance. The caller closes the cursor after use.
func (t *Table) NewCursor(position uint64) *Cursor {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := &Cursor{t: t, pos: min(position, t.seq)}
	c.at = t.seek(c.pos)
	t.meta(c.at).flags |= flagCursor
	t.cursors = append(t.cursors, c)
	return c
}

// seek returns the last record with a position of at most pos, or the head of the list if there is none.
func (t *Table) seek(pos uint64) uint32 {
	at, best := order, pos
	consider := func(s uint32) {
		seq := t.meta(s).seq
		if d := max(seq, pos) - min(seq, pos); d < best {
			at, best = s, d
		}
	}
	consider(t.meta(order).prev)
	for _, c := range t.cursors {
		consider(c.at)
	}
	for at != order && t.meta(at).seq > pos {
		at = t.meta(at).prev
	}
	for {
		next := t.meta(at).next
		if next == order || t.meta(next).seq > pos {
			return at
		}
		at = next
	}
}

// Close releases the cursor. It may be called more than once, but not from inside Update or View.
func (c *Cursor) Close() {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	c.closed = true
	c.t.cursors = slices.DeleteFunc(c.t.cursors, func(o *Cursor) bool { return o == c })
}

// Position returns the position of the last record that the cursor returned, or the table's head once the
// cursor reached the end. The reader has seen every change up to this position.
func (c *Cursor) Position() uint64 { return c.pos }

// step passes one record in a slot and returns it, or 0 at the end. It skips compact tombstones.
func (c *Cursor) step() uint32 {
	t := c.t
	s := t.meta(c.at).next
	if s == order || c.closed {
		// Every record with a position up to here was passed or has moved to a later position.
		c.pos = max(c.pos, t.seq)
		return 0
	}
	m := t.meta(s)
	m.flags |= flagCursor
	c.at, c.pos = s, m.seq
	return s
}

// nextBounded passes one record like advance. It returns 0 at the records that reached the tail after the
// first call. Without this bound, a caller that moves records to the tail would never reach the end.
func (c *Cursor) nextBounded() uint32 {
	if c.end == 0 {
		c.end = c.t.seq
	}
	if _, seq := c.peek(); seq > c.end {
		return 0
	}
	return c.advance()
}

// Next passes the next record of the order, tombstones included, and describes it in rec. It returns false
// at the end. The caller may call it again later. The fields of rec are borrowed, see Record.
func (tx *Tx) Next(c *Cursor, rec *Record) bool {
	c.prefetch(streamed)
	s := c.advance()
	if s == 0 {
		return false
	}
	if s&compactBit != 0 {
		tx.t.describeCompact(s, rec)
	} else {
		tx.t.describe(s, rec)
	}
	return true
}

// describe fills in rec for a record in a slot. Key and value are borrowed from the table.
func (t *Table) describe(s uint32, rec *Record) {
	m := t.meta(s)
	*rec = Record{
		Key:      t.key(s),
		Version:  m.version,
		Owner:    m.owner,
		Delete:   !m.live(),
		Expired:  m.is(flagExpired),
		Inferred: m.is(flagInferred),
		Named:    m.is(flagNamed) && !t.owners.list[m.owner].gone,
		Position: m.seq,
		Ref:      Ref(s),
		Dirty:    m.is(flagDirty),

		Undecided: m.is(flagHeld) && t.isRestored(m.version),
	}
	if !rec.Delete {
		rec.Value = t.value(s)
	}
}

// Head returns the position of the newest change. It never decreases.
func (tx *Tx) Head() uint64 { return tx.t.seq }

// Floor returns the highest position of a forgotten tombstone. A reader below the floor may have missed a
// delete. It must reread the order from position 0, and its peer must call Sweep afterwards.
func (tx *Tx) Floor() uint64 { return tx.t.floor }

// Get describes the record of a key in rec, tombstones and unversioned records included. It returns false
// if the table has no record of the key, or if the key has a wrong size.
func (tx *Tx) Get(key []byte, rec *Record) bool {
	if len(key) != tx.t.opt.KeySize {
		return false
	}
	t := tx.t
	h, s := t.find(key)
	if s != 0 {
		t.describe(s, rec)
		return true
	}
	number := t.log.find(h, key)
	if number != 0 {
		t.describeCompact(number, rec)
	}
	return number != 0
}
