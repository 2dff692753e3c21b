package table

import "time"

// An LRU map evicts entries that their owner still needs, or has forgotten. The owner's record
// stays for EvictedTTL, so that peers keep the session. Then the owner gives it up: the record
// becomes an expired tombstone, which replicates like a delete but deletes no entry of a kernel
// map. On a peer whose kernel map holds the entry the tombstone is released: the table keeps the
// value, so that it can distinguish an unused entry from one that the data plane changed.
// The data plane's next write makes the entry that node's record. The peer's map evicts or its
// collector deletes what nothing uses.

// DefaultEvictedTTL is how long an evicted record is kept when Options do not say.
const DefaultEvictedTTL = 15 * time.Minute

// DefaultMaxEvicted is how many evicted records are kept when neither Options.MaxEvicted nor
// Options.MaxEntries is set.
const DefaultMaxEvicted = 1 << 20

// minReleased is the number of released entries that the table keeps for a map of any size: a small
// map evicts many entries before the events of the evictions arrive.
const minReleased = 1 << 10

// queueEvicted notes that a record waits for its expiry: one of this node, or an orphaned one. A
// live owner expires its records itself.
func (t *Table) queueEvicted(s uint32) {
	m := t.meta(s)
	if m.is(flagInEvicted|flagFree) || !m.live() || t.foreign(m) {
		return
	}
	m.flags |= flagInEvicted
	t.evicted.push(tomb{m.seen, s})
}

// ExpireEvicted gives up records whose entries the kernel evicted longer than Options.EvictedTTL
// ago, and the oldest of those above Options.MaxEvicted, or while the table holds more than
// Options.MaxLive. It looks at up to limit records and returns true if there may be more. now is
// the wall clock in nanoseconds.
func (tx *Tx) ExpireEvicted(now int64, limit int) (more bool) {
	t := tx.t
	t.checkReleased(limit)
	for t.opt.MaxLive > 0 && t.stats.Live > t.opt.MaxLive && t.makeWay(now) {
		if limit--; limit <= 0 {
			return true
		}
	}
	due := now - int64(t.opt.EvictedTTL)
	for n := t.evicted.len(); n > 0 && limit > 0; n-- {
		if t.evicted.peek().when > due && t.evicted.len() <= t.opt.MaxEvicted {
			return false
		}
		limit--
		more = t.expireEvicted(t.evicted.pop(), due, now) || more
	}
	return more && limit == 0
}

// expireEvicted gives up the record of an entry taken from the queue, unless it is used again or
// something about it is open. It returns false if the entry went back into the queue.
func (t *Table) expireEvicted(q tomb, due, now int64) bool {
	m := t.meta(q.slot)
	switch {
	case !t.expirable(m):
		m.flags &^= flagInEvicted
	case m.is(openEvicted), m.seen > due && t.evicted.len() < t.opt.MaxEvicted:
		t.evicted.push(tomb{max(m.seen, due+1), q.slot})
		return false
	default:
		t.giveUp(q.slot, now)
	}
	return true
}

// openEvicted are the flags of evicted records that do not expire yet: the map may hold them, or is
// about to.
const openEvicted = flagDirty | flagRecheck | flagDoubt | flagUnversioned

// expirable reports whether a record in the queue is still evicted and for this node to expire.
func (t *Table) expirable(m *meta) bool { return m.is(flagEvicted) && m.live() && !t.foreign(m) }

// giveUp expires a record taken from the queue.
func (t *Table) giveUp(s uint32, now int64) {
	t.meta(s).flags &^= flagInEvicted
	t.expireRecord(s, now)
	t.stats.EvictionsExpired++
}

// expireRecord makes a record an expired tombstone with the same version and owner.
func (t *Table) expireRecord(s uint32, now int64) {
	t.withdraw(s)
	t.kill(s, now)
	m := t.meta(s)
	m.flags = m.flags&^flagEvicted | flagExpired
	t.moveTail(s)
}

// remoteExpired merges the expiry of a record by its owner, or by a survivor of the owner. It
// does nothing to a newer record, so not to one that this node's data plane has used.
func (t *Table) remoteExpired(d *Delta, h, s uint32, now int64) Outcome {
	if s == 0 {
		if s = t.create(h, d.Key); s == 0 {
			return Refused
		}
		t.kill(s, now)
		t.meta(s).flags |= flagExpired
		t.adopt(s, d, now) // an older record may be on its way from a third node
		return Accepted
	}
	m := t.meta(s)
	if !t.beats(d, m) {
		return Stale
	}
	live := m.live()
	t.leave(s)
	t.kill(s, now)
	m.flags |= flagExpired
	switch {
	case !live: // a delete that is still to be written is written
	case m.is(flagEvicted) && (m.is(flagDirty) || !m.is(flagDoubt)):
		t.clearDirty(s)
	case m.is(flagFailed):
		t.markDirty(s) // what the map may hold instead is older: it is deleted
	default: // also if a reread has yet to tell whether the eviction came before the last write
		t.releaseEntry(s)
	}
	m.flags &^= flagEvicted
	t.adopt(s, d, now)
	return Accepted
}

// releaseEntry notes that the kernel map may hold the entry of an expired tombstone.
func (t *Table) releaseEntry(s uint32) {
	m := t.meta(s)
	m.flags |= flagReleased
	t.stats.Released++
	if !m.is(flagInReleased) {
		m.flags |= flagInReleased
		t.released.push(s)
	}
}

// unrelease notes that the kernel map does not hold the entry any more, or not as it was.
func (t *Table) unrelease(m *meta) {
	if m.is(flagReleased) {
		m.flags &^= flagReleased
		t.stats.Released--
	}
}

// checkReleased has the oldest released entries read again when there are more of them than the
// kernel map can hold, up to limit. Above twice the larger of that number and minReleased, they are
// forgotten. The queue also has slots whose entries left the map: these do not count.
func (t *Table) checkReleased(limit int) {
	room := t.opt.MaxEntries
	if room == 0 {
		room = DefaultMaxEvicted
	}
	for ; t.released.len() > room && limit > 0; limit-- {
		s := t.released.pop()
		m := t.meta(s)
		switch {
		case !m.is(flagReleased):
			m.flags &^= flagInReleased
		case t.stats.Released > 2*max(room, minReleased) && !m.is(flagDirty):
			m.flags &^= flagInReleased
			t.unrelease(m)
		default:
			t.recheck(s)
			t.released.push(s)
		}
	}
}

// buryEvicted records that a key of this node's is not in its LRU map. A record of an earlier
// incarnation counts as evicted since now. One of this incarnation was given up before.
func (t *Table) buryEvicted(s uint32, d *Delta, now int64) {
	t.put(s, d.Value, false, now)
	t.adopt(s, d, now)
	t.meta(s).flags |= flagEvicted
	if d.Owner == selfID {
		t.expireRecord(s, now)
		return
	}
	t.queueEvicted(s)
	if t.unsure {
		t.recheck(s) // the load may have passed over it
	}
}
