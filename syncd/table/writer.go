package table

// NextDirty passes records like Next up to the next one that is to be written
// to the kernel map, and describes it in rec. Records whose write failed are
// left out until RequeueFailed. It returns false at the end.
//
// A writer starts with a cursor at AppliedPosition, writes what it gets,
// reports each with Applied, and then sets the applied position to that of its
// cursor.
func (tx *Tx) NextDirty(c *Cursor, rec *Record) bool {
	t := tx.t
	if s := t.retry(); s != 0 {
		t.take(s)
		t.describe(s, rec)
		return true
	}
	for {
		if t.stats.Dirty == t.stats.Failed && !c.closed {
			t.toEnd(c)
			return false
		}
		c.lookAhead(unwritten)
		s := c.step()
		if s == 0 {
			return false
		}
		m := t.meta(s)
		if m.flags&(flagDirty|flagFailed) == flagDirty {
			m.flags &^= flagRedo
			t.take(s)
			t.describe(s, rec)
			if m.is(flagReleased) {
				rec.Delete, rec.Value = false, t.value(s) // it was on its way to the map
			}
			return true
		}
	}
}

// toEnd passes all records at once.
func (t *Table) toEnd(c *Cursor) {
	c.at, c.pos = t.meta(order).prev, max(c.pos, t.seq)
	t.meta(c.at).flags |= flagCursor
}

// Applied reports the write of a record that NextDirty returned, with the
// version that it had. If the record is still the same it is no longer dirty,
// or, if err is not nil, marked as failed and left out until RequeueFailed. If
// a local change took the record over while it was written, the kernel may hold
// either, so the key is read again; if a peer's record has come over that since,
// it is written once more.
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
	if err == nil {
		t.outdate(s)
	}
	switch {
	case !m.is(flagDirty):
		if err == nil && m.version != v {
			t.overtaken(s)
		}
	case m.version != v || m.is(flagRedo):
		// Changed since: it is at the tail, and comes again.
	case err != nil && m.is(flagReleased):
		t.unrelease(m) // what the map holds instead is older: it is deleted
		t.moveTail(s)
	case err != nil:
		t.fail(s)
	default:
		if m.is(flagFailed) {
			t.heldAgain(s)
		}
		t.clearDirty(s)
		t.met(s)
		m.flags = m.flags&^flagDoubt | flagWritten
	}
}

// overtaken deals with a record that the kernel was to hold, and that the write
// of an older one may have replaced there.
func (t *Table) overtaken(s uint32) {
	if t.ours(t.meta(s).owner) {
		t.recheck(s)
		return
	}
	t.markDirty(s)
	t.moveTail(s)
}

func (t *Table) fail(s uint32) {
	m := t.meta(s)
	if !m.is(flagFailed) {
		m.flags |= flagFailed
		t.stats.Failed++
		t.owners.list[m.owner].digest.failed++
	}
	if !m.is(flagInFailures) {
		m.flags |= flagInFailures
		t.failures.push(s)
	}
	t.refused(s)
	t.tx.changed = true
}

// RequeueFailed has up to limit records whose write failed tried again, oldest failure
// first, and returns how many. What Displace took out of the map is among them. Their
// place in the order stays: no peer has sent them again.
func (tx *Tx) RequeueFailed(limit int) int {
	t := tx.t
	n := 0
	for range t.failures.len() {
		if n == limit {
			break
		}
		s := t.failures.pop()
		if t.meta(s).is(flagFailed) {
			t.retries.push(s)
			tx.changed = true
			n++
		} else {
			t.meta(s).flags &^= flagInFailures
		}
	}
	return n
}

// retry returns the next record that RequeueFailed queued and whose write is still
// failed, 0 if there is none. Until it is written it counts as failed: should the writer
// end before, the next one finds it.
func (t *Table) retry() uint32 {
	for t.retries.len() > 0 {
		s := t.retries.pop()
		m := t.meta(s)
		if !m.is(flagFailed) {
			m.flags &^= flagInFailures
			continue
		}
		t.failures.push(s)
		m.flags &^= flagEvicted | flagRedo
		return s
	}
	return 0
}

// SetApplied records that the kernel map holds the table up to a position, and all that
// NextDirty returned. It does not go down; Refill alone takes it back.
func (tx *Tx) SetApplied(position uint64) {
	t := tx.t
	t.delivered()
	if position = min(position, t.seq); position > t.applied {
		t.applied = position
		tx.changed = true
	}
}

// AppliedPosition returns the position up to which the kernel map holds the
// table. Acknowledgements to peers stand on it.
func (tx *Tx) AppliedPosition() uint64 { return tx.t.applied }

// Refill prepares the table for a new, empty kernel map: every live record is
// dirty, no tombstone is, and the applied position is 0. The writer must start
// again with a new cursor. Records that are still unversioned follow when they
// are claimed. It looks at all records at once.
func (tx *Tx) Refill() {
	t := tx.t
	for _, list := range [...]uint32{order, unversioned} {
		for s := t.meta(list).next; s != list; s = t.meta(s).next {
			m := t.meta(s)
			m.flags &^= flagWritten | flagEvicted
			t.unrelease(m)
			if m.live() {
				t.markDirty(s)
			} else {
				t.clearDirty(s)
			}
		}
	}
	for _, h := range append(t.owners.holders, &t.owners.departed) {
		t.dropHand(h)
	}
	t.applied = 0
	t.unsure = true // until the new map was scanned
	tx.changed = true
}

// TakeRechecks copies the keys that are to be read again from the kernel into
// buf, one after the other, each once and in the order in which they were
// asked for. It returns their number, at most what fits into buf. What is found
// goes to Local with ContextReread and the time before the read.
func (tx *Tx) TakeRechecks(buf []byte) int {
	t := tx.t
	n := t.rereads.take(buf, t.opt.KeySize)
	buf = buf[n*t.opt.KeySize:]
	for size := t.opt.KeySize; len(buf) >= size && t.rechecks.len() > 0; {
		s := t.rechecks.pop()
		m := t.meta(s)
		m.flags &^= flagInRechecks
		// While the record is dirty the recheck waits for clearDirty.
		if !m.is(flagRecheck) || m.is(flagDirty) {
			continue
		}
		t.dropRecheck(m)
		if m.is(flagWritten) {
			// A scan may still come with what it read before that write.
			m.flags = m.flags&^flagWritten | flagDoubt
		}
		copy(buf, t.key(s))
		buf = buf[size:]
		n++
	}
	return n
}
