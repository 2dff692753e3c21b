package table

// NextDirty passes records like Next up to the next one that the writer has to write to the kernel map, and
// describes it in rec. It skips records whose write failed until RequeueFailed, or until Displace has selected
// a victim for them. It returns false at the end. The fields of rec are borrowed, see Record.
//
// A writer starts with a cursor at AppliedPosition. It writes the records that NextDirty returns and
// reports each one with Applied. Then it calls SetApplied with the position of its cursor.
func (tx *Tx) NextDirty(c *Cursor, rec *Record) bool {
	t := tx.t
	// Retries come first. They do not depend on the position of the cursor.
	s := t.nextFailed(&t.withVictim)
	if s == 0 {
		s = t.nextRetry()
	}
	if s == 0 {
		s = t.nextOfOrder(c)
	}
	if s == 0 {
		s = t.nextFailed(&t.deferred)
	}
	if s == 0 {
		return false
	}
	t.barrierTaken(s)
	t.describe(s, rec)
	rec.NoRoom = t.lacksRoom(s)
	if t.meta(s).is(flagReleased) {
		rec.Delete, rec.Value = false, t.value(s) // the value was about to be written to the map
	}
	return true
}

// nextOfOrder passes records up to the next one that the writer has to write and has not tried yet. It returns 0
// at the end.
func (t *Table) nextOfOrder(c *Cursor) uint32 {
	for {
		// If all dirty records have failed, the cursor skips the rest of the order.
		if t.stats.Dirty == t.stats.Failed && !c.closed {
			t.toEnd(c)
			return 0
		}
		c.prefetch(unwritten)
		s := c.step()
		if s == 0 {
			return 0
		}
		if m := t.meta(s); m.flags&(flagDirty|flagFailed) == flagDirty {
			m.flags &^= flagRedo
			return s
		}
	}
}

// toEnd moves a cursor behind all records.
func (t *Table) toEnd(c *Cursor) {
	c.at, c.pos = t.meta(order).prev, max(c.pos, t.seq)
	t.meta(c.at).flags |= flagCursor
}

// Applied reports the write of a record that NextDirty returned. v is the version that the record had then.
// If the record has not changed, Applied clears its dirty mark. If err is not nil, it marks the record as
// failed instead, and NextDirty skips it until RequeueFailed. A local change may have replaced the record
// during the write. The kernel may then hold either value, so the key is reread. If a peer's record has
// replaced that change since, it is written again.
func (tx *Tx) Applied(ref Ref, v Version, err error) {
	t := tx.t
	s := uint32(ref)
	if err != nil {
		t.stats.WriteFailed++
	}
	if s < firstSlot || s >= t.allocated || t.meta(s).is(flagFree) {
		return
	}
	m := t.meta(s)
	// An open reading may have read the entry before this write.
	if err == nil {
		t.invalidateReadings(s)
	}
	switch {
	// A change during the write has made the record clean.
	case !m.is(flagDirty):
		switch {
		case err != nil:
		case m.is(flagHeld):
			m.flags |= flagWritten | flagLateWrite
		case m.version != v:
			t.overtaken(s)
		}
	// The record has changed, is at the tail, and will be returned again. A local change may come first, whose
	// event is older than this write.
	case m.version != v || m.is(flagRedo):
		if err == nil {
			m.flags |= flagWritten
		}
	case err != nil && m.is(flagReleased):
		t.unrelease(m) // the map holds an older entry, which the writer deletes
		t.moveTail(s)
	case err != nil:
		t.markFailed(s)
	default:
		// The map has accepted a record that it had refused.
		if m.is(flagFailed) {
			t.rewindVictims(s)
		}
		t.clearDirty(s)
		t.markScanned(s)
		m.flags = m.flags&^flagUncertain | flagWritten
		if m.live() {
			t.setFlags(m, 0, flagEntry)
		}
	}
}

// SetApplied sets the position up to which the kernel map has the content of the table. All records that
// NextDirty returned must be written. The position never decreases, except by Refill.
func (tx *Tx) SetApplied(position uint64) {
	t := tx.t
	t.barrierFlushed()
	t.room.taken = 0
	if position = min(position, t.seq); position > t.applied {
		t.applied = position
		t.unheld.noteApplied(position)
		tx.changed = true
	}
}

// AppliedPosition returns the position up to which the kernel map has the content of the table. syncd
// acknowledges up to this position to peers.
func (tx *Tx) AppliedPosition() uint64 { return tx.t.applied }

// TakeRereads copies the keys that wait for a reread from the kernel map into buf, one after the other.
// Each key is copied once, in the order of the requests. It returns the number of keys, at most as many as
// fit into buf. The caller passes the results to Local with ContextReread and the time before the read.
func (tx *Tx) TakeRereads(buf []byte) int {
	t := tx.t
	n := t.unknownRereads.take(buf, t.opt.KeySize)
	buf = buf[n*t.opt.KeySize:]
	for size := t.opt.KeySize; len(buf) >= size && t.rereads.len() > 0; {
		s := t.rereads.pop()
		m := t.meta(s)
		m.flags &^= flagInRereads
		// While the record is dirty, the reread waits for clearDirty.
		if !m.is(flagReread) || m.is(flagDirty) {
			continue
		}
		t.dropReread(m)
		if m.is(flagWritten) {
			// A scan may still deliver a value that it read before that write.
			m.flags = m.flags&^flagWritten | flagUncertain
		}
		copy(buf, t.key(s))
		buf = buf[size:]
		n++
	}
	return n
}
