package table

import "math"

// Touch moves the records of all incarnations of a node, tombstones included, to the tail. Every reader
// therefore reads them again, and this node sends them in place of their owner. Touch looks at up to limit
// records. While it returns true, the caller calls it again with the same cursor. The first call needs a
// new cursor at position 0. Touch ignores records that move to the tail after the first call.
func (tx *Tx) Touch(node string, c *Cursor, limit int) (more bool) {
	t := tx.t
	for range limit {
		s := c.nextBounded()
		if s == 0 {
			return false
		}
		if s&compactBit != 0 {
			t.touchCompact(s, node)
		} else if t.owners.list[t.meta(s).owner].Node == node {
			t.moveTail(s)
		}
	}
	return true
}

// touchCompact moves a compact tombstone to the tail if the node owns it.
func (t *Table) touchCompact(number uint32, node string) {
	c, i := t.log.at(number)
	if t.owners.list[c.owners[i]].Node == node {
		t.moveTail(t.expandTombstone(t.hash(t.log.key(c, i)), number))
		t.finishChange()
	}
}

// Sweep deletes the live records of all incarnations of a node whose position is below before, as if that
// node had deleted them. After a full sync of that node's records, merged with RemoteOptions.Touch, these
// are the records that the node no longer has. The tombstone keeps the version and the owner of the record.
// It therefore wins over that record only, and any other change of the key wins over the tombstone.
//
// before is the first position that the full sync could assign: Head plus one at its start. now is the wall
// clock in nanoseconds. Sweep looks at up to limit records. While it returns true, the caller calls it
// again with the same cursor. The first call needs a new cursor at position 0.
func (tx *Tx) Sweep(node string, before uint64, now int64, c *Cursor, limit int) (more bool) {
	return tx.t.sweep(node, nil, before, now, c, limit)
}

// SweepBuckets works like Sweep, but only for the records in some buckets. It also returns the number of
// records that it deleted.
func (tx *Tx) SweepBuckets(node string, in *BucketSet, before uint64, now int64, c *Cursor, limit int) (deleted int, more bool) {
	was := tx.t.stats.Swept
	more = tx.t.sweep(node, in, before, now, c, limit)
	return int(tx.t.stats.Swept - was), more
}

// sweep implements Sweep and SweepBuckets. A nil set selects all buckets.
func (t *Table) sweep(node string, in *BucketSet, before uint64, now int64, c *Cursor, limit int) (more bool) {
	for range limit {
		s := c.nextBounded()
		if s == 0 || c.pos >= before {
			return false
		}
		// Compact tombstones are not live.
		if s&compactBit != 0 {
			continue
		}
		m := t.meta(s)
		if !m.live() || t.owners.list[m.owner].Node != node || (in != nil && !in.Has(t.bucket(t.key(s)))) {
			continue
		}
		t.dropFromDigest(s)
		t.makeTombstone(s, now)
		m.cpu = cpuNone
		t.markDirty(s)
		t.moveTail(s)
		t.stats.Swept++
	}
	return true
}

// Expire forgets tombstones that are older than Options.TombstoneTTL, and acknowledged ones that are older
// than Options.TombstoneGrace. It forgets up to limit of them and returns true if there may be more. It
// keeps a tombstone that the writer has yet to write to the kernel map. It also moves settled tombstones to
// the log. now is the wall clock in nanoseconds.
func (tx *Tx) Expire(now int64, limit int) (more bool) {
	return tx.t.expire(now, limit, flagDirty|flagUnversioned|flagReleased)
}

// ExpireUnwritten is Expire for a table without a kernel map. Without a map, no writer writes the dirty
// tombstones, while peers continue to delete. If the map still holds a forgotten key when it becomes
// available again, the key counts as a new entry of the map.
func (tx *Tx) ExpireUnwritten(now int64, limit int) (more bool) {
	return tx.t.expire(now, limit, flagUnversioned)
}

// SetAcknowledged sets the position up to which every node that may hold a record has acknowledged this
// table's changes as applied to its kernel map. Expire forgets tombstones up to it after
// Options.TombstoneGrace. Position 0 means that such a node is unreachable. Tombstones are then kept for
// Options.TombstoneTTL.
func (tx *Tx) SetAcknowledged(position uint64) { tx.t.acked = min(position, tx.t.seq) }

// compactSteps is the number of records that the compaction cursor may pass in a call of Expire with a
// smaller limit.
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
	case m.is(kept), m.seen > old && (m.seen > now-int64(t.opt.TombstoneGrace) || m.is(open)):
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

// expireOne forgets the tombstone of an entry that was taken from the queue, and returns true if it did. A
// tombstone with one of the flags kept, such as one that the writer has yet to write, goes back into the
// queue. If the key is live again, expireOne forgets nothing.
func (t *Table) expireOne(q timedSlot, kept flags) bool {
	m := t.meta(q.slot)
	switch {
	case !m.inTombs():
		m.flags &^= flagInTombs
		return false
	case m.is(kept):
		t.tombs.push(q)
		return false
	}
	t.floor = max(t.floor, m.seq)
	t.forget(q.slot)
	return true
}

// forget releases a tombstone's slot. An element for the slot may stay in the queue tombs. It does no harm
// to the next record of the slot: expireDue skips a live record and checks the time of a later tombstone.
func (t *Table) forget(s uint32) {
	m, h := t.meta(s), t.hash(t.key(s))
	t.noteAbsent(h, m.seen, m.cpu) // an older event may still arrive
	if t.loading != nil {          // an older read, too
		t.loading.noteDelete(&Change{Key: t.key(s), Time: m.seen, Context: ContextSyscall})
	}
	t.unlink(s)
	t.unrelease(m)
	t.dropReread(m)
	t.clearDirty(s)
	t.index.remove(h, s)
	t.owners.moveReference(m.owner, selfID)
	t.release(s)
	t.stats.Tombstones--
}
