package table

import "math"

// Expire forgets tombstones that are older than Options.TombstoneTTL, and acknowledged ones that are older
// than Options.TombstoneGrace. It forgets up to limit of them and returns true if there may be more. It
// keeps a tombstone that the writer has yet to write to the kernel map, or whose entry has yet to be read again. It also
// moves settled tombstones to the log. now is the wall clock in nanoseconds.
func (tx *Tx) Expire(now int64, limit int) (more bool) {
	return tx.t.expire(now, limit, flagDirty|flagUnversioned|flagReleased|flagReread)
}

// ExpireUnwritten is Expire for a table without a kernel map. Without a map, no writer writes the dirty
// tombstones, while peers continue to delete. If the map still holds a forgotten key when it becomes
// available again, the key counts as a new entry of the map.
func (tx *Tx) ExpireUnwritten(now int64, limit int) (more bool) {
	return tx.t.expire(now, limit, flagUnversioned)
}

// SetAcknowledged sets the position up to which every node that may hold a record has acknowledged this
// table's changes as applied to its kernel map, and has no older record on its way. Expire forgets tombstones up to it after
// Options.TombstoneGrace. Position 0 means that such a node is unreachable. Tombstones are then kept for
// Options.TombstoneTTL.
func (tx *Tx) SetAcknowledged(position uint64) { tx.t.acked = min(position, tx.t.seq) }

// compactSteps is the number of new tombstones that a call of Expire with a smaller limit may take.
const compactSteps = 64

// inTombs reports whether a slot has a tombstone in the queue tombs. The queue may also contain slots of
// other records.
func (m *meta) inTombs() bool { return !m.live() && m.is(flagInTombs) }

// expire forgets old tombstones, except those with one of the flags kept.
func (t *Table) expire(now int64, limit int, kept flags) (more bool) {
	t.tx.AdvanceClock(now)
	ttl := int64(t.opt.TombstoneTTL)
	// The subtractions below must not overflow.
	if now < math.MinInt64+ttl {
		return false
	}
	t.acceptRefused(now)
	more = t.compact(now, max(limit, compactSteps))
	more = t.expireCompact(now, limit) || more
	shorter := false
	n := min(limit, t.tombs.len())
	for range n {
		if q := t.tombs.peek(); !t.due(q, now) {
			return more
		}
		shorter = t.expireDue(t.tombs.pop(), now-ttl, now, kept) || shorter
	}
	return more || (shorter && n == limit)
}

// due reports whether the oldest tombstone may be forgotten: its lifetime has ended, or it is acknowledged.
// If it may not, the tombstones behind it may not either.
func (t *Table) due(q timedSlot, now int64) bool {
	switch {
	case q.when <= now-int64(t.opt.TombstoneTTL), !t.meta(q.slot).inTombs():
		return true
	case q.when > now-int64(t.opt.TombstoneGrace) || t.loading != nil || t.unscanned:
		return false
	}
	return t.meta(q.slot).seq <= t.acked
}

// expireDue forgets a tombstone that was taken from the queue, or returns it to the queue. It reports
// whether the queue became shorter. old is the time before which the lifetime of tombstones has ended.
func (t *Table) expireDue(q timedSlot, old, now int64, kept flags) bool {
	const open = flagReread | flagUncertain
	m := t.meta(q.slot)
	switch {
	case !m.inTombs():
		m.flags &^= flagInTombs
	case m.is(flagReleased & kept):
		t.tombs.push(timedSlot{now, q.slot})
		return false
	case t.keepsTombstone(q.slot, kept), m.seen > old && (m.seq > t.acked || t.loading != nil || t.unscanned || m.seen > now-int64(t.opt.TombstoneGrace) || m.is(open)):
		t.tombs.push(timedSlot{max(m.seen, old+1), q.slot})
		return false
	case m.seen > old:
		t.stats.Acknowledged++
		t.expireOne(q, kept)
	default:
		t.stats.Expired++
		t.expireOne(q, kept)
	}
	return true
}

// keepsTombstone reports whether a tombstone has one of the flags kept. If dirty ones are kept, so is the tombstone of an entry of
// a new map that waits for its reread: the writer deletes the entry after that.
func (t *Table) keepsTombstone(s uint32, kept flags) bool {
	return t.meta(s).is(kept) || kept&flagDirty != 0 && t.isCopy(s)
}

// expireOne forgets the tombstone of an entry that was taken from the queue, and returns true if it did. A
// tombstone that keepsTombstone reports goes back into the queue. If the key is live again, expireOne forgets nothing.
func (t *Table) expireOne(q timedSlot, kept flags) bool {
	m := t.meta(q.slot)
	switch {
	case !m.inTombs():
		m.flags &^= flagInTombs
		return false
	case t.keepsTombstone(q.slot, kept):
		t.tombs.push(q)
		return false
	}
	t.raiseFloor(m.seq, m.is(flagInferred))
	if kept&flagDirty != 0 && m.is(flagUncertain) {
		t.queueUnknownReread(t.key(q.slot)) // the map may hold the key
	}
	t.forget(q.slot)
	return true
}

// raiseFloor notes that a tombstone is forgotten. No peer misses an inferred tombstone, which is not sent.
func (t *Table) raiseFloor(seq uint64, inferred bool) {
	if !inferred {
		t.floor = max(t.floor, seq)
	}
}

// forget releases a tombstone's slot. An element for the slot may stay in the queue tombs. It does no harm
// to the next record of the slot: expireDue skips a live record and checks the time of a later tombstone.
func (t *Table) forget(s uint32) {
	m, h := t.meta(s), t.hash(t.key(s))
	t.noteForgotten(h, m.seen, m.lastCPU(), m.is(flagPacketDelete), m.is(flagWritten))
	if t.loading != nil { // an older read, too
		t.loading.noteDelete(&Change{Key: t.key(s), Time: m.seen, Context: ContextReread})
	}
	t.unlink(s)
	t.unrelease(m)
	t.dropReread(m)
	t.clearDirty(s)
	t.index.remove(h, s)
	t.clears.loadedOf.remove(s)
	t.owners.moveReference(m.owner, selfID)
	t.release(s)
	t.stats.Tombstones--
}
