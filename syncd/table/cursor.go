package table

import "slices"

// Cursor is a place in the order of a table. It stays valid while records move:
// what was passed and changes again comes once more, and nothing is left out.
// A cursor belongs to one goroutine at a time.
type Cursor struct {
	t      *Table
	at     uint32 // the record passed last, or the head of the list
	pos    uint64
	end    uint64 // where a bounded walk stops; 0 = not begun
	warm   uint64 // position up to which lookAhead has read
	log    compactAt
	closed bool
}

// NewCursor returns a cursor whose first record is the first one with a
// position above the given one. Finding the place costs a walk from the nearest
// end or cursor. Close it when it is no longer used.
func (t *Table) NewCursor(position uint64) *Cursor {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := &Cursor{t: t, pos: min(position, t.seq)}
	c.at = t.place(c.pos)
	t.meta(c.at).flags |= flagCursor
	t.cursors = append(t.cursors, c)
	return c
}

// place returns the last record with a position of at most pos, or the head of
// the list.
func (t *Table) place(pos uint64) uint32 {
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

// Close gives the cursor up. It may be called more than once, but not from
// inside Update or View.
func (c *Cursor) Close() {
	c.t.mu.Lock()
	defer c.t.mu.Unlock()
	c.closed = true
	c.t.cursors = slices.DeleteFunc(c.t.cursors, func(o *Cursor) bool { return o == c })
}

// Position returns the position of the record returned last, or the table's
// head once the end was reached. The reader has seen every change up to it.
func (c *Cursor) Position() uint64 { return c.pos }

// step passes one record in a slot and returns it, or 0 at the end.
func (c *Cursor) step() uint32 {
	t := c.t
	s := t.meta(c.at).next
	if s == order || c.closed {
		// Whatever had a position up to here has been passed or has moved on.
		c.pos = max(c.pos, t.seq)
		return 0
	}
	m := t.meta(s)
	m.flags |= flagCursor
	c.at, c.pos = s, m.seq
	return s
}

// bounded passes one record like advance, but none that came to the tail after the
// first call: those that the caller moves would never end.
func (c *Cursor) bounded() uint32 {
	if c.end == 0 {
		c.end = c.t.seq
	}
	if _, seq := c.next(); seq > c.end {
		return 0
	}
	return c.advance()
}

// Next passes the next record of the order, tombstones included, and describes
// it in rec. It returns false at the end, and may be called again later.
func (tx *Tx) Next(c *Cursor, rec *Record) bool {
	c.lookAhead(streamed)
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

func (t *Table) describe(s uint32, rec *Record) {
	m := t.meta(s)
	*rec = Record{
		Key:      t.key(s),
		Version:  m.version,
		Owner:    m.owner,
		Delete:   !m.live(),
		Expired:  m.is(flagExpired),
		Position: m.seq,
		Ref:      Ref(s),
		Dirty:    m.is(flagDirty),
	}
	if !rec.Delete {
		rec.Value = t.value(s)
	}
}

// Head returns the position of the newest change. It never goes down.
func (tx *Tx) Head() uint64 { return tx.t.seq }

// Floor returns the highest position of a tombstone that was forgotten. A
// reader below it may have missed a delete: it must walk again from 0, and its
// peer must Sweep afterwards.
func (tx *Tx) Floor() uint64 { return tx.t.floor }

// Get describes the record of a key, tombstones and unversioned records
// included. It returns false when there is none.
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
