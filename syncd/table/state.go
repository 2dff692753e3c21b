package table

import (
	"bytes"

	"github.com/zeebo/xxh3"
)

// This file holds the steps that all changes are made of. Each keeps the
// counters of Stats true.

type tomb struct {
	when int64
	slot uint32
}

func (t *Table) hash(key []byte) uint32 {
	return uint32(xxh3.HashSeed(key, t.opt.Seed) >> 32)
}

// find returns the hash of a key and its slot, 0 if the table has no record.
func (t *Table) find(key []byte) (hash, slot uint32) {
	hash = t.hash(key)
	g := t.index.segment(hash)
	mask := uint32(len(g.entries) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		e := g.entries[i]
		if e.slot == 0 {
			return hash, 0
		}
		if e.hash == hash && bytes.Equal(t.key(e.slot), key) {
			return hash, e.slot
		}
	}
}

// create makes a live record without a value that is in no list yet, or
// returns 0 when the table is full.
func (t *Table) create(hash uint32, key []byte) uint32 {
	if t.used+t.log.n >= t.max && !t.makeRoom(keptTombs) {
		t.stats.Refused++
		return 0
	}
	s := t.alloc()
	copy(t.key(s), key)
	t.met(s)
	t.index.insert(hash, s)
	t.stats.Live++
	return s
}

// makeRoom forgets one tombstone before its time. That a lagging reader may
// have missed it shows in the floor; refusing what is new would stop
// replication for as long as a burst of deletes is remembered.
func (t *Table) makeRoom(kept flags) bool {
	const tries = 64 // those still to be written go round
	for range tries {
		if t.log.n == 0 {
			t.pass() // what the hand has not passed is younger
		}
		if t.forgetOldest() || (t.tombs.len() > 0 && t.expireOne(t.tombs.pop(), kept)) {
			t.stats.ExpiredEarly++
			return true
		}
	}
	return false
}

// keptTombs are the flags of tombstones that are not forgotten before their time.
const keptTombs = flagDirty | flagUnversioned | flagReleased

// boundTombs makes room for one more tombstone. One whose key is about to be read again stays as
// long as there are not twice as many as there should be.
func (t *Table) boundTombs() {
	switch n := t.stats.Tombstones; {
	case n < t.opt.MaxTombstones:
	case n < 2*t.opt.MaxTombstones:
		t.makeRoom(keptTombs | flagRecheck | flagDoubt)
	default:
		t.makeRoom(keptTombs)
	}
}

// fill makes a record live with the given value.
func (t *Table) fill(s uint32, value []byte) {
	m := t.meta(s)
	if !m.live() {
		t.unrelease(m)
		m.flags &^= flagTombstone | flagExpired
		t.stats.Tombstones--
		t.stats.Live++
		t.met(s)
	}
	copy(t.value(s), value)
}

// lateDelete is the delay in nanoseconds from which on the time at which the table learns of a
// delete counts, and not that of the delete.
const lateDelete = 1_000_000_000

// kill makes a record a tombstone, to be kept for its lifetime from the moment at which the
// table learns of it: an event may have waited for long.
func (t *Table) kill(s uint32, now int64) {
	m := t.meta(s)
	if m.live() {
		t.boundTombs()
		m.flags = m.flags&^(flagUntold|flagLoaded) | flagTombstone
		t.stats.Live--
		t.stats.Tombstones++
	}
	if t.now-now > lateDelete {
		now = t.now
	}
	m.seen = max(m.seen, now)
}

// put gives a record its content: a value, or none for a tombstone. Until the record
// is stamped it has no version.
func (t *Table) put(s uint32, value []byte, dead bool, now int64) {
	t.leave(s)
	m := t.meta(s)
	m.version = 0
	m.flags &^= flagLoaded
	if dead {
		t.unrelease(m)
		m.flags &^= flagExpired
		t.kill(s, now)
	} else {
		t.fill(s, value)
	}
}

// stamp gives a record a version and an owner and puts it at the tail.
func (t *Table) stamp(s uint32, v Version, o OwnerID) {
	t.leave(s)
	m := t.meta(s)
	if m.is(flagFailed) {
		t.owners.list[m.owner].digest.failed--
		t.owners.list[o].digest.failed++
	}
	t.owners.refer(m.owner, o)
	m.version, m.owner = v, o
	m.flags &^= flagUntold
	t.outdate(s)
	t.join(s)
	t.moveTail(s)
}

// moveTail gives a record the next position, whether it was in the order, in
// the unversioned list or in neither.
func (t *Table) moveTail(s uint32) {
	m := t.meta(s)
	t.unlink(s)
	t.seq++
	m.seq = t.seq
	t.trail.note(t.seq, s, t.used)
	t.link(order, s)
	t.tx.changed = true
}

// unlink takes a record out of whichever list it is in, and moves the cursors
// that rest on it back to its predecessor.
func (t *Table) unlink(s uint32) {
	m := t.meta(s)
	switch {
	case m.is(flagUnversioned):
		m.flags &^= flagUnversioned
		t.stats.Unversioned--
	case m.seq == 0:
		return
	case m.is(flagCursor):
		m.flags &^= flagCursor
		for _, c := range t.cursors {
			if c.at == s {
				c.at = m.prev
				t.meta(m.prev).flags |= flagCursor
			}
		}
	}
	t.cut(s)
}

// markDirty asks the writer to write a record. The record must be at the tail,
// or be put there: the writer has passed everything else.
func (t *Table) markDirty(s uint32) {
	m := t.meta(s)
	t.tx.changed = true
	m.flags &^= flagEvicted
	if !m.is(flagDirty) {
		m.flags |= flagDirty
		t.stats.Dirty++
		return
	}
	m.flags |= flagRedo
	t.clearFailed(m)
}

func (t *Table) clearFailed(m *meta) {
	if m.is(flagFailed) {
		m.flags &^= flagFailed
		t.stats.Failed--
		t.owners.list[m.owner].digest.failed--
	}
}

// clearDirty takes a record from the writer, and lets a recheck go ahead that
// waited for the write.
func (t *Table) clearDirty(s uint32) {
	m := t.meta(s)
	if !m.is(flagDirty) {
		return
	}
	t.tx.changed = true
	t.clearFailed(m)
	m.flags &^= flagDirty | flagRedo
	t.stats.Dirty--
	t.paid(s)
	if m.is(flagRecheck) {
		t.queueRecheck(s)
	}
}

// recheck asks for a record to be read from the kernel. While the record is
// dirty the kernel's content means nothing, so the recheck waits.
func (t *Table) recheck(s uint32) {
	m := t.meta(s)
	m.flags |= flagDoubt
	if !m.is(flagRecheck) {
		m.flags |= flagRecheck
		t.stats.Rechecks++
	}
	if !m.is(flagDirty) {
		t.queueRecheck(s)
	}
}

func (t *Table) queueRecheck(s uint32) {
	m := t.meta(s)
	if !m.is(flagInRechecks) {
		m.flags |= flagInRechecks
		t.rechecks.push(s)
		t.tx.changed = true
	}
}

func (t *Table) dropRecheck(m *meta) {
	if m.is(flagRecheck) {
		m.flags &^= flagRecheck
		t.stats.Rechecks--
	}
}
