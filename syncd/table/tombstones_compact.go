package table

import "math"

// This file implements the log of compact tombstones. A tombstone in a slot needs as much memory as a live
// record. The table therefore moves a settled tombstone to the log (type tombLog) and reuses its slot. A
// tombstone is settled if it fulfils three conditions. The writer has applied its position to the kernel
// map. No write and no reread of its key is pending. At least compactAfter has passed since the delete.
//
// The queue Table.newTombs has the new tombstones, so that the compaction need not read the live records between them. The
// compaction takes them in the order of their positions, and the log is therefore sorted by position, too. A tombstone that
// is not settled after Options.TombstoneGrace stays in its slot and enters the queue Table.tombs. Each tombstone of the
// order is therefore in one of three places: in the queue newTombs, in the queue tombs, or in the log. An acknowledged
// tombstone is kept for Options.TombstoneGrace.
//
// A compact tombstone keeps its position. Readers of the order merge the slots and the log by position. For
// a change of its key, expandTombstone gives a compact tombstone a slot that is in no list. If the change
// modifies nothing, finishChange releases that slot again. Otherwise the record moves to the tail, and
// finishChange marks its entry in the log as dead.

// compactAfter is the minimum time, in nanoseconds, that a tombstone stays in its slot. Older events of
// other CPUs arrive within that time.
const compactAfter = 1_000_000_000

// expandedTombstone is the compact tombstone that has a slot during the current change. The lock of the
// table protects it.
type expandedTombstone struct {
	// slot is the temporary slot, 0 if no compact tombstone is expanded. It is 0 outside a change. number
	// is the tombstone's number in the log, with compactBit. hash is the index hash of its key.
	slot, number, hash uint32
	// before is the slot's meta before the change. finishChange compares it with the meta after the change.
	before meta
}

// findForChange returns the hash and the slot of a key like find, for a change of the record. It gives a
// compact tombstone a slot until finishChange.
func (t *Table) findForChange(key []byte) (hash, slot uint32) {
	hash, slot = t.find(key)
	if slot == 0 && t.log.n > 0 {
		if number := t.log.find(hash, key); number != 0 {
			return hash, t.expandTombstone(hash, number)
		}
	}
	return hash, slot
}

// expandTombstone gives a compact tombstone a slot and returns it. Open readings that treat the key as
// changed also treat the slot as changed. The caller calls finishChange after the change.
func (t *Table) expandTombstone(hash, number uint32) uint32 {
	c, i := t.log.at(number)
	s := t.alloc()
	copy(t.key(s), t.log.key(c, i))
	m := t.meta(s)
	t.log.describe(c, i, m)
	// The slot is linked to itself, so that unlink works although the slot is in no list.
	m.prev, m.next = s, s
	// A reading may have marked the key while it had no slot.
	for _, r := range t.readings {
		if r.markedAbsent(hash) {
			r.mark(s)
		}
	}
	t.expanded = expandedTombstone{s, number, hash, *m}
	return s
}

// describe fills in the meta of entry i of a chunk, except for its list pointers.
func (l *tombLog) describe(c *tombChunk, i int, m *meta) {
	m.version, m.owner, m.cpuOrPeer = c.versions[i], c.owners[i], cpuNone
	m.seq, m.seen = c.seq(i), c.seen(i)
	m.flags |= flagTombstone
	for _, f := range &tombFlags {
		if c.is(i, f.bit) {
			m.flags |= f.flag
		}
	}
}

// finishChange ends a change of a compact tombstone that findForChange or expandTombstone gave a slot. It
// does nothing if no tombstone is expanded.
func (t *Table) finishChange() {
	s := t.expanded.slot
	if s == 0 {
		return
	}
	f := &t.expanded
	f.slot = 0
	m := t.meta(s)
	// The change has modified nothing, so the entry in the log stays valid.
	if *m == f.before {
		t.invalidateAbsent(s, f.hash)
		t.release(s)
		return
	}
	if m.seq == f.before.seq {
		t.moveTail(s) // the log cannot store the changed meta
	}
	t.index.insert(f.hash, s)
	t.log.remove(f.number, f.hash)
}

// tombFlags are the flags of a tombstone that the log stores, with their bits of tombChunk.places.
var tombFlags = [...]struct {
	flag flags
	bit  uint32
}{{flagExpired, tombExpired}, {flagWritten, tombWritten}, {flagInferred, tombInferred}, {flagPacketDelete, tombPacket}}

// tombBitsOf returns the bits of tombChunk.places for the flags of a tombstone.
func tombBitsOf(m *meta) (b uint32) {
	for _, f := range &tombFlags {
		if m.is(f.flag) {
			b |= f.bit
		}
	}
	return b
}

// compactTombstone moves a settled tombstone to the log and releases its slot.
func (t *Table) compactTombstone(s uint32) {
	m, key := t.meta(s), t.key(s)
	h := t.hash(key)
	t.log.add(&tombEntry{seq: m.seq, seen: m.seen, version: m.version, owner: m.owner, bits: tombBitsOf(m)}, h, key)
	t.invalidateAbsent(s, h)
	t.unlink(s)
	t.index.remove(h, s)
	t.release(s)
}

// compact moves settled tombstones from newTombs to the log. It takes up to limit elements and returns true if there is
// more to do. now is the wall clock in nanoseconds.
func (t *Table) compact(now int64, limit int) (more bool) {
	for range limit {
		if t.newTombs.len() == 0 {
			return t.log.merge()
		}
		p := t.newTombs.peek()
		if !t.isNewTomb(p) {
			t.newTombs.pop()
			continue
		}
		m := t.meta(p.slot)
		settled := m.seq <= t.applied && !m.is(flagDirty|flagReread|flagUncertain|flagReleased)
		// The tombstones behind this one are younger.
		if t.tooRecent(m, now, settled) {
			return t.log.merge()
		}
		t.newTombs.pop()
		if settled {
			t.compactTombstone(p.slot)
		} else {
			t.queueTombstone(p.slot)
		}
	}
	return true
}

// staleNewTombs is the number of outdated elements that newTombs may have besides one for each tombstone in a slot.
const staleNewTombs = 1 << 16

// pushNewTomb appends to newTombs. If most elements are outdated, it removes those first.
func (t *Table) pushNewTomb(p placedSlot) {
	if n := t.newTombs.len(); n > 2*(t.stats.Tombstones-t.log.n)+staleNewTombs {
		for range n {
			if old := t.newTombs.pop(); t.isNewTomb(old) {
				t.newTombs.push(old)
			}
		}
	}
	t.newTombs.push(p)
}

// isNewTomb reports whether an element of newTombs is still valid.
func (t *Table) isNewTomb(p placedSlot) bool {
	m := t.meta(p.slot)
	return m.seq == p.seq && !m.live() && !m.is(flagInTombs|flagFree)
}

// tooRecent reports whether a tombstone must stay in newTombs.
func (t *Table) tooRecent(m *meta, now int64, settled bool) bool {
	stay := min(int64(t.opt.TombstoneGrace), int64(t.opt.TombstoneTTL))
	if settled {
		stay = min(stay, compactAfter)
	}
	return m.seen > now-stay
}

// queueTombstone keeps a tombstone in its slot until the table forgets it.
func (t *Table) queueTombstone(s uint32) {
	m := t.meta(s)
	m.flags |= flagInTombs
	t.tombs.push(timedSlot{m.seen, s})
}

// skipCompaction takes the oldest element of newTombs. The tombstone stays in its slot.
func (t *Table) skipCompaction() {
	if t.newTombs.len() == 0 {
		return
	}
	if p := t.newTombs.pop(); t.isNewTomb(p) {
		t.queueTombstone(p.slot)
	}
}

// expireCompact forgets up to limit compact tombstones whose lifetime has ended or that all nodes have
// acknowledged. It returns true if there may be more. now is the wall clock in nanoseconds.
func (t *Table) expireCompact(now int64, limit int) (more bool) {
	ttl, grace := int64(t.opt.TombstoneTTL), int64(t.opt.TombstoneGrace)
	for range limit {
		if t.log.n == 0 {
			return false
		}
		c, i := t.log.oldest()
		seen := c.seen(i)
		switch {
		case seen <= now-ttl:
			t.stats.Expired++
		case seen <= now-grace && c.seq(i) <= t.acked && t.loading == nil && !t.unscanned:
			t.stats.Acknowledged++
		default:
			return false
		}
		t.forgetCompact(c, i)
	}
	return t.log.n > 0
}

// forgetCompact forgets a compact tombstone. It also releases the slot that the tombstone may have for the
// current change.
func (t *Table) forgetCompact(c *tombChunk, i int) {
	key, seen := t.log.key(c, i), c.seen(i)
	h := t.hash(key)
	t.noteForgotten(h, seen, cpuNone, false, c.is(i, tombWritten))
	if t.loading != nil {
		t.loading.noteDelete(&Change{Key: key, Time: seen, Context: ContextReread})
	}
	t.raiseFloor(c.seq(i), c.is(i, tombInferred))
	t.owners.moveReference(c.owners[i], selfID)
	number := t.log.number(c, i)
	// The current change may have expanded this tombstone.
	if s := t.expanded.slot; s != 0 && t.expanded.number == number|compactBit {
		t.expanded.slot = 0
		t.release(s)
	}
	t.log.remove(number, h)
	t.stats.Tombstones--
}

// appendCompact adds a compact tombstone at the tail of the order. newTombs must have no valid element.
func (t *Table) appendCompact(m *meta, hash uint32, key []byte) {
	t.seq++
	t.log.add(&tombEntry{seq: t.seq, seen: m.seen, version: m.version, owner: m.owner, bits: tombBitsOf(m)}, hash, key)
	t.owners.moveReference(selfID, m.owner)
	t.stats.Tombstones++
}

// read fills in the meta of a record, compact or in a slot, and returns its key. The key is borrowed from
// the table.
func (t *Table) read(ref uint32, m *meta) (key []byte) {
	if ref&compactBit == 0 {
		*m = *t.meta(ref)
		return t.key(ref)
	}
	c, i := t.log.at(ref)
	t.log.describe(c, i, m)
	return t.log.key(c, i)
}

// tombLogPos is the place of a cursor in the log. The cursor has passed all entries before it.
type tombLogPos struct {
	// chunk is the chunk of the next entry, nil before the first search.
	chunk *tombChunk
	// i is the index of the next entry in chunk.
	i int
	// gen is the generation of chunk when the place was found. A different generation of the chunk
	// invalidates the place.
	gen uint32
}

// peekCompact returns the number of the first compact tombstone with a position above the cursor's, with
// compactBit, and its position. It returns 0 if there is none.
func (c *Cursor) peekCompact() (number uint32, seq uint64) {
	l, at := &c.t.log, &c.logPos
	for l.n > 0 && l.last > c.pos {
		// The place is outdated if the chunk was merged or reused.
		if at.chunk == nil || at.chunk.gen != at.gen {
			chunk, i := l.after(c.pos)
			if chunk == nil {
				return 0, 0
			}
			*at = tombLogPos{chunk, i, chunk.gen}
		}
		for ; at.i < at.chunk.n; at.i++ {
			if seq = at.chunk.seq(at.i); seq > c.pos && !at.chunk.is(at.i, tombDead) {
				return l.number(at.chunk, at.i) | compactBit, seq
			}
		}
		// The rest of the chunk has no live entry.
		chunk, i := l.after(max(c.pos, at.chunk.end()))
		if chunk == nil {
			return 0, 0
		}
		*at = tombLogPos{chunk, i, chunk.gen}
	}
	return 0, 0
}

// peek returns the next record of the order and its position. The record is compact or in a slot. At the
// end of the order ref is 0.
func (c *Cursor) peek() (ref uint32, seq uint64) {
	t := c.t
	s := t.meta(c.at).next
	seq = math.MaxUint64
	if s != order {
		seq = t.meta(s).seq
	}
	if number, at := c.peekCompact(); number != 0 && at < seq {
		return number, at
	}
	return s, seq // order is 0
}

// advance passes one record like step, but the record may also be compact. It returns 0 at the end.
func (c *Cursor) advance() (ref uint32) {
	if c.t.log.n > 0 && c.t.log.last > c.pos && !c.closed {
		if ref, seq := c.peek(); ref&compactBit != 0 {
			c.pos = seq
			return ref
		}
	}
	return c.step()
}

// describeCompact fills in rec for a compact tombstone. The key is borrowed from the log.
func (t *Table) describeCompact(number uint32, rec *Record) {
	c, i := t.log.at(number)
	*rec = Record{
		Key: t.log.key(c, i), Version: c.versions[i], Owner: c.owners[i], Delete: true,
		Expired: c.is(i, tombExpired), Inferred: c.is(i, tombInferred), Position: c.seq(i), Ref: Ref(number),
	}
}
