package table

import (
	"bytes"

	"github.com/zeebo/xxh3"
)

// This file has the elementary operations of all changes. Each of them keeps the gauges of Stats correct.

// placedSlot is a slot with the position of its record at some time.
type placedSlot struct {
	// seq is the position of the record when it was placed. Positions are not reused: if the meta of slot has another one,
	// the record has moved, or slot has another record.
	seq uint64
	// slot is never 0. It may be free by now, or have another record.
	slot uint32
}

// timedSlot is an entry of a queue of slots that is ordered by time.
type timedSlot struct {
	// when is a wall clock in nanoseconds: the seen time of the record when it entered the queue, or a
	// later time if its turn was postponed.
	when int64
	// slot may have another record by now. The consumer of the queue checks its flags.
	slot uint32
}

// hash returns the index hash of a key. Options.Seed seeds it.
func (t *Table) hash(key []byte) uint32 {
	return uint32(xxh3.HashSeed(key, t.opt.Seed) >> 32)
}

// find returns the hash of a key and its slot, or 0 if no slot has a record of the key. It does not search
// the log.
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

// create returns a slot with a live record without a value that is in no list yet. It returns 0 and counts
// the refusal if the table is full.
func (t *Table) create(hash uint32, key []byte) uint32 {
	// Compact tombstones count towards the limit, too.
	if t.used+t.log.n >= t.max && !t.makeRoom(keptTombs) {
		t.stats.Refused++
		return 0
	}
	s := t.alloc()
	copy(t.key(s), key)
	t.markScanned(s)
	t.index.insert(hash, s)
	t.stats.Live++
	return s
}

// makeLive makes a record live with the given value. The value is copied.
func (t *Table) makeLive(s uint32, value []byte) {
	m := t.meta(s)
	if !m.live() {
		t.unrelease(m)
		t.setFlags(m, flagTombstone|flagExpired|flagInferred, 0)
		t.stats.Tombstones--
		t.stats.Live++
		t.markScanned(s)
	}
	copy(t.value(s), value)
}

// put sets the content of a record: a value, or a tombstone. It resets the version, and the caller calls
// stamp next. Deletes of the former content that hooks have reported do not count any more.
func (t *Table) put(s uint32, value []byte, deleted bool, now int64) {
	t.removeFromDigest(s)
	m := t.meta(s)
	m.version = 0
	t.unhold(s)
	m.flags &^= flagLoaded | flagCleared | flagDeleteSeen | flagPacketDelete
	t.endBase(s)
	if deleted {
		t.unrelease(m)
		m.flags &^= flagExpired | flagInferred
		t.makeTombstone(s, now)
	} else {
		t.makeLive(s, value)
	}
}

// stamp sets the version and the owner of a record and moves it to the tail.
func (t *Table) stamp(s uint32, v Version, o OwnerID) {
	t.removeFromDigest(s)
	m := t.meta(s)
	t.owners.moveReference(m.owner, o)
	t.stampSuperseded(m, v, o)
	t.setOwner(m, o)
	m.version = v
	m.flags &^= flagUnsent | flagCleared | flagNamed | flagUnfit
	if m.is(flagHeld) {
		t.holdLonger(s)
	}
	t.invalidateReadings(s)
	t.addToDigest(s)
	t.moveTail(s)
}

// moveTail moves a record to the tail of the order with the next position. The record may be in the order,
// in the list of unversioned records or in no list.
func (t *Table) moveTail(s uint32) {
	m := t.meta(s)
	t.unlink(s)
	t.seq++
	m.seq = t.seq
	t.recent.note(t.seq, s, t.used)
	t.link(order, s)
	if !m.live() && !m.is(flagInTombs) {
		t.pushNewTomb(placedSlot{t.seq, s})
	}
	t.tx.changed = true
}

// unlink removes a record from its list. It moves the cursors that are at the record to its predecessor.
func (t *Table) unlink(s uint32) {
	m := t.meta(s)
	switch {
	// Unversioned records have no cursors.
	case m.is(flagUnversioned):
		t.setFlags(m, flagUnversioned, 0)
		t.stats.Unversioned--
	// The record is in no list.
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

// markDirty marks a record for the writer. The record must be at the tail, or the caller must move it
// there, because the writer may have passed all other records.
func (t *Table) markDirty(s uint32) {
	m := t.meta(s)
	t.tx.changed = true
	t.unhold(s)
	was := m.is(flagDirty)
	t.setFlags(m, flagEvicted, flagDirty)
	// A dirty record may be in the writer's current burst. With flagRedo, Applied leaves it dirty.
	if !was {
		t.stats.Dirty++
		return
	}
	m.flags |= flagRedo
	t.clearFailed(m)
}

// clearFailed lets the writer write a record whose write failed.
func (t *Table) clearFailed(m *meta) {
	if m.is(flagFailed) {
		m.flags &^= flagFailed
		t.stats.Failed--
	}
}

// markNotHeld marks a live record whose last write failed.
func (t *Table) markNotHeld(m *meta) {
	if !m.live() || m.is(flagNotHeld) {
		t.setFlags(m, flagEntry, 0)
		return
	}
	t.setFlags(m, flagEntry, flagNotHeld)
	t.notHeld++
	t.owners.list[m.owner].digest.notHeld++
}

// clearNotHeld removes the mark that the last write of a record failed.
func (t *Table) clearNotHeld(m *meta) {
	if m.is(flagNotHeld) {
		t.setFlags(m, flagNotHeld, 0)
		t.notHeld--
		t.owners.list[m.owner].digest.notHeld--
	}
}

// clearDirty unmarks a record for the writer. If a reread of the record waited for the write, the reread is
// queued.
func (t *Table) clearDirty(s uint32) {
	m := t.meta(s)
	if !m.is(flagDirty) {
		return
	}
	t.tx.changed = true
	t.clearFailed(m)
	t.clearNotHeld(m)
	t.setFlags(m, flagDirty|flagRedo, 0)
	t.stats.Dirty--
	t.barrierWritten(s)
	if m.is(flagReread) {
		t.queueReread(s)
	}
}
