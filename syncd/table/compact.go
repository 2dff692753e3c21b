package table

import "math"

// A tombstone in a slot takes as much as a live record. Once it is settled, the hand moves it to
// the log of compact tombstones, and another record uses the slot. A tombstone is settled when the
// kernel map has been written and read for it, and compactAfter has passed.
//
// The hand is a cursor on the order, and passes each record once. So all tombstones of the log were
// in the order before the hand, and the log is in the order of positions too. A tombstone that is
// not settled after the time for which acknowledged ones are kept stays in its slot, and waits in
// the queue tombs for its end. Each tombstone of the order is behind the hand, in that queue, or in
// the log.
//
// A compact tombstone keeps its position: readers of the order merge both by it. For a change
// of its key it gets a slot that is in no list (thaw). If the change changes nothing, the slot is
// released again; else the record moves to the tail, and its entry in the log is dead (refreeze).

// compactAfter is how long in nanoseconds a tombstone stays in its slot at least: events of
// other CPUs that are older arrive in that time.
const compactAfter = 1_000_000_000

// thawed is the compact tombstone that is in a slot for the change under way. slot 0: none.
type thawed struct {
	slot, number, hash uint32
	was                meta
}

// open is find for a change: a compact tombstone gets a slot until refreeze.
func (t *Table) open(key []byte) (hash, slot uint32) {
	hash, slot = t.find(key)
	if slot == 0 && t.log.n > 0 {
		if number := t.log.find(hash, key); number != 0 {
			return hash, t.thaw(hash, number)
		}
	}
	return hash, slot
}

// thaw gives a compact tombstone a slot.
func (t *Table) thaw(hash, number uint32) uint32 {
	c, i := t.log.at(number)
	s := t.alloc()
	copy(t.key(s), t.log.key(c, i))
	m := t.meta(s)
	t.log.describe(c, i, m)
	m.prev, m.next = s, s
	for _, r := range t.readings {
		if r.missed(hash) {
			r.mark(s)
		}
	}
	t.thawed = thawed{s, number, hash, *m}
	return s
}

// describe fills a record's meta but for its place.
func (l *tombLog) describe(c *tombChunk, i int, m *meta) {
	m.version, m.owner, m.cpu = c.versions[i], c.owners[i], cpuNone
	m.seq, m.seen = c.seq(i), c.seen(i)
	m.flags |= flagTombstone
	if c.is(i, tombExpired) {
		m.flags |= flagExpired
	}
	if c.is(i, tombWritten) {
		m.flags |= flagWritten
	}
}

// refreeze ends a change of a record that open gave a slot.
func (t *Table) refreeze() {
	s := t.thawed.slot
	if s == 0 {
		return
	}
	f := &t.thawed
	f.slot = 0
	m := t.meta(s)
	if *m == f.was {
		t.outdateAbsent(s, f.hash)
		t.release(s)
		return
	}
	if m.seq == f.was.seq {
		t.moveTail(s) // the log cannot keep what is known now
	}
	t.index.insert(f.hash, s)
	t.log.remove(f.number, f.hash)
}

// tombBitsOf returns what the log keeps of a tombstone's flags.
func tombBitsOf(m *meta) (b uint32) {
	if m.is(flagExpired) {
		b |= tombExpired
	}
	if m.is(flagWritten) {
		b |= tombWritten
	}
	return b
}

// freeze moves a settled tombstone to the log.
func (t *Table) freeze(s uint32) {
	m, key := t.meta(s), t.key(s)
	h := t.hash(key)
	t.log.add(&tombEntry{seq: m.seq, seen: m.seen, version: m.version, owner: m.owner, bits: tombBitsOf(m)}, h, key)
	t.outdateAbsent(s, h)
	t.unlink(s)
	t.index.remove(h, s)
	t.release(s)
}

// compact has the hand pass up to limit records, and returns true if there is more to do. now is the
// wall clock in nanoseconds.
func (t *Table) compact(now int64, limit int) (more bool) {
	for range limit {
		s := t.meta(t.hand.at).next
		if s == order {
			return t.log.merge()
		}
		m := t.meta(s)
		if m.live() || m.is(flagInTombs) {
			t.hand.step()
			continue
		}
		settled := m.seq <= t.applied && !m.is(flagDirty|flagRecheck|flagDoubt|flagReleased)
		if t.waits(m, now, settled) {
			return t.log.merge()
		}
		t.hand.step()
		if settled {
			t.freeze(s)
		} else {
			t.queueTomb(s)
		}
	}
	return true
}

// waits reports whether the hand does not pass a tombstone yet.
func (t *Table) waits(m *meta, now int64, settled bool) bool {
	stay := min(int64(t.opt.TombstoneGrace), int64(t.opt.TombstoneTTL))
	if settled {
		stay = min(stay, compactAfter)
	}
	return m.seen > now-stay
}

// queueTomb has a tombstone stay in its slot until it is forgotten.
func (t *Table) queueTomb(s uint32) {
	m := t.meta(s)
	m.flags |= flagInTombs
	t.tombs.push(tomb{m.seen, s})
}

// pass has the hand pass a record that stays in its slot.
func (t *Table) pass() {
	s := t.hand.step()
	if m := t.meta(s); s != 0 && !m.live() && !m.is(flagInTombs) {
		t.queueTomb(s)
	}
}

// expireCompact forgets up to limit compact tombstones that are at the end of their lifetime, or
// acknowledged. It returns true if there may be more.
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
		case seen <= now-grace && c.seq(i) <= t.acked && t.loading == nil && !t.unsure:
			t.stats.Acknowledged++
		default:
			return false
		}
		t.forgetCompact(c, i)
	}
	return t.log.n > 0
}

// forgetCompact is forget for a compact tombstone. If it has a slot for the change under way, that is
// released, too.
func (t *Table) forgetCompact(c *tombChunk, i int) {
	key, seen := t.log.key(c, i), c.seen(i)
	h := t.hash(key)
	t.vanished(h, seen, cpuNone)
	if t.loading != nil {
		t.loading.note(&Change{Key: key, Time: seen, Context: ContextSyscall})
	}
	t.floor = max(t.floor, c.seq(i))
	t.owners.refer(c.owners[i], selfID)
	number := t.log.number(c, i)
	if s := t.thawed.slot; s != 0 && t.thawed.number == number|compactBit {
		t.thawed.slot = 0
		t.release(s)
	}
	t.log.remove(number, h)
	t.stats.Tombstones--
}

// forgetOldest forgets the oldest compact tombstone, unless one in a slot is older.
func (t *Table) forgetOldest() bool {
	if t.log.n == 0 {
		return false
	}
	c, i := t.log.oldest()
	if t.tombs.len() > 0 {
		if m := t.meta(t.tombs.peek().slot); m.is(flagInTombs) && m.seq < c.seq(i) {
			return false
		}
	}
	t.forgetCompact(c, i)
	return true
}

// enterCompact adds a compact tombstone at the tail of the order. The hand must be there.
func (t *Table) enterCompact(m *meta, hash uint32, key []byte) {
	t.seq++
	t.log.add(&tombEntry{seq: t.seq, seen: m.seen, version: m.version, owner: m.owner, bits: tombBitsOf(m)}, hash, key)
	t.owners.refer(selfID, m.owner)
	t.stats.Tombstones++
}

// read fills in the meta of a record, compact or in a slot, and returns its key.
func (t *Table) read(ref uint32, m *meta) (key []byte) {
	if ref&compactBit == 0 {
		*m = *t.meta(ref)
		return t.key(ref)
	}
	c, i := t.log.at(ref)
	t.log.describe(c, i, m)
	return t.log.key(c, i)
}

// compactAt is where a cursor has got to in the log: all entries before are passed. gen is that of
// the chunk.
type compactAt struct {
	chunk *tombChunk
	i     int
	gen   uint32
}

// nextCompact returns the number of the first compact tombstone with a position above the cursor's,
// and its position; 0 if there is none.
func (c *Cursor) nextCompact() (number uint32, seq uint64) {
	l, at := &c.t.log, &c.log
	for l.n > 0 && l.last > c.pos {
		if at.chunk == nil || at.chunk.gen != at.gen {
			chunk, i := l.after(c.pos)
			if chunk == nil {
				return 0, 0
			}
			*at = compactAt{chunk, i, chunk.gen}
		}
		for ; at.i < at.chunk.n; at.i++ {
			if seq = at.chunk.seq(at.i); seq > c.pos && !at.chunk.is(at.i, tombDead) {
				return l.number(at.chunk, at.i) | compactBit, seq
			}
		}
		chunk, i := l.after(max(c.pos, at.chunk.end()))
		if chunk == nil {
			return 0, 0
		}
		*at = compactAt{chunk, i, chunk.gen}
	}
	return 0, 0
}

// next returns the next record of the order and its position, compact or in a slot; 0 at the end.
func (c *Cursor) next() (ref uint32, seq uint64) {
	t := c.t
	s := t.meta(c.at).next
	seq = math.MaxUint64
	if s != order {
		seq = t.meta(s).seq
	}
	if number, at := c.nextCompact(); number != 0 && at < seq {
		return number, at
	}
	return s, seq // order is 0
}

// advance is step for a reader of the whole order: it passes one record, compact or in a slot, and returns it.
func (c *Cursor) advance() (ref uint32) {
	if c.t.log.n > 0 && c.t.log.last > c.pos && !c.closed {
		if ref, seq := c.next(); ref&compactBit != 0 {
			c.pos = seq
			return ref
		}
	}
	return c.step()
}

// describeCompact is describe for a compact tombstone.
func (t *Table) describeCompact(number uint32, rec *Record) {
	c, i := t.log.at(number)
	*rec = Record{
		Key: t.log.key(c, i), Version: c.versions[i], Owner: c.owners[i], Delete: true,
		Expired: c.is(i, tombExpired), Position: c.seq(i), Ref: Ref(number),
	}
}
