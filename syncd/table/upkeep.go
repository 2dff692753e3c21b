package table

import "math"

// Touch moves the records that any incarnation of a node owns, tombstones
// included, to the tail, so that every reader meets them again: this node now
// streams them in the other's place. It looks at up to limit records; while it
// returns true, call it again with the same cursor. Begin with a new cursor at
// position 0; what comes to the tail after the first call is left alone.
func (tx *Tx) Touch(node string, c *Cursor, limit int) (more bool) {
	t := tx.t
	for range limit {
		s := c.bounded()
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

func (t *Table) touchCompact(number uint32, node string) {
	c, i := t.log.at(number)
	if t.owners.list[c.owners[i]].Node == node {
		t.moveTail(t.thaw(t.hash(t.log.key(c, i)), number))
		t.refreeze()
	}
}

// Sweep deletes the live records that any incarnation of a node owns and whose
// position is below before, as if that node had said so: after a walk through
// all it has, merged with RemoteOptions.Touch, these are the ones it no longer
// has. The tombstone keeps the record's version and owner: it wins over that
// record alone, so whatever else has become of the key since wins over it.
//
// before is the first position that the walk could give out: Head plus one when
// it began. Sweep looks at up to limit records; while it returns true, call it
// again with the same cursor. Begin with a new cursor at position 0.
func (tx *Tx) Sweep(node string, before uint64, now int64, c *Cursor, limit int) (more bool) {
	return tx.t.sweep(node, nil, before, now, c, limit)
}

// SweepBuckets is Sweep for the records in some buckets only. It also returns how many
// it deleted.
func (tx *Tx) SweepBuckets(node string, in *BucketSet, before uint64, now int64, c *Cursor, limit int) (deleted int, more bool) {
	was := tx.t.stats.Swept
	more = tx.t.sweep(node, in, before, now, c, limit)
	return int(tx.t.stats.Swept - was), more
}

func (t *Table) sweep(node string, in *BucketSet, before uint64, now int64, c *Cursor, limit int) (more bool) {
	for range limit {
		s := c.bounded()
		if s == 0 || c.pos >= before {
			return false
		}
		if s&compactBit != 0 {
			continue
		}
		m := t.meta(s)
		if !m.live() || t.owners.list[m.owner].Node != node || (in != nil && !in.Has(t.bucket(t.key(s)))) {
			continue
		}
		t.withdraw(s)
		t.kill(s, now)
		m.cpu = cpuNone
		t.markDirty(s)
		t.moveTail(s)
		t.stats.Swept++
	}
	return true
}

// Expire forgets the tombstones that are older than Options.TombstoneTTL, up to
// limit of them, and returns true if there may be more. One that is still to be
// written to the kernel is kept. now is the wall clock in nanoseconds.
func (tx *Tx) Expire(now int64, limit int) (more bool) {
	return tx.t.expire(now, limit, flagDirty|flagUnversioned|flagReleased)
}

// ExpireUnwritten is Expire for a table without a kernel map: nobody writes what is to be
// written, and peers go on deleting. What the map still holds of a key that was
// forgotten is the map's own when it comes again.
func (tx *Tx) ExpireUnwritten(now int64, limit int) (more bool) {
	return tx.t.expire(now, limit, flagUnversioned)
}

// SetAcknowledged notes the position up to which every node that may hold a record has
// acknowledged this table's changes, as their kernel maps have them. Expire forgets tombstones up
// to it after Options.TombstoneGrace. 0 says that such a node is away: then tombstones are kept for
// Options.TombstoneTTL.
func (tx *Tx) SetAcknowledged(position uint64) { tx.t.acked = min(position, tx.t.seq) }

// handSteps is how many records the hand passes at least in a call of Expire.
const handSteps = 64

// inTombs reports whether a slot holds a tombstone that waits in the queue tombs. The queue may
// also name slots of other records.
func (m *meta) inTombs() bool { return !m.live() && m.is(flagInTombs) }

// expire forgets old tombstones but those with a flag.
func (t *Table) expire(now int64, limit int, kept flags) (more bool) {
	t.tx.Now(now)
	ttl := int64(t.opt.TombstoneTTL)
	if now < math.MinInt64+ttl {
		return false
	}
	more = t.compact(now, max(limit, handSteps))
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

// due reports whether the oldest tombstone may be forgotten: at the end of its lifetime, or once
// it is acknowledged. If it is not, those behind it are not.
func (t *Table) due(q tomb, now int64) bool {
	switch {
	case q.when <= now-int64(t.opt.TombstoneTTL), !t.meta(q.slot).inTombs():
		return true
	case q.when > now-int64(t.opt.TombstoneGrace) || t.loading != nil || t.unsure:
		return false
	}
	return t.meta(q.slot).seq <= t.acked
}

// expireDue forgets a tombstone taken from the queue, or has it go round once more. It reports
// whether the queue became shorter. old is the time before which tombstones are at their end.
func (t *Table) expireDue(q tomb, old, now int64, kept flags) bool {
	const open = flagRecheck | flagDoubt
	m := t.meta(q.slot)
	switch {
	case !m.inTombs():
		m.flags &^= flagInTombs
	case m.is(flagReleased & kept):
		t.tombs.push(tomb{now, q.slot})
		return false
	case m.is(kept), m.seen > old && (m.seen > now-int64(t.opt.TombstoneGrace) || m.is(open)):
		t.tombs.push(tomb{max(m.seen, old+1), q.slot})
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

// expireOne forgets the tombstone of an entry taken from the queue. If it has one of the
// flags, say because it is still to be written, it goes round once more; if the key lives
// again there is nothing to forget.
func (t *Table) expireOne(q tomb, kept flags) bool {
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

// forget gives a tombstone's slot back. Its place in the queue does no harm to whichever
// record comes there next: one that lives, or died later, is passed over.
func (t *Table) forget(s uint32) {
	m, h := t.meta(s), t.hash(t.key(s))
	t.vanished(h, m.seen, m.cpu) // an event from before may still come
	if t.loading != nil {        // and what was read before
		t.loading.note(&Change{Key: t.key(s), Time: m.seen, Context: ContextSyscall})
	}
	t.unlink(s)
	t.unrelease(m)
	t.dropRecheck(m)
	t.clearDirty(s)
	t.index.remove(h, s)
	t.owners.refer(m.owner, selfID)
	t.release(s)
	t.stats.Tombstones--
}
