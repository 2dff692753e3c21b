package table

import "time"

// An LRU map evicts entries, and the owner may still use an evicted entry. The owner's record therefore
// stays for EvictedTTL, so that peers keep the session. Then the owner expires the record: it becomes an
// expired tombstone, which replicates like a delete but deletes no entry of a kernel map.
//
// On a peer whose kernel map holds the entry, the tombstone is released. The table of that peer keeps the
// value, so that it can distinguish an unused entry from one that the data plane changed. The next write of
// that peer's data plane creates a record of the peer. If the data plane does not use the entry, the peer's
// LRU map evicts it or the peer's collector deletes it.

// DefaultEvictedTTL is the default of Options.EvictedTTL.
const DefaultEvictedTTL = 15 * time.Minute

// DefaultMaxEvicted is the highest number of evicted records that the table keeps if neither
// Options.MaxEvicted nor Options.MaxEntries is set.
const DefaultMaxEvicted = 1 << 20

// minReleased is the number of released entries that the table keeps for a map of any size. A small map
// evicts many entries before the events of the evictions arrive.
const minReleased = 1 << 10

// queueEvicted queues an evicted record for its expiry if this node owns it or if it is orphaned. A live
// peer expires its own records.
func (t *Table) queueEvicted(s uint32) {
	m := t.meta(s)
	if m.is(flagInEvicted|flagFree) || !m.live() || t.sentByLivePeer(m) || t.keptWhileDrained(m) {
		return
	}
	m.flags |= flagInEvicted
	t.evicted.push(timedSlot{m.seen, s})
}

// ExpireEvicted expires records whose entries the kernel evicted longer than Options.EvictedTTL ago. It
// also expires the oldest evicted records above Options.MaxEvicted, and while the table has more live
// records than Options.MaxLive. It looks at up to limit records and returns true if there may be
// more. now is the wall clock in nanoseconds.
func (tx *Tx) ExpireEvicted(now int64, limit int) (more bool) {
	t := tx.t
	t.limitReleased(limit)
	for t.opt.MaxLive > 0 && t.stats.Live > t.opt.MaxLive && t.expireForRoom(now) {
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

// expireEvicted expires a record that was taken from the queue. It does not expire a record that is in use
// again or that has a pending write or reread. It returns false if the record went back into the queue.
func (t *Table) expireEvicted(q timedSlot, due, now int64) bool {
	m := t.meta(q.slot)
	switch {
	case !t.expirable(m):
		m.flags &^= flagInEvicted
	case m.is(pendingEvicted), m.seen > due && t.evicted.len() < t.opt.MaxEvicted:
		t.evicted.push(timedSlot{max(m.seen, due+1), q.slot})
		return false
	default:
		t.expireQueued(q.slot, now)
	}
	return true
}

// pendingEvicted are the flags of evicted records that must not expire yet: the map may hold the entry, or
// the writer will write it.
const pendingEvicted = flagDirty | flagReread | flagUncertain | flagUnversioned

// expirable reports whether a record in the queue is still evicted and whether this node may expire it.
func (t *Table) expirable(m *meta) bool {
	return m.is(flagEvicted) && m.live() && !t.sentByLivePeer(m) && !t.keptWhileDrained(m)
}

// expireQueued expires a record that was taken from the queue.
func (t *Table) expireQueued(s uint32, now int64) {
	t.meta(s).flags &^= flagInEvicted
	t.expireRecord(s, now)
	t.stats.EvictionsExpired++
}

// expireRecord turns a record into an expired tombstone with the same version and owner.
func (t *Table) expireRecord(s uint32, now int64) {
	t.dropFromDigest(s)
	t.makeTombstone(s, now)
	m := t.meta(s)
	t.setFlags(m, flagEvicted, flagExpired)
	t.moveTail(s)
}

// remoteExpired merges the expiry of a record by its owner, or by the fallback sender of an owner that has
// left. It does not modify a newer record, such as one that this node's data plane has used since.
func (t *Table) remoteExpired(d *Delta, h, s uint32, now int64) Outcome {
	if s == 0 {
		if s = t.create(h, d.Key); s == 0 {
			return Refused
		}
		t.makeTombstone(s, now)
		t.meta(s).flags |= flagExpired
		t.stampDelta(s, d, now) // a third node may still send an older record
		return Accepted
	}
	m := t.meta(s)
	if !t.isNewer(d, m) {
		return Stale
	}
	t.noteReplacedLoad(d, s)
	live, removing := m.live(), m.flags&displaced == displaced
	t.removeFromDigest(s)
	t.makeTombstone(s, now)
	m.flags = m.flags&^flagInferred | flagExpired
	switch {
	case !live: // the writer still writes a pending delete
	case removing: // the writer may be deleting the entry: a read until then proves nothing
		t.clearDirty(s)
		t.requestReread(s)
	case m.is(flagEvicted) && (m.is(flagDirty) || !m.is(flagUncertain)):
		t.clearDirty(s)
	case m.is(flagFailed):
		t.markDirty(s) // the map may hold an older entry instead, which the writer deletes
	default: // also if a pending reread must still decide whether the eviction came before the last write
		t.releaseEntry(s)
	}
	t.setFlags(m, flagEvicted, 0)
	t.stampDelta(s, d, now)
	return Accepted
}

// releaseEntry marks an expired tombstone whose entry the kernel map may hold, and queues it in
// Table.released.
func (t *Table) releaseEntry(s uint32) {
	m := t.meta(s)
	m.flags |= flagReleased
	t.stats.Released++
	if !m.is(flagInReleased) {
		m.flags |= flagInReleased
		t.released.push(s)
	}
}

// unrelease removes that mark: the kernel map does not hold the entry, or holds a different one.
func (t *Table) unrelease(m *meta) {
	if m.is(flagReleased) {
		m.flags &^= flagReleased
		t.stats.Released--
	}
}

// limitReleased requests a reread of the oldest released entries, at most limit, while there are more of
// them than the kernel map can hold. Above twice the larger of that number and minReleased, it removes
// their mark without a reread. The queue also has slots whose entries have left the map. These do not
// count.
func (t *Table) limitReleased(limit int) {
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
			t.requestReread(s)
			t.released.push(s)
		}
	}
}

// mergeEvictedOwn enters a record of this node whose key is not in its LRU map. A record of an earlier
// incarnation counts as evicted now. A record of this incarnation expired before.
func (t *Table) mergeEvictedOwn(s uint32, d *Delta, now int64) {
	t.put(s, d.Value, false, now)
	t.stampDelta(s, d, now)
	t.setFlags(t.meta(s), 0, flagEvicted)
	if d.Owner == selfID {
		t.expireRecord(s, now)
		return
	}
	t.queueEvicted(s)
	if t.unscanned {
		t.requestReread(s) // the load may have skipped it
	}
}

// localEvict notes that the kernel evicted a key. A reread that does not find the key then deletes no
// record. The writer writes the entry again when the record changes.
func (t *Table) localEvict(c *Change, s uint32) Outcome {
	t.stats.Evictions++
	if s == 0 {
		return Ignored
	}
	if m := t.meta(s); !m.live() {
		if m.is(flagReleased) && (m.is(flagDirty) || t.predates(c, s)) {
			t.requestReread(s) // the entry may have been written since
			return Ignored
		}
		t.unrelease(m)
		return Ignored
	}
	if m := t.meta(s); m.is(flagHeld) && c.Time < m.seen {
		return Ignored // before the delete that waits
	}
	t.unhold(s) // the entry was written and evicted since
	t.setFlags(t.meta(s), flagEntry, 0)
	// An eviction is a delete only with Options.EvictionDeletes, and only if no live peer owns the record.
	if m := t.meta(s); !t.opt.EvictionDeletes || t.ownedByLivePeer(s) || t.keptWhileDrained(m) {
		t.markEvicted(c, s)
		return Ignored
	}
	if t.meta(s).is(flagUnversioned) {
		return t.deleteUnversioned(c, s)
	}
	return t.change(c, s)
}

// markEvicted notes that the entry of a live record has left the kernel map. The writer is about to write a dirty record
// in any case.
func (t *Table) markEvicted(c *Change, s uint32) {
	m := t.meta(s)
	if m.is(flagDirty) {
		return
	}
	if t.predates(c, s) || (c.Context != ContextReread && m.lastCPU() != c.CPU && c.Time-m.seen <= timestampMargin) {
		t.requestReread(s) // the entry may have been written since
	}
	t.setFlags(m, 0, flagEvicted)
	m.seen = max(m.seen, c.Time)
	t.queueEvicted(s)
}
