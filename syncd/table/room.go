package table

// An LRU map does not refuse an entry: it evicts another one, perhaps one of this node's own sessions. Above Options.Room
// entries, the writer therefore treats the map as full. Entries of peers use what the entries of this node leave free, and
// displace each other like in a full hash map. If the entries of this node grow, MakeRoom displaces those of peers.
//
// The kernel evicts before the map is full, because it keeps lists of free entries for each CPU. Options.Room is below
// Options.MaxEntries by these lists.

// mapRoom has the numbers of live records whose entry the kernel map lacks, without those with flagNotHeld. The lock of the table
// protects it.
type mapRoom struct {
	// byLack has the number of records by lack, except for lacksNothing.
	byLack [3]int
	// taken is the number of records that NextDirty has returned since SetApplied and whose entry the map lacks.
	taken int
}

// lack is the way in which the kernel map lacks the entry of a record.
type lack uint8

const (
	// lacksNothing: the map has an entry, or flagNotHeld is set, or the record is not live.
	lacksNothing lack = iota
	// lacksEvicted: a versioned record was evicted. nodeDigest.evicted counts these records, too.
	lacksEvicted
	// lacksYet: the writer has yet to write the entry for the first time, or its delete waits, or an unversioned record was
	// evicted. A record of a peer that replaces an entry of the load balancer counts, too, until it is written.
	lacksYet
)

// lack returns how the kernel map lacks the entry of a record with flags f.
func (f flags) lack() lack {
	switch {
	case f&(flagFree|flagTombstone|flagNotHeld) != 0:
		return lacksNothing
	case f&(flagEvicted|flagUnversioned) == flagEvicted:
		return lacksEvicted
	case f&(flagEvicted|flagHeld) != 0 || f&(flagDirty|flagEntry) == flagDirty:
		return lacksYet
	}
	return lacksNothing
}

// setFlags removes the flags in off from a record and then adds those in on. All changes of the flags that lack reads use it,
// except for flagFree.
func (t *Table) setFlags(m *meta, off, on flags) {
	was := m.flags.lack()
	m.flags = m.flags&^off | on
	if is := m.flags.lack(); is != was {
		t.countLack(m.owner, was, -1)
		t.countLack(m.owner, is, 1)
	}
}

// countLack adds n to the number of records of an owner with a lack.
func (t *Table) countLack(o OwnerID, l lack, n int) {
	t.room.byLack[l] += n
	if l == lacksEvicted {
		t.owners.list[o].digest.evicted += n
	}
}

// setOwner sets the owner of a record. The numbers of records that the kernel map lacks follow the owner.
func (t *Table) setOwner(m *meta, o OwnerID) {
	t.owners.list[m.owner].digest.countUnheld(m, -1)
	m.owner = o
	t.owners.list[o].digest.countUnheld(m, 1)
}

// countUnheld adds n to the number of records like m.
func (d *nodeDigest) countUnheld(m *meta, n int) {
	switch {
	case m.is(flagNotHeld):
		d.notHeld += n
	case m.flags.lack() == lacksEvicted:
		d.evicted += n
	}
}

// entries returns the number of entries of the kernel map, as far as the table has them.
func (t *Table) entries() int {
	r := &t.room
	return t.stats.Live + t.stats.Released - t.notHeld - r.byLack[lacksEvicted] - r.byLack[lacksYet] + r.taken
}

// lacksRoom reports whether the map must not get another entry for a dirty record. Records of this node lack room only while
// there are entries of other nodes, which they displace. The map may have an entry of the key that the table does not show:
// the writer looks.
func (t *Table) lacksRoom(s uint32) bool {
	m := t.meta(s)
	switch {
	case !t.opt.LRU || t.opt.Room == 0 || !m.live() || m.is(flagEntry):
		return false
	case t.entries() < t.opt.Room:
		t.room.taken++
		return false
	}
	if !t.ours(m.owner) {
		return true
	}
	most, _, _ := t.largestGroup(nil)
	return most != nil
}

// HasRoom reports whether an LRU map has fewer entries than Options.Room.
func (tx *Tx) HasRoom() bool { return tx.t.opt.LRU && tx.t.entries() < tx.t.opt.Room }

// MakeRoom selects the victim for an LRU map with more than Options.Room entries: the oldest entry of the group with the most
// entries. If it has found one, it describes it in victim. The caller deletes the victim from the kernel map and then calls
// Displaced. With more, the search is not finished: the caller calls MakeRoom again.
func (tx *Tx) MakeRoom(victim *Record) (found, more bool) {
	t := tx.t
	if !t.opt.LRU || t.opt.Room == 0 || t.entries() <= t.opt.Room {
		return false, false
	}
	from, _, _ := t.largestGroup(nil)
	if from == nil {
		return false, false
	}
	s := t.nextVictim(from)
	if s == 0 {
		return false, from.examined <= 2*t.used
	}
	t.displace(s, from, victim)
	return true, false
}
